"""The sampled path with `TorchRng`, from seeds to tokens, against the exact law.

Sampling can miss what enumeration (test_law.py) cannot, so this only guards the generator path: the
order of draws, drawing ahead, seeds. Each test states how often a right engine would fail it, and
how often a wrong one would pass.
"""

import itertools
from collections import Counter
from typing import Any

import pytest
import torch
from helpers import CPU, run
from mutants import MUTANTS, RIGHT, in_the_engine
from odds import missed, p_value

from labkit.draft import Draft
from labkit.drafters.draft_model import DraftModel
from labkit.law import distance, exact_law
from labkit.sampling import Rng, TorchRng
from labkit.target import Target
from labkit.toy import TableModel
from labkit.tree import DraftTree

V, RUNS, FALSE_ALARM = 3, 900, 1e-6
START, DEPTH, LENGTH = 0, 2, 3
Text = tuple[int, ...]
# The draft is nearly sure of a token that the target takes half the time: no rule is further from
# the right one when it is wrong, and accepting and rejecting are both common.
P = torch.tensor([[0.25, 0.50, 0.25], [0.25, 0.25, 0.50], [0.50, 0.20, 0.30]], dtype=torch.float64)
Q = torch.tensor([[0.02, 0.96, 0.02], [0.03, 0.01, 0.96], [0.96, 0.01, 0.03]], dtype=torch.float64)
LAW: dict[Text, float] = {
    (a, b, c): float(P[START, a] * P[a, b] * P[b, c])
    for a, b, c in itertools.product(range(V), repeat=LENGTH)
}
# Seeds that are enough to notice each wrong rule, of the 900.
WRONG = {"always accept": 100, "p and q swapped": 100, "residual replaced by p": 300}


class Engine:
    """Target and drafter over the two tables, made once for all seeds."""

    def __init__(self, device: torch.device) -> None:
        self.target = Target(TableModel(P).to(device))
        self.drafter = DraftModel(TableModel(Q).to(device), vocab_size=V)

    def text(self, seed: int, *, ahead: bool = False) -> Text:
        return run(
            self.target,
            self.drafter,
            (START,),
            rng=TorchRng(seed, ahead=ahead),
            temperature=1.0,
            draft_length=DEPTH,
            max_new_tokens=LENGTH,
            detail="timing",
        ).tokens

    def counts(self, seeds: int) -> Counter[Text]:
        return Counter(self.text(seed) for seed in range(seeds))


def test_sampled_texts_follow_the_law(device: torch.device) -> None:
    """27 texts, 900 seeds; false alarm 1e-6 over choices of seeds, and these are fixed."""
    assert p_value(Engine(device).counts(RUNS), LAW) > FALSE_ALARM


def test_drawing_ahead_gives_the_same_texts(device: torch.device) -> None:
    """Seed by seed, so the law is the same too."""
    engine = Engine(device)
    seeds = range(200)
    texts = [engine.text(seed) for seed in seeds]
    assert [engine.text(seed, ahead=True) for seed in seeds] == texts
    assert len(set(texts)) > 15


def by_hand(judge: Any, rng: Rng) -> Text:
    """What the engine does, over the two tables and without it: rounds of ``judge``."""
    text: list[int] = [START]
    while (left := LENGTH + 1 - len(text)) > 0:
        ids = [text[-1]]
        for _ in range(min(DEPTH, left - 1)):
            ids.append(int(rng.pick(Q[ids[-1]])))
        draft = Draft(DraftTree.chain(ids), (None, *(Q[i] for i in ids[:-1])))
        text += judge(draft, P[ids], rng)
    return tuple(text[1:])


@pytest.mark.parametrize("name", WRONG)
def test_broken_rules_are_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative controls. By the law that the rule really has, fewer than one choice of 900 seeds
    in a million would let it pass; and it does not pass with the seeds above, nor with a part."""
    wrong = exact_law(lambda rng: by_hand(MUTANTS[name], rng))
    assert missed(wrong, LAW, runs=RUNS, alarm=FALSE_ALARM) < 1e-6
    monkeypatch.setattr("labkit.decode.verify", in_the_engine(name))
    assert p_value(Engine(CPU).counts(WRONG[name]), LAW) < FALSE_ALARM


def test_the_bound_says_nothing_of_the_right_rule() -> None:
    right = exact_law(lambda rng: by_hand(RIGHT, rng))
    assert distance(right, LAW) < 1e-12
    assert missed(right, LAW, runs=RUNS, alarm=FALSE_ALARM) > 0.99
