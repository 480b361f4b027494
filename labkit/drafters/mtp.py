"""Drafting with multi-token prediction modules: chains and trees, greedy and drawn.

Owns: the drafter's name. Does not know: families of checkpoints, how a draft grows.
Invariants: those of `Pairs`: committed text stands in every module's cache with true states.
"""

import time
from collections.abc import Callable
from typing import Any

from labkit.drafters.on_head import HeadDrafter
from labkit.drafters.pairs import Pairs
from labkit.heads.mtp import MtpHead


def mtp_drafter(
    head: MtpHead,
    *,
    name: str = "mtp",
    clock: Callable[[], float] = time.perf_counter,
    **settings: Any,
) -> HeadDrafter:
    """Drafts with the modules of one `MtpHead`, the last one again and again beyond them.

    Args:
        head: in evaluation mode, on the target's device.
        name: what traces call it.
        clock: seconds; on a device that works asynchronously, one that waits for it.
        settings: as of `HeadDrafter`.
    """
    return HeadDrafter(Pairs(head, clock=clock), name=name, **settings)
