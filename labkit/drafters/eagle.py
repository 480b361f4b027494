"""A head on the target's hidden states that drafts: EAGLE-1, 2, 3 and 3.1.

Owns: the drafter's settings.
Does not know: which version the head is, how a draft grows, the target, the accept rule.
Invariants: those of `Pairs`: whatever is committed stands in the head's cache with the target's
true states; guesses are forgotten by `observe` and `forget`.

    committed    x0  x1  x2  x3       states of the target   f0  f1  f2
    pairs        (f0,x1) (f1,x2) (f2,x3)                     read once, with true states
    guesses      x4 from the last pair; then (own state, x4) gives x5, and so on
"""

import time
from collections.abc import Callable, Sequence

import torch

from labkit.config import check_confidence
from labkit.draft import Draft
from labkit.drafters.base import Commit, Drafter
from labkit.drafters.pairs import Pairs
from labkit.drafters.shapes import Chain, Shape
from labkit.heads.eagle import EagleHead
from labkit.sampling import Rng, Warp


class Eagle(Drafter):
    """Drafts with one EAGLE head.

    At temperature 0 every token is judged as one-hot. Above it, chains and static trees are drawn
    from the head's own distribution under the same warp (siblings without replacement), and that
    is their q; a dynamic tree takes its likeliest tokens whatever the temperature and is judged
    as one-hot: choosing among drawn tokens by their probability would change their law.

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
        head: EagleHead,
        *,
        shape: Shape | None = None,
        confidence: float = 0.0,
        drawn: bool = True,
        name: str | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        check_confidence(confidence)
        self.head = head
        self.needs = head.config.needs
        self.name = name or f"eagle{head.config.version}"
        self.shape: Shape = shape or Chain()
        self.confidence = confidence
        self.drawn = drawn
        self.pairs = Pairs(head, clock=clock)

    @property
    def context_limit(self) -> int | None:
        return None  # rotary positions go on beyond those it was trained on

    @property
    def true_length(self) -> int:
        """Pairs in the head's cache that are committed, with the target's own states."""
        return self.pairs.true[0]

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
