"""What a draft of a certain size adds, what it costs, and how fast that is.

Owns: the chart and its sentence. Does not know: how the numbers were measured.
"""

from dataclasses import replace

from labkit.cost import Budget, verdict
from labkit.viz.charts import Chart, by_size


def budget_chart(budget: Budget, *, chain: bool = False) -> Chart:
    """Tokens, cost and speed of a round, by the number of nodes in the draft.

    Args:
        chain: every draft is a chain, so that the number is its length.
    """
    tokens, price, speed = budget.tokens, budget.price, budget.speed
    size = _chain if chain else _nodes
    chart = by_size(
        {"tokens it adds": tokens, "steps it costs": price, "speed = tokens / steps": speed},
        quantity="a round",
        **({"along": "length of the chain", "each": "chain of {}"} if chain else {}),
    )
    most, best = budget.most, budget.fastest
    told = (
        f"Most tokens per round: {size(most)}, {tokens[most]:.2f} tokens for {price[most]:.2f} "
        f"steps. Fastest: {size(best)}, {tokens[best]:.2f} tokens for {price[best]:.2f} steps, "
        f"{verdict(speed[best])}."
    )
    return replace(chart, sentence=told)


def _nodes(count: int) -> str:
    return f"{count} node" if count == 1 else f"{count} nodes"


def _chain(length: int) -> str:
    return f"a chain of {length}"
