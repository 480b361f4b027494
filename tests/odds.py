"""Pearson's chi-square of counted texts against their law, and how surely it catches a wrong one.

Owns: the statistic, the cells, the bound. Does not know: how texts are made.
"""

import math
from collections.abc import Hashable, Mapping
from typing import Any

from scipy import stats

FEWEST = 5  # expected in a cell, as the chi-square approximation wants it


def cells(law: Mapping[Any, float], *, runs: int) -> dict[Any, int]:
    """The cell of each text: likeliest first, a cell is full when FEWEST of it are expected."""
    cell_of: dict[Any, int] = {}
    cell, mass = 0, 0.0
    ordered = sorted(law, key=law.__getitem__, reverse=True)
    left = 1.0
    for text in ordered:
        cell_of[text] = cell
        mass, left = mass + law[text], left - law[text]
        if runs * mass >= FEWEST and runs * left >= FEWEST:
            cell, mass = cell + 1, 0.0
    return cell_of


def per_cell(amounts: Mapping[Any, float], cell_of: Mapping[Any, int]) -> list[float]:
    """Sums of the amounts of the texts in each cell; what lies in no cell is left out."""
    sums = [0.0] * (max(cell_of.values()) + 1)
    for text, cell in cell_of.items():
        sums[cell] += amounts.get(text, 0)
    return sums


def p_value(counts: Mapping[Any, int], law: Mapping[Any, float]) -> float:
    """How often counts from ``law`` itself would lie at least as far from it; 0 for a text that it
    rules out."""
    if not set(counts) <= set(law):
        return 0.0
    runs = sum(counts.values())
    cell_of = cells(law, runs=runs)
    observed, shares = per_cell(counts, cell_of), per_cell(law, cell_of)
    whole = sum(shares)
    expected = [runs * share / whole for share in shares]
    return float(stats.chisquare(observed, expected).pvalue)


def missed(
    wrong: Mapping[Hashable, float],
    law: Mapping[Hashable, float],
    *,
    runs: int,
    alarm: float,
) -> float:
    """At most this often do ``runs`` texts of the law ``wrong`` pass for ``law``.

    Take the event "in a cell that ``wrong`` makes likelier", of probability p, and r in truth. Its
    own chi-square, (count - n p)^2 / (n p (1 - p)), is never larger than that of all cells
    (Cauchy-Schwarz). So whoever passes has a count within sqrt(limit n p (1 - p)) of n p, and the
    count is binomial with n and r.
    """
    cell_of = cells(law, runs=runs)
    shares, true = per_cell(law, cell_of), per_cell(wrong, cell_of)
    limit = float(stats.chi2.isf(alarm, len(shares) - 1))
    likelier = [i for i, (p, r) in enumerate(zip(shares, true, strict=True)) if r > p]
    p = sum(shares[i] for i in likelier)
    r = sum(true[i] for i in likelier) + sum(m for text, m in wrong.items() if text not in law)
    reach = math.sqrt(limit * runs * p * (1 - p))
    return float(stats.binom.cdf(runs * p + reach, runs, min(r, 1.0)))
