"""The gallery of silent faults: what is wrong, to whom it happened, which heads can have it.

Owns: the records. Does not know: how a fault is made (`labkit.lab.broken_heads` does), what it
costs (`labkit.lab.faults` measures that).
Invariants: every source is a public report; figures in it are its author's, not measured here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from labkit.drafters.eagle import Eagle
from labkit.drafters.on_pairs import OnPairs
from labkit.drafters.pairs import Pairs
from labkit.heads.eagle import EagleHead
from labkit.lab import broken_heads as make
from labkit.lab.cards import Card


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
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
    drafter: Callable[[Any, int], OnPairs]
    chat: bool = True

    @property
    def card(self) -> Card:
        return Card(
            "✗",
            f"*{self.title}* (`{self.key}`): {self.wrong}\nWhere: {self.heads}.\n"
            f"Who had it: {self.source}\nFound by: {self.found_by}",
        )

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return self.card._repr_mimebundle_()

    def __repr__(self) -> str:
        return repr(self.card)


def _head(change: make.Change) -> Callable[[EagleHead, int], Eagle]:
    return lambda head, layers: Eagle(change(head))


def _pairs(kind: type[Pairs]) -> Callable[[EagleHead, int], Eagle]:
    return lambda head, layers: make.with_pairs(kind, head)


def _any(head: EagleHead, layers: int) -> bool:
    return True


def _version_1(head: EagleHead, layers: int) -> bool:
    return head.config.version == 1


def _version_3(head: EagleHead, layers: int) -> bool:
    return head.config.version == 3


def _with_words_of_its_own(head: EagleHead, layers: int) -> bool:
    """Some of its words have another number than in the target."""
    words = head.vocab_ids
    return not torch.equal(words, torch.arange(len(words), device=words.device))


_EVERY, _ONE, _THREE = "every EAGLE head", "EAGLE-1 and 2", "EAGLE-3 and 3.1"
_FRESH = (
    "the draft logits of a fresh head that reads the committed text once, with true states: after "
    "every round both must say the same."
)
_FORMULAS = "the draft logits, worked out once more from the paper's formulas."
_INSPECT_WORDS = "`labkit inspect`, which refuses a map that does not fit."

_READING = (
    Fault(
        key="layers_early",
        title="States one layer too early",
        wrong="The head gets the target's states one layer before those it was trained on.",
        source="vLLM PR #43671: 10 % of first guesses right in place of 45 %. A list of layer ids "
        "counts layers in SafeAILab/EAGLE and vLLM, and outputs of layers, one less, in NVIDIA "
        "ModelOpt and SpecForge.",
        found_by="`labkit inspect`, which names both readings of the ids; and the states "
        "themselves, which must be transformers' `hidden_states[k]` bit for bit.",
        heads=_THREE,
        exists=lambda head, layers: _version_3(head, layers) and min(head.config.boundaries) > 0,
        drafter=_head(partial(make.layers_off, by=-1)),
    ),
    Fault(
        key="layers_late",
        title="States one layer too late",
        wrong="The head gets the target's states one layer after those it was trained on.",
        source="SGLang PR #25454: 1 was added to ids that needed none; about 0.1 tokens per round.",
        found_by="the same as for states one layer too early.",
        heads=_THREE,
        exists=lambda head, layers: (
            _version_3(head, layers) and max(head.config.boundaries) < layers
        ),
        drafter=_head(partial(make.layers_off, by=1)),
    ),
    Fault(
        key="depths_reversed",
        title="States in another order",
        wrong="The right states are joined from the last layer to the first; the head was trained "
        "on first to last.",
        source="SafeAILab/EAGLE issues #213 and #261: readers cannot tell which states are joined, "
        "and how.",
        found_by="`labkit inspect`, which is suspicious of layer ids that do not ascend.",
        heads=_THREE,
        exists=_version_3,
        drafter=_head(make.depths_reversed),
    ),
    Fault(
        key="before_final_norm",
        title="State before the final norm",
        wrong="The head gets the target's last state as it was before the final norm.",
        source="vllm-mlx issue #657 and DeepSeek-V3 issue #839 ask which of the two a head wants; "
        "speculators PR #313: 40 % of guesses right in place of 25 %, once training had the norm.",
        found_by="the state itself: the target's output layer must turn it into the target's "
        "logits.",
        heads=_ONE,
        exists=_version_1,
        drafter=lambda head, layers: make.before_final_norm(head, layers=layers),
    ),
    Fault(
        key="pairs_unshifted",
        title="State and token of the same place",
        wrong="Each state is paired with its own token in place of the one after it, so the newest "
        "token is never read and every guess comes one place late.",
        source="SafeAILab/EAGLE issue #335: a reader doubts that the tokens should be shifted.",
        found_by=_FRESH,
        heads=_EVERY,
        exists=_any,
        drafter=_pairs(make.Unshifted),
    ),
    Fault(
        key="strange_embedding",
        title="Embedding that is not the target's",
        wrong="The head reads tokens through random rows in place of the target's embedding.",
        source="TorchSpec issue #38: an exported head held the rows of a freshly made model.",
        found_by="`labkit inspect`, which says whether the embedding comes from the target or from "
        "the file.",
        heads=_EVERY,
        exists=_any,
        drafter=_head(make.strange_embedding),
    ),
)

_COMPUTING = (
    Fault(
        key="norms_swapped",
        title="Two norms swapped",
        wrong="The norm for tokens is used on states, and the norm for states on tokens.",
        source="a trap of file formats: NVIDIA ModelOpt alone writes these two norms under two "
        "sets of names.",
        found_by=_FORMULAS,
        heads=_THREE,
        exists=_version_3,
        drafter=_head(make.norms_swapped),
    ),
    Fault(
        key="fuse_norm_dropped",
        title="Norms of the states left out",
        wrong="The states are joined as they are; the norms for them are loaded and never used.",
        source="vLLM PR #43482 (loaded, never applied), vLLM PR #38111 and NeMo Automodel PR #2897 "
        "(the switch was lost on the way).",
        found_by="`labkit inspect`, which switches on what the tensors show, whatever the config "
        "forgot.",
        heads="EAGLE-3.1, and heads with one norm over the joined states",
        exists=lambda head, layers: head.config.fc_norm or head.config.norm_before_fc,
        drafter=_head(make.fuse_norm_dropped),
    ),
    Fault(
        key="feedback_flipped",
        title="Wrong state fed back",
        wrong="From its second guess on the head reads its own state raw where it was trained on "
        "normed ones, or the other way round (`norm_output`).",
        source="SpecForge PR #879: trained heads were neither EAGLE-3 nor 3.1; vLLM PR #46488: the "
        "switch was lost on the way.",
        found_by="acceptance by depth: the first guess is as good as ever, later ones are not.",
        heads=_THREE,
        exists=_version_3,
        drafter=_head(make.feedback_flipped),
    ),
    Fault(
        key="residual_flipped",
        title="Wrong residual",
        wrong="Past the attention the head carries the normed state where it was trained with the "
        "raw one, or the other way round (`norm_before_residual`).",
        source="speculators has false as the default of its files and true as that of its training "
        "command; vLLM reads a missing key as true.",
        found_by="`labkit inspect`, which names the switches and what decided them.",
        heads=_THREE,
        exists=_version_3,
        drafter=_head(make.residual_flipped),
    ),
    Fault(
        key="residual_missing",
        title="Last residual left out",
        wrong="The head's last layer hands on what its MLP adds, without what it adds that to.",
        source="vLLM PR #14464: 1.4 tokens per round in place of 1.8; vLLM PR #11672: 53 % of "
        "guesses right in place of 62 %.",
        found_by=_FORMULAS,
        heads=_EVERY,
        exists=_any,
        drafter=_head(make.residual_missing),
    ),
    Fault(
        key="positions_ahead",
        title="Guesses one position too far",
        wrong="From its second guess on the head takes its tokens to stand one position further "
        "on than they do.",
        source="SGLang PR #25015: positions were advanced before each drafting step, not after it.",
        found_by="acceptance by depth, and " + _FRESH,
        heads=_EVERY,
        exists=_any,
        drafter=_head(make.positions_ahead),
    ),
)

_WORDS = (
    Fault(
        key="d2t_absolute",
        title="Offsets taken for ids",
        wrong="`d2t` says how far a draft word lies from its target id, and is taken for that id.",
        source="SafeAILab/EAGLE issue #222: readers cannot tell how the table maps ids.",
        found_by=_INSPECT_WORDS,
        heads="EAGLE-3 and 3.1 heads that leave out words of the target",
        exists=_with_words_of_its_own,
        drafter=_head(make.offsets_as_ids),
    ),
    Fault(
        key="d2t_missing",
        title="No table of words",
        wrong="`d2t` is not used at all: draft word i is taken for target id i.",
        source="NeMo Automodel PR #2447: a head was saved without its table, and the engine took "
        "its words for the first ids.",
        found_by=_INSPECT_WORDS,
        heads="EAGLE-3 and 3.1 heads that leave out words of the target",
        exists=_with_words_of_its_own,
        drafter=_head(make.first_ids),
    ),
)

_MEMORY = (
    Fault(
        key="stale_rows",
        title="Guessed rows kept as true",
        wrong="Accepted guesses keep the rows that the head made from its own states; the target's "
        "true states are never read for them.",
        source="vLLM issue #14649: 8 to 15 % of the accepted length.",
        found_by=_FRESH,
        heads=_EVERY,
        exists=_any,
        drafter=_pairs(make.StaleRows),
    ),
    Fault(
        key="no_rollback",
        title="Rejected guesses never forgotten",
        wrong="Rejected guesses stay in the head's cache: all that comes after reads them, and "
        "stands further on than it should.",
        source="transformers issue #47433: a cache that was cut back kept stale entries.",
        found_by="the length of the head's cache, which must be that of the text; and " + _FRESH,
        heads=_EVERY,
        exists=_any,
        drafter=_pairs(make.NoRollback),
    ),
    Fault(
        key="no_template",
        title="No chat template",
        wrong="The prompt goes in raw, to target and head alike. That is another prompt, so its "
        "text is another one too: only acceptance can be compared.",
        source="SGLang PR #4716: 2.42 tokens per round in place of 5.88 without the system prompt.",
        found_by="the first tokens of the prompt in the trace.",
        heads=_EVERY,
        exists=_any,
        drafter=lambda head, layers: Eagle(head),
        chat=False,
    ),
)

GALLERY: Mapping[str, Fault] = {
    fault.key: fault for fault in (*_READING, *_COMPUTING, *_WORDS, *_MEMORY)
}
"""All faults by key: of what the head reads, how it computes, what its words mean, what it
remembers."""
