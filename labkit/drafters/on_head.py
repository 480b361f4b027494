"""A drafter with a head on the target's states, whatever kind of head.

Owns: how a draft begins, and the settings that all of them have.
Does not know: what a head reads and remembers, how a draft grows, the target, the accept rule.
Invariants: a draft begins after all that was committed, and after nothing else.
"""

from collections.abc import Sequence
from typing import Any, Protocol, final

import torch

from labkit.config import check_confidence
from labkit.draft import Draft
from labkit.drafters.base import Commit, Drafter
from labkit.drafters.feeding import Source
from labkit.drafters.growing import Growing
from labkit.drafters.shapes import Chain, Shape
from labkit.sampling import Rng, Warp
from labkit.tree import DraftTree


class Reader(Protocol):
    """What a head has read of the text. Committed tokens stand in it with the target's states.

    needs: as of `Drafter`. deepest: most tokens that the head guesses in a row; None: any number.
    length: how much of the committed text it remembers.
    """

    @property
    def head(self) -> Any: ...
    @property
    def needs(self) -> tuple[str, ...]: ...
    @property
    def deepest(self) -> int | None: ...
    @property
    def length(self) -> int: ...

    def reset(self) -> None:
        """A new sequence begins: forget everything."""
        ...

    def observe(self, commit: Commit) -> None:
        """The text grew."""
        ...

    def forget(self) -> None:
        """Drop whatever was guessed since the last `observe`."""
        ...

    def source(self, depth: int) -> Source | None:
        """What a draft of ``depth`` grows from, once the head has read all that waits for it; None
        before there is anything to guess from."""
        ...


@final
class HeadDrafter(Drafter):
    """Drafts from what a head has read.

    At temperature 0 every token is judged as one-hot. Above it, chains and static trees are drawn
    from the head's own distribution under the same warp (siblings without replacement), and that
    is their q; a dynamic tree takes its likeliest tokens whatever the temperature and is judged
    as one-hot: choosing among drawn tokens by their probability would change their law.

    Args:
        reader: of a head in evaluation mode, on the target's device.
        name: what traces call it.
        shape: `Chain`, `StaticTree` or `DynamicTree`.
        confidence: stop drafting where the product of the head's own largest probabilities falls
            below this (0: never); costs one read from the device per depth.
        drawn: False makes chains and static trees deterministic at every temperature.
    """

    def __init__(
        self,
        reader: Reader,
        *,
        name: str,
        shape: Shape | None = None,
        confidence: float = 0.0,
        drawn: bool = True,
    ) -> None:
        check_confidence(confidence)
        self.reader, self.name = reader, name
        self.needs = reader.needs
        self.shape: Shape = shape or Chain()
        self.confidence, self.drawn = confidence, drawn

    @property
    def head(self) -> Any:
        """The module that guesses."""
        return self.reader.head

    @property
    def context_limit(self) -> int | None:
        return None  # rotary positions go on beyond those it was trained on

    def reset(self) -> None:
        self.reader.reset()

    @torch.inference_mode()
    def observe(self, commit: Commit) -> None:
        self.reader.observe(commit)

    def forget(self) -> None:
        self.reader.forget()

    @torch.inference_mode()
    def propose(self, tokens: Sequence[int], rng: Rng, *, depth: int, warp: Warp) -> Draft:
        self.forget()  # guesses of a draft that nobody judged
        deepest = self.reader.deepest
        depth = depth if deepest is None else min(depth, deepest)
        source = self.reader.source(depth) if depth > 0 else None
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
