"""Eight ways to break speculative decoding: what is wrong, what breaks, what shows it, who had it.

Owns: the records; their words are in ``strings/faults.yaml``. Does not know: how a fault is made
(`labkit.lab.broken` and `labkit.lab.broken_heads` do), how it is run and measured
(`labkit.lab.breaking` does).
Invariants: every source is a public report; ``caught_by`` names keys of
`labkit.lab.catching.CHECKS`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast

from labkit.decode import Rule
from labkit.lab import broken
from labkit.lab.cards import Card, Carded
from labkit.lab.wording import catalogue, filled
from labkit.target import Target

Breaks = Literal["text", "law", "acceptance", "speed"]


def _same(target: Target) -> Target:
    return target


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Break(Carded):
    """One fault with a switch.

    Attributes:
        title: a few words. wrong: what is wrong. effect: what that does, in one or two sentences.
        breaks: what is no longer right. caught_by: keys of the checks that show it.
        source: to whom it happened, and what they reported.
        method: the drafter that it is shown with.
        target: makes the broken target of a healthy one. rule: the broken accept rule.
        head: key of `labkit.lab.gallery.GALLERY`, when the head is what is run wrongly.
        stops_late: is the stop test what is broken?
    """

    key: str
    title: str
    wrong: str
    effect: str
    breaks: tuple[Breaks, ...]
    caught_by: tuple[str, ...]
    source: str
    method: str = "draft"
    target: Callable[[Target], Target] = _same
    rule: Rule | None = None
    head: str = ""
    stops_late: bool = False

    @property
    def drawn(self) -> bool:
        """Is it shown with tokens that are drawn? Accept rules need that; the others show more
        clearly at temperature 0."""
        return self.rule is not None

    @property
    def card(self) -> Card:
        return Card(
            "✗",
            f"*{self.title}* (`{self.key}`): {self.wrong}\n{self.effect}\n"
            f"Breaks: {', '.join(self.breaks)}.\nWho had it: {self.source}",
        )


def _told(key: str, **how: Any) -> Break:
    """The record of one fault, with its words."""
    words = dict(catalogue("faults")["switches"][key])
    breaks, caught_by = tuple(words.pop("breaks")), tuple(words.pop("caught_by"))
    return Break(key=key, breaks=breaks, caught_by=caught_by, **filled(words), **how)


def _wrapped(kind: Callable[[Target], Any]) -> Callable[[Target], Target]:
    return lambda target: cast(Target, kind(target))


_CACHE = (
    _told("no_rollback", target=_wrapped(broken.NeverForgets)),
    _told("reset", target=_wrapped(broken.Resets)),
    _told("stale_positions", target=partial(broken.fresh, broken.StalePositions)),
    _told("no_tree_mask", method="eagle2", target=partial(broken.fresh, broken.NoTreeMask)),
)
_RULES = tuple(_told(key, rule=broken.FAULTS[key]) for key in ("swapped", "from_p"))
_REST = (
    _told("wrong_layer", method="eagle3", head="layers_early"),
    _told("late_stop", stops_late=True),
)

BREAKS: Mapping[str, Break] = {fault.key: fault for fault in (*_CACHE, *_RULES, *_REST)}
"""All eight by key: of the cache and what is seen of it, of the accept rule, of head and stop."""
