"""A drafter with a head on the target's states, whatever kind of head.

Owns: the settings that all of them have, and how a draft begins.
Does not know: what a head reads and remembers, how a draft grows, the target, the accept rule.
Invariants: a draft begins after all that was committed, and after nothing else.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch

from labkit.config import check_confidence
from labkit.draft import Draft
from labkit.drafters.base import Drafter
from labkit.drafters.feeding import Source
from labkit.drafters.growing import Growing
from labkit.drafters.shapes import Chain, Shape
from labkit.sampling import Rng, Warp
from labkit.tree import DraftTree


class OnHead(Drafter):
    """Drafts with one head; a kind of heads says what it reads and what its drafts grow from.

    At temperature 0 every token is judged as one-hot. Above it, chains and static trees are drawn
    from the head's own distribution under the same warp (siblings without replacement), and that
    is their q; a dynamic tree takes its likeliest tokens whatever the temperature and is judged
    as one-hot: choosing among drawn tokens by their probability would change their law.

    Args:
        head: in evaluation mode, on the target's device.
        name: what traces call it.
        shape: `Chain`, `StaticTree` or `DynamicTree`.
        confidence: stop drafting where the product of the head's own largest probabilities falls
            below this (0: never); costs one read from the device per depth.
        drawn: False makes chains and static trees deterministic at every temperature.
        deepest: most tokens that the head guesses in a row; None: any number.
    """

    def __init__(
        self,
        head: Any,
        *,
        name: str,
        shape: Shape | None = None,
        confidence: float = 0.0,
        drawn: bool = True,
        deepest: int | None = None,
    ) -> None:
        check_confidence(confidence)
        self.head, self.name = head, name
        self.needs = head.config.needs
        self.shape: Shape = shape or Chain()
        self.confidence, self.drawn = confidence, drawn
        self._deepest = deepest

    @property
    def context_limit(self) -> int | None:
        return None  # rotary positions go on beyond those it was trained on

    @abstractmethod
    def source(self, depth: int) -> Source | None:
        """What a draft of ``depth`` grows from, once the head has read all that waits for it; None
        before there is anything to guess from."""

    @torch.inference_mode()
    def propose(self, tokens: Sequence[int], rng: Rng, *, depth: int, warp: Warp) -> Draft:
        self.forget()  # guesses of a draft that nobody judged
        depth = depth if self._deepest is None else min(depth, self._deepest)
        source = self.source(depth) if depth > 0 else None
        if source is None:
            return Draft.deterministic(DraftTree.chain(tokens[-1:]))
        growing = Growing(
            source=source,
            tokens=tuple(tokens),
            rng=rng,
            depth=depth,
            warp=warp,
            confidence=self.confidence,
            drawn=self.drawn and warp.temperature > 0,
        )
        return growing.grow(self.shape)
