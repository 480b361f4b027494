"""The drafter that never drafts: speculative decoding without it is autoregressive decoding."""

from collections.abc import Sequence

from labkit.draft import Draft
from labkit.drafters.base import Commit, Drafter
from labkit.sampling import Rng, Warp
from labkit.tree import DraftTree


class Nothing(Drafter):
    """Proposes the pending token alone, so that each round yields the target's own next token."""

    name = "ar"

    @property
    def context_limit(self) -> int | None:
        return None

    def reset(self) -> None:
        pass

    def propose(self, tokens: Sequence[int], rng: Rng, *, depth: int, warp: Warp) -> Draft:
        return Draft.deterministic(DraftTree(tuple(tokens[-1:]), (-1,)))

    def observe(self, commit: Commit) -> None:
        pass

    def forget(self) -> None:
        pass
