"""A head on the target's hidden states that drafts: EAGLE-1, 2, 3 and 3.1.

Owns: the drafter's name.
Does not know: which version the head is, how a draft grows, the target, the accept rule.
Invariants: those of `Pairs`: whatever is committed stands in the head's cache with the target's
true states; guesses are forgotten by `observe` and `forget`.

    committed    x0  x1  x2  x3       states of the target   f0  f1  f2
    pairs        (f0,x1) (f1,x2) (f2,x3)                     read once, with true states
    guesses      x4 from the last pair; then (own state, x4) gives x5, and so on
"""

from typing import Any

from labkit.drafters.on_pairs import OnPairs
from labkit.heads.eagle import EagleHead


class Eagle(OnPairs):
    """Drafts with one EAGLE head.

    Args:
        name: what traces call it; None: the head's version.
        settings: as of `OnPairs`.
    """

    head: EagleHead

    def __init__(self, head: EagleHead, *, name: str | None = None, **settings: Any) -> None:
        super().__init__(head, name=name or f"eagle{head.config.version}", **settings)
