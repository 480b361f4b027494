"""What a draft of n nodes adds, what it costs, and how fast that is.

Owns: the chart and its sentence. Does not know: how the numbers were measured.
"""

from dataclasses import replace

from labkit.cost import Budget, verdict
from labkit.viz.charts import Chart, by_nodes


def budget_chart(budget: Budget) -> Chart:
    """Tokens, cost and speed of a round, by the number of drafted nodes."""
    tokens, price, speed = budget.tokens, budget.price, budget.speed
    chart = by_nodes(
        {"tokens it adds": tokens, "steps it costs": price, "speed = tokens / steps": speed},
        quantity="a round",
    )
    most, best = budget.most, budget.fastest
    told = (
        f"Most tokens per round: {_nodes(most)}, {tokens[most]:.2f} tokens for {price[most]:.2f} "
        f"steps. Fastest: {_nodes(best)}, {tokens[best]:.2f} tokens for {price[best]:.2f} steps, "
        f"{verdict(speed[best])}."
    )
    return replace(chart, sentence=told)


def _nodes(count: int) -> str:
    return f"{count} node" if count == 1 else f"{count} nodes"
