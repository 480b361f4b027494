"""What a draft model would have accepted, computed from text instead of by decoding.

Owns: the replay of chain drafts over known greedy text.
Does not know: models.
Invariants: exact for greedy chains of a draft model that reads tokens only. Up to the first wrong
guess such a chain has seen the target's own text, so guessing every position from the true prefix
tells all that a live decode would.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Acceptance:
    """How often drafts are right.

    Attributes:
        first: share of all positions whose token was guessed from the true prefix.
        by_depth: share accepted among drafts that were reached, first to last of the chain.
        mean_accepted_length: committed tokens / rounds, the target's own token included.
    """

    first: float
    by_depth: tuple[float, ...]
    mean_accepted_length: float


def replay_chains(hits: Sequence[Sequence[bool]], *, depth: int) -> Acceptance:
    """Pool rounds of ``depth`` drafts over texts.

    Args:
        hits: per text, for each position, whether the draft's guess there is the target's token.
        depth: drafts per round. A text's last round is cut where the text ends.

    One text, depth 2 (| ends a round; a round commits its accepted drafts and one token more):

        hits      1 1 0 | 0 | 1 0 | 1
        accepted  2       0   1     1
        tokens    3       1   2     1
    """
    tried, accepted = [0] * depth, [0] * depth
    tokens = rounds = 0
    for text in hits:
        at = 0
        while at < len(text):
            run = 0
            while run < depth and at + run < len(text):
                tried[run] += 1
                if not text[at + run]:
                    break
                accepted[run] += 1
                run += 1
            step = min(run + 1, len(text) - at)
            at, tokens, rounds = at + step, tokens + step, rounds + 1
    return Acceptance(
        first=sum(map(sum, hits)) / max(1, sum(map(len, hits))),
        by_depth=tuple(a / max(1, t) for a, t in zip(accepted, tried, strict=True)),
        mean_accepted_length=tokens / max(1, rounds),
    )
