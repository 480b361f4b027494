"""Drafting with multi-token prediction modules: chains and trees, greedy and drawn.

Owns: the drafter's name. Does not know: families of checkpoints, how a draft grows.
Invariants: those of `Pairs`: committed text stands in every module's cache with true states.
"""

from typing import Any

from labkit.drafters.on_pairs import OnPairs
from labkit.heads.mtp import MtpHead


class Mtp(OnPairs):
    """Drafts with the modules of one `MtpHead`, the last one again and again beyond them.

    Args:
        settings: as of `OnPairs`.
    """

    head: MtpHead

    def __init__(self, head: MtpHead, *, name: str = "mtp", **settings: Any) -> None:
        super().__init__(head, name=name, **settings)
