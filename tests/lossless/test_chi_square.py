"""The sampled path with `TorchRng`, from seeds to tokens, against the exact law.

Sampling can miss what enumeration (test_law.py) cannot, so this only guards the generator path: the
order of draws, drawing ahead, seeds. Each test states how often a right engine would fail it.
"""

import itertools
from collections import Counter
from typing import Any

import pytest
import torch
from helpers import run
from mutants import MUTANTS
from scipy import stats

from labkit.drafters.draft_model import DraftModel
from labkit.sampling import TorchRng
from labkit.target import Target
from labkit.toy import TableModel, random_table
from labkit.verify import Verdict

V, RUNS, FALSE_ALARM = 3, 900, 1e-6
P = random_table(V, seed=1, sharpness=1.5)
Q = random_table(V, seed=2, sharpness=1.5)
START = 0


def p_value(*, ahead: bool) -> float:
    """Pearson's chi-square of the first three tokens of RUNS runs against their law."""
    target, drafter = Target(TableModel(P)), DraftModel(TableModel(Q), vocab_size=V)
    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(RUNS):
        trace = run(
            target,
            drafter,
            (START,),
            rng=TorchRng(seed, ahead=ahead),
            temperature=1.0,
            draft_length=2,
            max_new_tokens=3,
            detail="timing",
        )
        counts[trace.tokens] += 1
    texts = list(itertools.product(range(V), repeat=3))
    law = [float(P[START, a] * P[a, b] * P[b, c]) for a, b, c in texts]
    return float(stats.chisquare([counts[t] for t in texts], [RUNS * mass for mass in law]).pvalue)


@pytest.mark.parametrize("ahead", [False, True])
def test_sampled_texts_follow_the_law(ahead: bool) -> None:
    """27 texts, 900 seeds; false alarm 1e-6 over choices of seeds, and these are fixed."""
    assert p_value(ahead=ahead) > FALSE_ALARM


@pytest.mark.parametrize("name", ["always accept", "p and q swapped"])
def test_broken_rules_are_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative controls: the same numbers of runs are enough to tell."""

    def broken(draft: Any, p: torch.Tensor, rng: Any) -> Verdict:
        tokens = MUTANTS[name](draft, p, rng)
        return Verdict(tuple(range(len(tokens))), tokens[-1], (), p[len(tokens) - 1])

    monkeypatch.setattr("labkit.decode.verify", broken)
    assert p_value(ahead=False) < FALSE_ALARM
