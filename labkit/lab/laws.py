"""The law of one round, enumerated exactly: what learners compare accept rules by.

Owns: the experiment (draw one draft token, verify it, look at the first token that stays).
Does not know: who is right.
Invariants: nothing is sampled; the numbers are exact up to float64 rounding.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.draft import Draft
from labkit.errors import BadInput
from labkit.law import exact_law
from labkit.sampling import Rng
from labkit.trace import Trace
from labkit.tree import DraftTree
from labkit.verify import Verdict

Verifier = Callable[[Draft, Tensor, Rng], Verdict]


def first_token(
    verifier: Verifier, *, p: Sequence[float], q: Sequence[float], argmax_draft: bool = False
) -> list[float]:
    """The law of the first token that a round adds to the text.

    Args:
        verifier: called like `labkit.verify.verify`.
        p: the target's distribution over V tokens; q: the drafter's.
        argmax_draft: the drafter proposes its likeliest token, yet q is handed over as if the
            token had been drawn from it.

    Returns:
        V probabilities. A right verifier gives p, whatever q.
    """
    target, drafter = _distribution("p", p), _distribution("q", q)
    if len(target) != len(drafter):
        raise BadInput(
            "q",
            expected=f"{len(target)} probabilities, as many as p",
            got=str(len(drafter)),
            next_step="give both over the same tokens",
        )
    rows = torch.stack([target, target])

    def one_round(rng: Rng) -> int:
        token = int(drafter.argmax()) if argmax_draft else int(rng.pick(drafter))
        draft = Draft(DraftTree.chain((0, token)), (None, drafter))
        verdict = verifier(draft, rows, rng)
        return token if len(verdict.path) > 1 else verdict.next_token

    law = exact_law(one_round)
    return [law.get(token, 0.0) for token in range(len(target))]


def largest_gap(left: Sequence[float], right: Sequence[float]) -> float:
    """The largest difference between the probabilities of two laws over the same tokens."""
    return max(abs(a - b) for a, b in zip(left, right, strict=True))


@dataclass(frozen=True, slots=True)
class Pair:
    """p and q at one place of a real run, over the same tokens. tokens: their ids."""

    tokens: tuple[int, ...]
    p: tuple[float, ...]
    q: tuple[float, ...]


def real_pair(trace: Trace, *, number: int) -> Pair:
    """p and q of the first drafted token of round ``number`` of a recorded run.

    The run must hold whole distributions: recorded at full detail, temperature above 0, top_k no
    larger than ``top``.

    Raises:
        BadInput: there is no such round, or it holds no whole distributions.
    """
    rounds = [r for r in trace.rounds if r.index == number]
    scored = rounds[0].scored if rounds else None
    if not rounds or not scored or not scored.p_top or len(rounds[0].drafted.q_top) < 2:
        raise BadInput(
            f"round {number}",
            expected='a round with a draft, recorded with detail="full"',
            got="none" if not rounds else "a round without distributions",
            next_step="choose another round, or record with temperature=1, top_k=5",
        )
    p, q = dict(scored.p_top[0]), dict(rounds[0].drafted.q_top[1])
    for name, side in (("p", p), ("q", q)):
        if abs(sum(side.values()) - 1) > 1e-3:
            raise BadInput(
                f"{name} of round {number}",
                expected="all of its mass",
                got=f"{sum(side.values()):.3f} of it",
                next_step="record with top_k=5, so that the few likeliest tokens are all there are",
            )
    tokens = tuple(sorted(p.keys() | q.keys(), key=lambda t: (-p.get(t, 0.0), -q.get(t, 0.0), t)))
    return Pair(tokens, _normalised(p, tokens), _normalised(q, tokens))


def _normalised(side: dict[int, float], tokens: Sequence[int]) -> tuple[float, ...]:
    """Over ``tokens``; recorded numbers have few digits, so their sum is brought back to 1."""
    whole = sum(side.values())
    return tuple(side.get(token, 0.0) / whole for token in tokens)


def _distribution(name: str, values: Sequence[float]) -> Tensor:
    row = torch.tensor(list(values), dtype=torch.float64)
    if row.ndim != 1 or not len(row) or bool((row < 0).any()) or abs(float(row.sum()) - 1) > 1e-6:
        raise BadInput(
            name,
            expected="probabilities of 0 or more that sum to 1",
            got=str([round(v, 4) for v in row.tolist()]),
            next_step=f"change {name}",
        )
    return row
