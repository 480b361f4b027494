"""A drafter over committed pairs, whatever head reads them.

Owns: the settings that EAGLE heads and multi-token prediction modules have in common.
Does not know: which head it is, how a draft grows, the target, the accept rule.
Invariants: those of `Pairs`: whatever is committed stands in the head's caches with the target's
true states; guesses are forgotten by `observe` and `forget`.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from labkit.config import check_confidence
from labkit.draft import Draft
from labkit.drafters.base import Commit, Drafter
from labkit.drafters.pairs import Pairs
from labkit.drafters.shapes import Chain, Shape
from labkit.sampling import Rng, Warp


class OnPairs(Drafter):
    """Drafts with one head on pairs of a state and a token.

    At temperature 0 every token is judged as one-hot. Above it, chains and static trees are drawn
    from the head's own distribution under the same warp (siblings without replacement), and that
    is their q; a dynamic tree takes its likeliest tokens whatever the temperature and is judged
    as one-hot: choosing among drawn tokens by their probability would change their law.

    Args:
        head: in evaluation mode, on the target's device; see `labkit.drafters.pairs.Head`.
        shape: `Chain`, `StaticTree` or `DynamicTree`.
        confidence: stop drafting where the product of the head's own largest probabilities falls
            below this (0: never); costs one read from the device per depth.
        drawn: False makes chains and static trees deterministic at every temperature.
        name: what traces call it.
        clock: seconds; on a device that works asynchronously, one that waits for it.
    """

    def __init__(
        self,
        head: Any,
        *,
        name: str,
        shape: Shape | None = None,
        confidence: float = 0.0,
        drawn: bool = True,
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
