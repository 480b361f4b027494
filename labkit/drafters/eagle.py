"""A head on the target's hidden states that drafts: EAGLE-1, 2, 3 and 3.1.

Owns: the head's cache, and the pairs that wait to be read into it.
Does not know: which version the head is, how a draft grows, the target, the accept rule.
Invariants: whatever is committed stands in the head's cache with the target's true states, never
with the head's own guesses at them; guesses are forgotten by `observe` and `forget`.

    committed    x0  x1  x2  x3       states of the target   f0  f1  f2
    pairs        (f0,x1) (f1,x2) (f2,x3)                     read once, with true states
    guesses      x4 from the last pair; then (own state, x4) gives x5, and so on
"""

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from labkit.config import check_confidence
from labkit.draft import Draft
from labkit.drafters.base import Commit, Drafter
from labkit.drafters.feeding import Recursive
from labkit.drafters.growing import Growing
from labkit.drafters.shapes import Chain, Shape
from labkit.heads.eagle import EagleHead, HeadStep
from labkit.sampling import Rng, Warp
from labkit.tree import DraftTree


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
        self._clock = clock
        self.reset()

    @property
    def context_limit(self) -> int | None:
        return None  # rotary positions go on beyond those it was trained on

    @property
    def length(self) -> int:
        """Pairs in the head's cache."""
        return self._kv[0].length

    @property
    def true_length(self) -> int:
        """Pairs in the head's cache that are committed, with the target's own states."""
        return self._true

    def reset(self) -> None:
        self._kv = self.head.cache()
        self._first = True  # the prompt's own first token has no state before it
        self._waiting: list[tuple[Sequence[int], list[Tensor]]] = []  # ids and states [m, Ht] each
        self._true = 0
        self._last: HeadStep | None = None  # of the last committed pair, [1, H] each

    @torch.inference_mode()
    def observe(self, commit: Commit) -> None:
        self.forget()
        ids = commit.tokens[1:] if self._first else commit.tokens
        self._first = False
        if ids:
            self._waiting.append((ids, [commit.hidden[name] for name in self.needs]))

    def forget(self) -> None:
        for kv in self._kv:
            kv.truncate(min(self._true, kv.length))

    @torch.inference_mode()
    def propose(self, tokens: Sequence[int], rng: Rng, *, depth: int, warp: Warp) -> Draft:
        self.forget()  # guesses of a draft that nobody judged
        if depth < 1 or not (self._waiting or self._last):
            return Draft.deterministic(DraftTree.chain(tokens[-1:]))
        before = self._clock()
        forwards = self._catch_up()
        assert self._last is not None
        source = Recursive(
            head=self.head,
            vocab_size=self.head.config.vocab_size,
            kv=self._kv,
            true=self._true,
            last=self._last,
            forwards=forwards,
            inside=self._clock() - before,
            clock=self._clock,
        )
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

    def _catch_up(self) -> int:
        """Read the pairs that wait, with their true states; forwards spent."""
        if not self._waiting:
            return 0
        head, start = self.head, self._true
        ids = [i for some, _ in self._waiting for i in some]
        states = [
            torch.cat(rows).to(head.dtype)
            for rows in zip(*(s for _, s in self._waiting), strict=True)
        ]
        n, device = len(ids), head.device
        mask = torch.ones(n, start + n, dtype=torch.bool, device=device).tril_(start)
        step = head(
            torch.tensor([ids], device=device),
            head.fuse(states)[None],
            positions=torch.arange(start, start + n, device=device)[None],
            kv=self._kv,
            mask=mask if n > 1 else None,
        )
        self._last = HeadStep(step.recycled[0, -1:], step.normed[0, -1:])
        # until this line an interrupt leaves the pairs waiting, and the rows to be truncated
        self._true, self._waiting = start + n, []
        return 1
