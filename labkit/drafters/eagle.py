"""A head on the target's hidden states that drafts: EAGLE-1, 2, 3 and 3.1.

Owns: the drafter's name.
Does not know: which version the head is, how a draft grows, the target, the accept rule.
Invariants: those of `Pairs`: whatever is committed stands in the head's cache with the target's
true states; guesses are forgotten by `observe` and `forget`.

    committed    x0  x1  x2  x3       states of the target   f0  f1  f2
    pairs        (f0,x1) (f1,x2) (f2,x3)                     read once, with true states
    guesses      x4 from the last pair; then (own state, x4) gives x5, and so on
"""

import time
from collections.abc import Callable
from typing import Any

from labkit.drafters.on_head import HeadDrafter
from labkit.drafters.pairs import Pairs
from labkit.heads.eagle import EagleHead


def eagle_drafter(
    head: EagleHead,
    *,
    name: str | None = None,
    clock: Callable[[], float] = time.perf_counter,
    **settings: Any,
) -> HeadDrafter:
    """Drafts with one EAGLE head.

    Args:
        head: in evaluation mode, on the target's device.
        name: what traces call it; None: the head's version.
        clock: seconds; on a device that works asynchronously, one that waits for it.
        settings: as of `HeadDrafter`.
    """
    name = name or f"eagle{head.config.version}"
    return HeadDrafter(Pairs(head, clock=clock), name=name, **settings)
