"""Prompt lookup: what followed the last few tokens when they stood in the text before?

Source: Saxena 2023, "Prompt Lookup Decoding". Owns: an index of the text's n-grams.
Does not know: any model. Costs no forward. Deterministic: judged as one-hot.
"""

from collections.abc import Sequence

from labkit.draft import Draft
from labkit.drafters.base import Commit, Drafter
from labkit.errors import BadInput
from labkit.sampling import Rng, Warp
from labkit.tree import DraftTree


class NGram(Drafter):
    """Copies the continuation of the most recent earlier occurrence of the longest suffix.

        text     the cat sat . the cat
        suffix                 the cat  ->  seen before, followed by:  sat .

    Args:
        longest: suffix length tried first; then one shorter, down to ``shortest``.
    """

    name = "ngram"

    def __init__(self, *, longest: int = 3, shortest: int = 1) -> None:
        if not 1 <= shortest <= longest:
            raise BadInput(
                "n-gram lengths",
                expected="1 <= shortest <= longest",
                got=f"shortest {shortest}, longest {longest}",
                next_step="change longest or shortest",
            )
        self._lengths = tuple(range(longest, shortest - 1, -1))
        self.reset()

    @property
    def context_limit(self) -> int | None:
        return None

    def reset(self) -> None:
        self._read = 0  # tokens indexed so far
        self._ends: dict[tuple[int, ...], tuple[int, int]] = {}  # gram -> last two ends

    def propose(self, tokens: Sequence[int], rng: Rng, *, depth: int, warp: Warp) -> Draft:
        self._index(tokens)
        guess: Sequence[int] = ()
        for n in self._lengths:
            before, _ = self._ends.get(tuple(tokens[-n:]), (0, 0))
            if before:
                guess = tokens[before : before + depth]
                break
        return Draft.deterministic(DraftTree.chain((tokens[-1], *guess)))

    def _index(self, tokens: Sequence[int]) -> None:
        for end in range(self._read + 1, len(tokens) + 1):
            for n in self._lengths:
                if n <= end:
                    gram = tuple(tokens[end - n : end])
                    self._ends[gram] = (self._ends.get(gram, (0, 0))[1], end)
        self._read = len(tokens)

    def observe(self, commit: Commit) -> None:
        pass

    def forget(self) -> None:
        pass
