"""The gallery of silent faults: what is wrong, to whom it happened, which heads can have it.

Owns: the records; their words are in ``strings/faults.yaml``. Does not know: how a fault is made
(`labkit.lab.broken_heads` does), what it costs (`labkit.lab.faults` measures that).
Invariants: every source is a public report; figures in it are its author's, not measured here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from labkit.drafters.eagle import eagle_drafter
from labkit.drafters.on_head import HeadDrafter
from labkit.drafters.pairs import Pairs
from labkit.heads.eagle import EagleHead
from labkit.lab import broken_heads as make
from labkit.lab.cards import Card, Carded
from labkit.lab.wording import catalogue, filled


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Fault(Carded):
    """One way to run a head wrongly.

    Attributes:
        title: a few words. wrong: one sentence on what is wrong.
        source: to whom it happened, and what they reported.
        found_by: what shows it, since the text does not.
        heads: which heads can have it, in words; exists: the same, asked of a head and the number
            of its target's layers.
        drafter: (head, number of the target's layers) -> drafter with the fault.
        chat: is the prompt put into the chat template?
    """

    key: str
    title: str
    wrong: str
    source: str
    found_by: str
    heads: str
    exists: Callable[[Any, int], bool]
    drafter: Callable[[Any, int], HeadDrafter]
    chat: bool = True

    @property
    def card(self) -> Card:
        return Card(
            "✗",
            f"*{self.title}* (`{self.key}`): {self.wrong}\nWhere: {self.heads}.\n"
            f"Who had it: {self.source}\nFound by: {self.found_by}",
        )


Exists = Callable[[Any, int], bool]
Making = Callable[[Any, int], HeadDrafter]


def told(key: str, exists: Exists, drafter: Making, *, chat: bool = True) -> Fault:
    """The record of one fault, with its words."""
    words = filled(catalogue("faults")["heads"][key])
    return Fault(key=key, exists=exists, drafter=drafter, chat=chat, **words)


def by_key(*faults: Fault) -> dict[str, Fault]:
    """The faults in their order, each under its key."""
    return {fault.key: fault for fault in faults}


def _head(change: make.Change) -> Callable[[EagleHead, int], HeadDrafter]:
    return lambda head, layers: eagle_drafter(change(head))


def _pairs(kind: type[Pairs]) -> Callable[[EagleHead, int], HeadDrafter]:
    return lambda head, layers: make.with_pairs(kind, head)


def every_head(head: Any, layers: int) -> bool:
    """Any head of the kind can have it."""
    return True


def _version_1(head: EagleHead, layers: int) -> bool:
    return head.config.version == 1


def _version_3(head: EagleHead, layers: int) -> bool:
    return head.config.version == 3


def _with_words_of_its_own(head: EagleHead, layers: int) -> bool:
    """Some of its words have another number than in the target."""
    words = head.vocab_ids
    return not torch.equal(words, torch.arange(len(words), device=words.device))


def _not_from_the_embedding(head: EagleHead, layers: int) -> bool:
    return _version_3(head, layers) and min(head.config.boundaries) > 0


def _not_from_the_last_layer(head: EagleHead, layers: int) -> bool:
    return _version_3(head, layers) and max(head.config.boundaries) < layers


def _norms_what_it_fuses(head: EagleHead, layers: int) -> bool:
    return head.config.fc_norm or head.config.norm_before_fc


def _before_final_norm(head: EagleHead, layers: int) -> HeadDrafter:
    return make.before_final_norm(head, layers=layers)


GALLERY: Mapping[str, Fault] = by_key(
    # what the head reads
    told("layers_early", _not_from_the_embedding, _head(partial(make.layers_off, by=-1))),
    told("layers_late", _not_from_the_last_layer, _head(partial(make.layers_off, by=1))),
    told("depths_reversed", _version_3, _head(make.depths_reversed)),
    told("before_final_norm", _version_1, _before_final_norm),
    told("pairs_unshifted", every_head, _pairs(make.Unshifted)),
    told("strange_embedding", every_head, _head(make.strange_embedding)),
    # how it computes
    told("norms_swapped", _version_3, _head(make.norms_swapped)),
    told("fuse_norm_dropped", _norms_what_it_fuses, _head(make.fuse_norm_dropped)),
    told("feedback_flipped", _version_3, _head(make.feedback_flipped)),
    told("residual_flipped", _version_3, _head(make.residual_flipped)),
    told("residual_missing", every_head, _head(make.residual_missing)),
    told("positions_ahead", every_head, _head(make.positions_ahead)),
    # what its words mean
    told("d2t_absolute", _with_words_of_its_own, _head(make.offsets_as_ids)),
    told("d2t_missing", _with_words_of_its_own, _head(make.first_ids)),
    # what it remembers
    told("stale_rows", every_head, _pairs(make.StaleRows)),
    told("no_rollback", every_head, _pairs(make.NoRollback)),
    told("no_template", every_head, lambda head, layers: eagle_drafter(head), chat=False),
)
"""All faults by key."""
