"""The statistics of the sampling tests, against numbers known otherwise."""

from collections import Counter

import numpy as np
import pytest
from odds import cells, missed, p_value
from scipy import stats

FAIR = dict.fromkeys(range(6), 1 / 6)
LOADED = FAIR | {0: 1 / 12, 5: 3 / 12}


def test_the_p_value_is_pearsons() -> None:
    counts = Counter({0: 16, 1: 18, 2: 16, 3: 14, 4: 12, 5: 12})
    # The sum of (observed - 88/6)^2 / (88/6), five degrees of freedom.
    assert p_value(counts, FAIR) == pytest.approx(stats.chi2.sf(2.0, 5))
    assert p_value(counts + Counter({6: 1}), FAIR) == 0


def test_rare_texts_share_a_cell() -> None:
    law = {"a": 0.9, "b": 0.06, "c": 0.03, "d": 0.01}
    assert cells(law, runs=100) == {"a": 0, "b": 1, "c": 1, "d": 1}
    assert len(set(cells(law, runs=600).values())) == 4
    assert set(cells(law, runs=5).values()) == {0}


def test_the_bound_holds_where_it_can_be_tried() -> None:
    """2,000 experiments with a loaded die: it passes for a fair one no oftener than the bound says,
    give or take four standard errors; and the bound tells something."""
    runs, alarm, tries = 100, 0.01, 2_000
    bound = missed(LOADED, FAIR, runs=runs, alarm=alarm)
    draws = np.random.default_rng(0).multinomial(runs, list(LOADED.values()), size=tries)
    passed = sum(p_value(Counter(dict(enumerate(d.tolist()))), FAIR) > alarm for d in draws)
    error = 4 * (bound * (1 - bound) / tries) ** 0.5
    assert passed / tries <= bound + error
    assert missed(LOADED, FAIR, runs=2_000, alarm=alarm) < 1e-6
