"""A person who drafts: offers what was typed, for as long as the text goes that way.

Owns: the words on offer. Does not know: tokenizers, widgets, the target.
Invariants: costs no forward; judged as one-hot, since nobody knows what a person's words were
drawn from; an offer belongs to one text, and is made behind no other.
"""

from collections.abc import Sequence

from labkit.draft import Draft
from labkit.drafters.base import Commit, Drafter
from labkit.sampling import Rng, Warp
from labkit.tree import DraftTree


class Human(Drafter):
    """Offers a chain of tokens from one place of the text on.

        you = Human()
        you.offer(text, guess)                  # token ids both; the guess follows the text
        speculate(target, you, text, config=DecodeConfig(draft_length=8))

        text      the sky is            offered   blue because of light
        round 1   drafts  blue because  K = 2     both stay, and the target adds  of
        round 2   drafts  light                   the text went the same way so far

    A person who has nothing on offer drafts nothing, and the target writes its next token alone.
    """

    name = "human"

    def __init__(self) -> None:
        self._after: tuple[int, ...] = ()
        self._guess: tuple[int, ...] = ()

    @property
    def context_limit(self) -> int | None:
        return None

    def offer(self, after: Sequence[int], guess: Sequence[int]) -> None:
        """Put ``guess`` on offer, to follow the whole text ``after``. The last offer counts."""
        self._after, self._guess = tuple(after), tuple(guess)

    def reset(self) -> None:
        pass  # the offer is good for its text, whoever reads that again

    def propose(self, tokens: Sequence[int], rng: Rng, *, depth: int, warp: Warp) -> Draft:
        return Draft.deterministic(DraftTree.chain((tokens[-1], *self._left(tokens)[:depth])))

    def _left(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """What is left of the offer, if the text has gone its way."""
        start = len(self._after)
        written = tuple(tokens[start:])
        follows = tuple(tokens[:start]) == self._after and written == self._guess[: len(written)]
        return self._guess[len(written) :] if follows else ()

    def observe(self, commit: Commit) -> None:
        pass

    def forget(self) -> None:
        pass
