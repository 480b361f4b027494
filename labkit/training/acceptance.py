"""What a draft model would have accepted, computed from text instead of by decoding.

Owns: the replay of chain drafts over known greedy text.
Does not know: models.
Invariants: exact for greedy chains. Up to the first wrong guess such a chain has seen the target's
own text, so guesses made along the true text tell all that a live decode would: one per position
for a draft model that reads tokens only, one chain per position for a head that reads states.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Replayed:
    """How often drafts are right.

    Attributes:
        first: share of all positions whose token was guessed from the true prefix.
        by_depth: share accepted among drafts that were reached, first to last of the chain.
        mean_accepted_length: committed tokens / rounds, the target's own token included.
    """

    first: float
    by_depth: tuple[float, ...]
    mean_accepted_length: float


def replay_chains(hits: Sequence[Sequence[bool]], *, depth: int) -> Replayed:
    """Pool rounds of ``depth`` drafts over texts.

    Args:
        hits: per text, for each position, whether the draft's guess there is the target's token.
        depth: drafts per round. A text's last round is cut where the text ends.

    One text, depth 2 (| ends a round; a round commits its accepted drafts and one token more):

        hits      1 1 0 | 0 | 1 0 | 1
        accepted  2       0   1     1
        tokens    3       1   2     1
    """
    runs = [[_leading(text[at : at + depth]) for at in range(len(text))] for text in hits]
    return replay_runs(runs, depth=depth)


def replay_runs(runs: Sequence[Sequence[int]], *, depth: int) -> Replayed:
    """The same from run lengths, for drafts whose guesses depend on where their chain began.

    Args:
        runs: per text, for each position, how many drafts of a chain that starts there are right
            before the first wrong one; more than ``depth``, or than are left, count as that many.
    """
    tried, accepted = [0] * depth, [0] * depth
    tokens = rounds = 0
    for text in runs:
        at = 0
        while at < len(text):
            room = min(depth, len(text) - at)
            run = min(text[at], room)
            for level in range(min(run + 1, room)):
                tried[level] += 1
                accepted[level] += level < run
            step = min(run + 1, len(text) - at)
            at, tokens, rounds = at + step, tokens + step, rounds + 1
    return Replayed(
        first=sum(run > 0 for text in runs for run in text) / max(1, sum(map(len, runs))),
        by_depth=tuple(a / max(1, t) for a, t in zip(accepted, tried, strict=True)),
        mean_accepted_length=tokens / max(1, rounds),
    )


def _leading(hits: Sequence[bool]) -> int:
    return next((n for n, hit in enumerate(hits) if not hit), len(hits))
