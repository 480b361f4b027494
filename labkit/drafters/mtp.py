"""Drafting with multi-token prediction modules: chains and trees, greedy and drawn.

Owns: the drafter's settings. Does not know: families of checkpoints, how a draft grows.
Invariants: those of `Pairs`: committed text stands in every module's cache with true states.
"""

import time
from collections.abc import Callable, Sequence

import torch

from labkit.config import check_confidence
from labkit.draft import Draft
from labkit.drafters.base import Commit, Drafter
from labkit.drafters.pairs import Pairs
from labkit.drafters.shapes import Chain, Shape
from labkit.heads.mtp import MtpHead
from labkit.sampling import Rng, Warp


class Mtp(Drafter):
    """Drafts with the modules of one `MtpHead`, the last one again and again beyond them.

    What is judged as one-hot and what is drawn is as for `Eagle`: everything is one-hot at
    temperature 0 and in dynamic trees; chains and static trees are drawn above it, and their q is
    the head's distribution under the same warp.

    Args:
        head: in evaluation mode, on the target's device.
        shape: `Chain`, `StaticTree` or `DynamicTree`.
        confidence: stop drafting where the product of the head's own largest probabilities falls
            below this (0: never); costs one read from the device per depth.
        drawn: False makes chains and static trees deterministic at every temperature.
        name: what traces call it.
        clock: seconds; on a device that works asynchronously, one that waits for it.
    """

    def __init__(
        self,
        head: MtpHead,
        *,
        shape: Shape | None = None,
        confidence: float = 0.0,
        drawn: bool = True,
        name: str = "mtp",
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        check_confidence(confidence)
        self.head, self.name = head, name
        self.needs = head.config.needs
        self.shape: Shape = shape or Chain()
        self.confidence, self.drawn = confidence, drawn
        self.pairs = Pairs(head, clock=clock)

    @property
    def context_limit(self) -> int | None:
        return None  # rotary positions go on beyond those it was trained on

    def reset(self) -> None:
        self.pairs.reset()

    @torch.inference_mode()
    def observe(self, commit: Commit) -> None:
        self.pairs.observe(commit)

    def forget(self) -> None:
        self.pairs.forget()

    @torch.inference_mode()
    def propose(self, tokens: Sequence[int], rng: Rng, *, depth: int, warp: Warp) -> Draft:
        return self.pairs.draft(
            tokens,
            rng,
            depth=depth,
            warp=warp,
            shape=self.shape,
            confidence=self.confidence,
            drawn=self.drawn,
        )
