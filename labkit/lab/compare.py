"""Where two texts of one model part, and whether that is a fault.

Owns: the near-tie rule. Does not know: how the texts were made.
Invariants: the rule is stated here and nowhere else.

The rule. A forward over several tokens rounds differently from a forward over one, so two right
engines may part where the two best logits are nearly equal. At the first difference the text so far
is scored again, in one forward. If the lower of the two chosen logits lies within two *steps* of
the best one, it was a near tie; else something is wrong. A step is the distance between
neighbouring numbers of the model's dtype at that size: in bfloat16, 0.125 for logits from 16 to 32.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from labkit.decode import step_of
from labkit.target import Target
from labkit.tree import DraftTree

STEPS = 2


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where two continuations of one prompt differ.

    index: place among the new tokens. left, right: the tokens there, None where a text had ended.
    gap: from the best logit down to the lower of the two (infinite when a text had ended).
    step: distance of neighbouring numbers of the model's dtype at the best logit.
    """

    index: int
    left: int | None
    right: int | None
    gap: float
    step: float

    @property
    def verdict(self) -> str:
        """Either "near tie" or "fault"."""
        return "near tie" if self.gap <= STEPS * self.step else "fault"

    def __str__(self) -> str:
        return (
            f"{self.verdict} at new token {self.index}: {self.left} or {self.right}, "
            f"logits {self.gap:.4g} apart, {self.gap / self.step:.3g} steps of {self.step:.4g}"
        )


def parting(left: Sequence[int], right: Sequence[int]) -> int | None:
    """The first place where two texts differ, or where one ends; None: they are the same."""
    pairs = zip(left, right, strict=False)
    shorter = min(len(left), len(right))
    index = next((i for i, (a, b) in enumerate(pairs) if a != b), shorter)
    return None if index == len(left) == len(right) else index


def first_difference(
    target: Target, prompt: Sequence[int], left: Sequence[int], right: Sequence[int]
) -> Difference | None:
    """Compare two continuations of ``prompt`` by the near-tie rule.

    Args:
        target: the model that wrote both; its cache is used, so no run may be under way.
        left, right: the new tokens of each.

    Returns:
        None when they are the same.
    """
    index = parting(left, right)
    if index is None:
        return None
    before = [*prompt, *left[:index]]
    target.check_tokens(before)
    target.prefill(before)
    with target.speculation():
        logits = target.score(DraftTree.chain(before[-1:])).logits[0]
    best, step = float(logits.max()), float(step_of(logits[None])[0])
    one, other = (text[index] if index < len(text) else None for text in (left, right))
    lower = min(float("-inf") if t is None else float(logits[t]) for t in (one, other))
    return Difference(index, one, other, gap=best - lower, step=step)
