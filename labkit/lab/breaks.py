"""Eight ways to break speculative decoding: what is wrong, what breaks, what shows it, who had it.

Owns: the records. Does not know: how a fault is made (`labkit.lab.broken` and
`labkit.lab.broken_heads` do), how it is run and measured (`labkit.lab.breaking` does).
Invariants: every source is a public report; ``caught_by`` names keys of
`labkit.lab.catching.CHECKS`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast

from labkit.decode import Rule
from labkit.lab import broken
from labkit.lab.cards import Card
from labkit.target import Target

Breaks = Literal["text", "law", "acceptance", "speed"]


def _same(target: Target) -> Target:
    return target


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
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

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return self.card._repr_mimebundle_()

    def __repr__(self) -> str:
        return repr(self.card)


def _wrapped(kind: Callable[[Target], Any]) -> Callable[[Target], Target]:
    return lambda target: cast(Target, kind(target))


_CACHE = (
    Break(
        key="no_rollback",
        title="No rollback",
        wrong="The slots of rejected tokens are never forgotten.",
        effect="All later tokens read words that are not in the text, and stand at later positions "
        "than they have in it.",
        breaks=("text", "law", "acceptance"),
        caught_by=("slots", "nodes", "identity"),
        source="transformers issue #47433: a cache that was cut back kept entries; "
        "lucidrains/speculative-decoding issue #3: a reader asks where rejected tokens go.",
        target=_wrapped(broken.NeverForgets),
    ),
    Break(
        key="reset",
        title="Reset instead of rollback",
        wrong="After every round the whole cache is thrown away and the text is read again.",
        effect="Everything written is right, so no test of the text can see it. It is paid in "
        "positions that the target computes over and over.",
        breaks=("speed",),
        caught_by=("work",),
        source="paiml/aprender PR #2014: the cache was reset where it should have been rolled "
        "back; romsto/Speculative-Decoding issue #4: very slow on long prompts with the cache on.",
        target=_wrapped(broken.Resets),
    ),
    Break(
        key="stale_positions",
        title="Stale positions",
        wrong="The slots of rejected tokens are forgotten, but positions go on as if they were "
        "still there.",
        effect="After the first rejection every token takes itself to stand further on than it "
        "does. The slots look perfect.",
        breaks=("text", "law", "acceptance"),
        caught_by=("nodes", "identity"),
        source="transformers issues #30042 and #30413: drafted blocks were scored at wrong "
        "positions, and greedy text no longer matched plain decoding.",
        target=partial(broken.fresh, broken.StalePositions),
    ),
    Break(
        key="no_tree_mask",
        title="No tree mask",
        wrong="In a draft tree every node sees all nodes before it, its siblings and other "
        "branches too.",
        effect="Each guess is judged after words that are not on its path, and an accepted one "
        "keeps what it saw. A draft that is a chain is never hurt.",
        breaks=("text", "law", "acceptance"),
        caught_by=("nodes", "identity"),
        source="aiola-lab/whisper-medusa issue #29: with more than one branch the text repeats "
        "itself, because branches see each other; FasterDecoding/Medusa issue #88.",
        method="eagle2",
        target=partial(broken.fresh, broken.NoTreeMask),
    ),
)

_RULES = (
    Break(
        key="swapped",
        title="p and q swapped",
        wrong="A drafted token is accepted with min(1, q/p) in place of min(1, p/q).",
        effect="What the target finds unlikely is always accepted, so acceptance may even rise. "
        "The text reads well; it is drawn from another law.",
        breaks=("law", "acceptance"),
        caught_by=("law",),
        source="1bit-MONSTER issue #637: the accept ratio was made of the wrong two "
        "probabilities; transformers issue #32867: it was made with a q that was not drawn from.",
        rule=broken.FAULTS["swapped"],
    ),
    Break(
        key="from_p",
        title="Resample from p",
        wrong="After a rejection the target's own token is drawn from p in place of what p has "
        "over q.",
        effect="Tokens that the drafter likes come too often. At temperature 0 it changes nothing, "
        "so every greedy test passes.",
        breaks=("law",),
        caught_by=("law",),
        source="SafeAILab/EAGLE issue #329 and NJUNLP/MCSD issue #5: readers find p where they "
        "look for the residual (both projects answer that theirs is right); "
        "eth-sri/language-model-arithmetic issue #14: why not p?",
        rule=broken.FAULTS["from_p"],
    ),
)

_REST = (
    Break(
        key="wrong_layer",
        title="States of the wrong layer",
        wrong="The head gets the target's states one layer before those it was trained on.",
        effect="The target corrects every wrong guess, so the text is right to the letter, and "
        "slower than it could be.",
        breaks=("acceptance", "speed"),
        caught_by=("states",),
        source="vLLM PR #43671: 10 % of first guesses right in place of 45 %.",
        method="eagle3",
        head="layers_early",
    ),
    Break(
        key="late_stop",
        title="Stop test only at the end of a block",
        wrong="After each round only the last token is compared with the end of text, and stop "
        "strings leave the rest of the round in the text.",
        effect="An end that is accepted in the middle of a round is passed over: the text runs "
        "past it.",
        breaks=("text",),
        caught_by=("stop", "identity"),
        source="transformers issue #47912: the rest of the block stayed after an accepted end "
        "token, and decoding went on; openvino.genai PR #1719: stop strings inside a round.",
        stops_late=True,
    ),
)

BREAKS: Mapping[str, Break] = {fault.key: fault for fault in (*_CACHE, *_RULES, *_REST)}
"""All eight by key: of the cache and what is seen of it, of the accept rule, of head and stop."""
