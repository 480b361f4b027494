"""Own warps against transformers' own; processors at the right prefix; draws against their law."""

import itertools
from typing import Any

import pytest
import torch
import transformers
from scipy import stats
from torch import Tensor

from labkit.config import DecodeConfig
from labkit.errors import BadInput
from labkit.sampling import TorchRng, Warp

V = 40


def theirs(
    logits: Tensor, ids: Tensor, *, penalty: float, t: float, k: int, top_p: float, min_p: float
) -> Tensor:
    """transformers' processors and warpers in the order in which `generate` applies them."""
    steps: list[Any] = []
    if penalty != 1:
        steps.append(transformers.RepetitionPenaltyLogitsProcessor(penalty))
    steps.append(transformers.TemperatureLogitsWarper(t))
    if k:
        steps.append(transformers.TopKLogitsWarper(k))
    if top_p < 1:
        steps.append(transformers.TopPLogitsWarper(top_p))
    if min_p > 0:
        steps.append(transformers.MinPLogitsWarper(min_p))
    scores = logits.clone()
    for step in steps:
        scores = step(ids, scores)
    return torch.softmax(scores, -1)


GRID = list(
    itertools.product(
        (1.0, 1.7), (0.3, 1.0, 2.5), (0, 1, 5, V + 3), (0.2, 0.9, 1.0), (0.0, 0.1, 0.6)
    )
)


def worst_gap(make: Any) -> float:
    """Largest difference to transformers over the whole grid of settings."""
    generator = torch.Generator().manual_seed(3)
    gaps = []
    for penalty, t, k, top_p, min_p in GRID:
        logits = 3 * torch.randn(4, V, generator=generator, dtype=torch.float64)
        ids = torch.randint(V, (4, 6), generator=generator)
        config = DecodeConfig(
            repetition_penalty=penalty, temperature=t, top_k=k, top_p=top_p, min_p=min_p
        )
        ours = make(config)(logits, ids.tolist())
        gaps.append(
            (ours - theirs(logits, ids, penalty=penalty, t=t, k=k, top_p=top_p, min_p=min_p))
            .abs()
            .max()
            .item()
        )
    return max(gaps)


def test_warps_equal_those_of_transformers() -> None:
    assert worst_gap(Warp.from_config) < 1e-12


def test_order_of_warps_matters_to_this_check() -> None:
    """Negative control: top-p before temperature, another order than transformers'."""

    def swapped(config: DecodeConfig) -> Any:
        first = Warp.from_config(DecodeConfig(temperature=1.0, top_p=config.top_p))
        rest = Warp.from_config(config)
        bare = Warp(rest.temperature, rest.top_k, 1.0, rest.min_p, rest.processors)
        return lambda logits, prefixes: bare(first(logits, prefixes).log(), prefixes)

    assert worst_gap(swapped) > 0.1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_rows_are_distributions_in_float32_at_least(dtype: torch.dtype) -> None:
    logits = torch.randn(3, V, generator=torch.Generator().manual_seed(0)).to(dtype)
    for warp in (Warp(), Warp(0.7, 5, 0.9, 0.05)):
        p = warp(logits)
        assert p.dtype == torch.float32
        assert torch.allclose(p.sum(-1), torch.ones(3), atol=1e-6)


def test_temperature_zero_is_one_hot_and_ties_go_to_the_lower_id() -> None:
    logits = torch.zeros(1, V)
    logits[0, [9, 4]] = 5.0
    p = Warp()(logits)
    assert p[0].nonzero().tolist() == [[4]]
    assert p[0, 4] == 1


def test_a_tiny_temperature_is_nearly_greedy_and_finite() -> None:
    p = Warp(1e-39)(torch.tensor([[30.0, 29.0, -30.0]]))
    assert p.tolist() == [[1.0, 0.0, 0.0]]


def test_top_p_always_keeps_the_likeliest() -> None:
    p = Warp(1.0, top_p=1e-9)(torch.tensor([[0.0, 2.0, 1.0]]))
    assert p.tolist() == [[0.0, 1.0, 0.0]]


def test_processor_sees_the_prefix_of_each_row() -> None:
    seen = []

    def spy(ids: Tensor, scores: Tensor) -> Tensor:
        seen.append(ids.tolist())
        return scores + torch.nn.functional.one_hot(ids[:, -1], V) * 100

    prefixes = [[1], [1, 2], [1, 2, 3]]
    p = Warp(processors=(spy,))(torch.zeros(3, V), prefixes)
    assert seen == [[[1]], [[1, 2]], [[1, 2, 3]]]
    assert p.argmax(-1).tolist() == [1, 2, 3]


@pytest.mark.parametrize("prefixes", [None, [[1]]])
def test_processors_without_their_prefixes_are_refused(prefixes: Any) -> None:
    warp = Warp(processors=(lambda ids, scores: scores,))
    with pytest.raises(BadInput, match="one prefix for each of 2 rows"):
        warp(torch.zeros(2, V), prefixes)


def told(result: Any) -> Any:
    def meddler(ids: Tensor, scores: Tensor) -> Any:
        return result

    return meddler


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("result", "got"),
    [
        (None, "got None"),
        ([0.0] * V, "got [0.0, "),
        (torch.zeros(1, 3), "got torch.float32, shape (1, 3)"),
        (torch.zeros(V), f"got torch.float32, shape ({V},)"),
        (torch.zeros(1, V, dtype=torch.int64), "got torch.int64"),
    ],
)
def test_what_is_no_scores_is_refused_by_the_name_of_the_processor(
    result: Any, got: str, temperature: float
) -> None:
    warp = Warp(temperature, processors=(lambda ids, scores: scores, told(result)))
    for use in (warp, warp.best):
        with pytest.raises(BadInput) as caught:
            use(torch.zeros(1, V), [[1]])
        assert caught.value.what == "logits processor 'meddler'"
        assert got in str(caught.value)


@pytest.mark.parametrize("worst", [float("inf"), float("nan")])
def test_infinite_scores_are_blamed_on_their_processor(worst: float) -> None:
    scores = torch.zeros(1, V)
    scores[0, 2] = worst
    sound = (lambda ids, scores: scores, told(torch.full((1, V), -torch.inf)))
    warp = Warp(1.0, processors=(*sound, told(scores), lambda ids, scores: scores * 2))
    assert warp(torch.zeros(1, V), [[1]]).isnan().all()  # what `verify` refuses
    with pytest.raises(BadInput, match=f"'meddler': .* got a score of {worst}"):
        warp.blame(torch.zeros(1, V), [[1]])


def test_scores_that_came_in_infinite_are_not_blamed_on_a_processor() -> None:
    """Negative control of the check above."""
    warp = Warp(1.0, processors=(lambda ids, scores: scores,))
    warp.blame(torch.full((1, V), torch.inf), [[1]])
    warp.blame(torch.full((1, V), -torch.inf), [[1]])


@pytest.mark.parametrize("given", [None, [None], [3], told(None), "abc"])
def test_what_is_no_list_of_processors_is_refused(given: Any) -> None:
    with pytest.raises(BadInput, match="processors: expected a list of functions"):
        Warp.from_config(DecodeConfig(), processors=given)


P = torch.tensor([0.5, 0.0, 0.2, 0.0, 0.25, 0.05], dtype=torch.float64)


def fit(counts: Tensor, p: Tensor) -> float:
    """p-value of Pearson's chi-square of ``counts`` against the law ``p``."""
    has_mass = p > 0
    assert counts[~has_mass].sum() == 0, "a token without mass was drawn"
    expected = p[has_mass] / p.sum() * counts.sum()
    return float(stats.chisquare(counts[has_mass], expected).pvalue)


@pytest.mark.parametrize("ahead", [False, True])
def test_draws_follow_their_distribution(ahead: bool) -> None:
    """3000 draws; a right generator fails this with probability 1e-6 over seeds (the seed is
    fixed, so it either always passes or never)."""
    rng = TorchRng(11, ahead=ahead)
    rows = torch.stack([P.flip(0), P])
    counts = torch.zeros(len(P), dtype=torch.float64)
    for _ in range(3000):
        drawn = rng.pick_ahead(lambda: rows)
        counts[int(rng.pick(P) if drawn is None else drawn[1])] += 1
    assert fit(counts, P) > 1e-6


def test_this_fit_can_fail() -> None:
    """Negative control: draws from a law that differs by 0.1."""
    rng, other = TorchRng(11), P + torch.tensor([0.1, 0, -0.1, 0, 0, 0])
    counts = torch.zeros(len(P), dtype=torch.float64)
    for _ in range(3000):
        counts[int(rng.pick(other))] += 1
    assert fit(counts, P) < 1e-6


def test_flips_follow_their_probability() -> None:
    """3000 flips of 0.3; false alarm 1e-6 (two-sided binomial test)."""
    rng = TorchRng(5)
    flips = [rng.flip(0.3) for _ in range(3000)]
    heads = sum(f.accepted for f in flips)
    assert all(f.accepted == (f.u < 0.3) for f in flips)
    assert stats.binomtest(heads, len(flips), 0.3).pvalue > 1e-6


def test_certain_flips_are_certain() -> None:
    rng = TorchRng(0)
    assert all(rng.flip(1.0).accepted for _ in range(1000))
    assert not any(rng.flip(0.0).accepted for _ in range(1000))


def test_one_seed_means_the_same_ahead_or_not() -> None:
    """A GPU draws ahead of knowing the row, a CPU afterwards: the seed must mean one text."""
    rows = torch.softmax(torch.randn(3, 30, generator=torch.Generator().manual_seed(1)), -1)

    def draws(rng: TorchRng) -> list[Any]:
        out = []
        for i in range(50):
            ahead = rng.pick_ahead(lambda: rows)
            out.append(rng.flip(0.5).u)
            out.append(int(rng.pick(rows[i % 3])) if ahead is None else int(ahead[i % 3]))
        return out

    assert draws(TorchRng(4)) == draws(TorchRng(4, ahead=True))
    assert draws(TorchRng(4)) != draws(TorchRng(5))


def test_rows_without_total_mass_one_are_still_drawn_lawfully() -> None:
    """Rounding leaves sums like 1 - 1e-7: the mass counts, not the absolute value."""
    rng = TorchRng(2)
    counts = torch.zeros(len(P), dtype=torch.float64)
    for _ in range(2000):
        counts[int(rng.pick(P * 0.9))] += 1
    assert fit(counts, P) > 1e-6  # false alarm 1e-6
