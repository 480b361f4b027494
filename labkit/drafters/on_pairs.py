"""A drafter over committed pairs, whatever head reads them.

Owns: what EAGLE heads and multi-token prediction modules have in common.
Does not know: which head it is, how a draft grows, the target, the accept rule.
Invariants: those of `Pairs`: whatever is committed stands in the head's caches with the target's
true states; guesses are forgotten by `observe` and `forget`.
"""

import time
from collections.abc import Callable
from typing import Any

import torch

from labkit.drafters.base import Commit
from labkit.drafters.feeding import Source
from labkit.drafters.on_head import OnHead
from labkit.drafters.pairs import Pairs


class OnPairs(OnHead):
    """Drafts with one head on pairs of a state and a token.

    Args:
        head: in evaluation mode, on the target's device; see `labkit.drafters.pairs.Head`.
        name: what traces call it.
        clock: seconds; on a device that works asynchronously, one that waits for it.
        settings: as of `OnHead`.
    """

    def __init__(
        self,
        head: Any,
        *,
        name: str,
        clock: Callable[[], float] = time.perf_counter,
        **settings: Any,
    ) -> None:
        super().__init__(head, name=name, **settings)
        self.pairs = Pairs(head, clock=clock)

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

    def source(self, depth: int) -> Source | None:
        return self.pairs.source()
