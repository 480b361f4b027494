"""Published and hand-made numbers; a run made of written events, no model."""

from statistics import stdev

import pytest

from labkit.cost import Budget, expected_tokens, round_speedup, speedup, verdict
from labkit.errors import BadInput
from labkit.events import Committed, Drafted, Event, Finished, Prefilled, Scored, Started, Verified
from labkit.metrics import Acceptance, acceptance, cost, hedged
from labkit.trace import Trace


def run_of(*accepted: int, drafted: int = 4) -> Trace:
    """A run whose rounds drafted ``drafted`` tokens and accepted these many."""
    events: list[Event] = [
        Started(round=0, method="toy", prompt=(1,), max_new_tokens=99, draft_length=drafted),
        Prefilled(round=0, tokens=0, seconds=4.0, forwards=1, forward_seconds=4.0),
    ]
    for number, count in enumerate(accepted, start=1):
        ids = tuple(range(drafted + 1))
        events += [
            Drafted(
                round=number,
                tokens=ids,
                parents=tuple(i - 1 for i in ids),
                deterministic=True,
                limit=drafted,
                seconds=1.0,
                forwards=drafted,
                forward_seconds=0.75,
            ),
            Scored(
                round=number,
                node_slots=ids,
                context=0,
                seconds=2.0,
                forwards=1,
                forward_seconds=1.75,
            ),
            Verified(
                round=number, path=ids[: count + 1], next_token=9, resampled=True, seconds=0.5
            ),
            Committed(
                round=number,
                tokens=(*ids[1 : count + 1], 9),
                sources=("draft",) * count + ("target",),
                seconds=0.5,
            ),
        ]
    return Trace((*events, Finished(round=len(accepted), reason="eos", new_tokens=0)))


def test_acceptance_is_a_prefix_count() -> None:
    """Of the drafts 1 0 1 0 only the first counts: what follows a rejection is never accepted."""
    counted = acceptance(run_of(1))
    assert (counted.accepted, counted.rate, counted.committed) == (1, 0.25, 2)
    assert counted.by_position == (1.0, 0.0, 0.0, 0.0)


def test_counts_from_a_histogram() -> None:
    counted = Acceptance.from_histogram([39, 1, 0, 3], draft_length=3)
    assert (counted.rounds, counted.drafted, counted.accepted) == (43, 129, 10)
    assert counted.rate == pytest.approx(0.0775, abs=5e-5)
    assert counted.mean_accepted_length == pytest.approx(1.2326, abs=5e-5)
    assert counted.by_position == pytest.approx((0.0930, 0.0698, 0.0698), abs=5e-5)


def test_counts_from_a_run_equal_those_from_its_histogram() -> None:
    run = run_of(*[0] * 39, 1, 3, 3, 3, drafted=3)
    assert acceptance(run) == Acceptance.from_histogram([39, 1, 0, 3], draft_length=3)


def test_accepted_and_committed_are_two_numbers() -> None:
    counted = Acceptance.from_histogram([0, 5, 0], draft_length=2)
    assert counted.accepted_per_round == 1.0
    assert counted.mean_accepted_length == 2.0


def test_nothing_drafted_has_no_rate() -> None:
    counted = acceptance(run_of(0, 0, drafted=0))
    assert counted.rate is None
    assert counted.mean_accepted_length == 1.0
    assert counted.drafted_per_round == 0
    nothing = acceptance()
    assert nothing.rate is nothing.mean_accepted_length is nothing.accepted_per_round is None
    assert nothing.by_position == ()


def test_runs_are_pooled_not_averaged() -> None:
    both = acceptance(run_of(4, 4, 4), run_of(0))
    assert both.rate == 12 / 16  # the mean of the two rates would be 1/2
    assert both.mean_accepted_length == (15 + 1) / 4


def test_the_standard_error_is_that_of_a_mean() -> None:
    """Against the statistics module, and the closed form for a coin: sqrt(p (1 - p) / (n - 1))."""
    counted = acceptance(run_of(0, 3, 1, 4, 4, 2))
    accepted = [0, 3, 1, 4, 4, 2]
    assert counted.standard_error == pytest.approx(stdev(accepted) / 6**0.5)
    coin = Acceptance.from_histogram([30, 70], draft_length=1)
    assert coin.standard_error == pytest.approx((0.3 * 0.7 / 99) ** 0.5)
    assert acceptance(run_of(2)).standard_error is None
    assert acceptance().standard_error is None


def test_hedged_counts_accepted_nodes_that_came_second() -> None:
    """Nodes 1 2 below the root, 3 4 below node 2: the path 0 2 3 holds one that is not the first
    child (2), the path 0 2 4 two."""
    tree = Drafted(
        round=1, tokens=(9, 1, 2, 3, 4), parents=(-1, 0, 0, 2, 2), deterministic=True, limit=2
    )
    started = run_of().events[0]
    for path, count in [((0, 2, 3), 1), ((0, 2, 4), 2), ((0, 1), 0), ((0,), 0)]:
        judged = Verified(round=1, path=path, next_token=7, resampled=True)
        assert hedged(Trace((started, tree, judged))) == count
    assert hedged(run_of(4, 4)) == 0, "a chain never hedges"


def test_a_round_that_was_cut_short_is_not_counted() -> None:
    whole = run_of(2, 3)
    cut = Trace(whole.events[:-2])  # no Committed in the second round
    assert acceptance(cut) == acceptance(run_of(2))


def test_cost_of_a_run() -> None:
    spent = cost(run_of(2, 3))
    assert (spent.prefill, spent.draft, spent.score, spent.verify, spent.commit) == (4, 2, 4, 1, 1)
    assert spent.decode == 8
    assert spent.inside == 5
    assert spent.outside_forwards == 3 / 8
    assert (spent.target_forwards, spent.draft_forwards) == (3, 8)


def test_cost_of_nothing_has_no_share() -> None:
    assert cost().outside_forwards is None


@pytest.mark.parametrize(
    ("alpha", "draft_length", "ratio", "speed", "words"),
    [(0.8, 4, 0.1, 2.40, "faster"), (0.3, 4, 0.3, 0.65, "slower"), (0.0, 0, 0.0, 1.0, "no gain")],
)
def test_the_speed_up_model(
    alpha: float, draft_length: int, ratio: float, speed: float, words: str
) -> None:
    told = speedup(alpha=alpha, draft_length=draft_length, cost_ratio=ratio)
    assert told == pytest.approx(speed, abs=5e-3)
    assert words in verdict(told)


def test_rounds_of_any_shape_are_worth_what_chains_are() -> None:
    """A chain of K is a round that drafts K steps; and by hand: 3 tokens for 2 steps is 1.5."""
    chain = speedup(alpha=0.6, draft_length=3, cost_ratio=0.2, verify_ratio=1.3)
    tokens = expected_tokens(alpha=0.6, draft_length=3)
    assert round_speedup(tokens=tokens, draft=0.6, verify=1.3) == pytest.approx(chain)
    assert round_speedup(tokens=3.0, draft=0.5, verify=1.5) == 1.5
    with pytest.raises(BadInput, match="verify"):
        round_speedup(tokens=1.0, draft=0.1, verify=0.0)


def test_the_fastest_size_is_not_the_one_that_adds_most() -> None:
    """By hand: 1.5 / 1.2 = 1.25, 2 / 1.6 = 1.25, 2.5 / 2.5 = 1; of equals the smaller one."""
    draft, verify = {1: 0.2, 3: 0.4, 9: 0.5}, {1: 1.0, 3: 1.2, 9: 2.0}
    budget = Budget({1: 1.5, 3: 2.0, 9: 2.5}, draft, verify)
    assert budget.speed == pytest.approx({1: 1.25, 3: 1.25, 9: 1.0})
    assert budget.price == pytest.approx({1: 1.2, 3: 1.6, 9: 2.5})
    assert (budget.most, budget.fastest) == (9, 1)
    for tokens in {}, {1: 1.0}:
        with pytest.raises(BadInput, match="the same numbers of nodes"):
            Budget(tokens, draft, verify)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.99])
def test_expected_tokens_is_the_published_closed_form(alpha: float) -> None:
    """Leviathan et al. 2023, equation 1."""
    closed = (1 - alpha**5) / (1 - alpha)
    assert expected_tokens(alpha=alpha, draft_length=4) == pytest.approx(closed)


def test_expected_tokens_when_everything_is_accepted() -> None:
    assert expected_tokens(alpha=1.0, draft_length=4) == 5


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"alpha": 1.1}, "alpha"),
        ({"draft_length": -1}, "draft_length"),
        ({"cost_ratio": -1}, "cost_ratio"),
    ],
)
def test_impossible_inputs_are_refused_by_name(change: dict[str, float], named: str) -> None:
    with pytest.raises(BadInput, match=named):
        speedup(**{"alpha": 0.5, "draft_length": 4, "cost_ratio": 0.1} | change)
