"""A `Plot` as a plotly figure.

Owns: the one plotly configuration, and the only imports of plotly. Does not know: what is charted.
Invariants: a plain ``go.Figure``, never a FigureWidget (megabytes of script in the notebook, blank
on old front ends); no button uploads anything; only what plotly 5.24 to 7 have in common.
"""

import json
from typing import Any

from labkit.viz.plots import COLOURS, DASHES, Plot

CONFIG = {"displayModeBar": False, "displaylogo": False, "showSendToCloud": False}
"""No mode bar (its buttons have no names), no logo, and no button that uploads the data."""

_INK, _GRID, _PAPER = "#17171b", "#dcdce2", "#ffffff"


def plotly_bundle(plot: Plot) -> dict[str, Any]:
    """The figure for front ends that draw plotly; nothing when plotly is not installed."""
    try:
        figure = plotly_figure(plot)
    except ImportError:
        return {}
    return {"application/vnd.plotly.v1+json": {**json.loads(figure.to_json()), "config": CONFIG}}


def plotly_figure(plot: Plot) -> Any:
    """The plot as a ``go.Figure`` in the light colours, which read on a dark page too."""
    import plotly.graph_objects as go

    figure = go.Figure(layout={"template": go.layout.Template(), **_layout(plot)})
    for rank, bar in enumerate(plot.bars):
        names = [plot.categories[int(x)] for x in bar.x]
        told = list(bar.labels) or None
        figure.add_bar(x=names, y=bar.y, name=bar.name, marker=_bar_marker(rank), hovertext=told)
    for rank, curve in enumerate(plot.curves):
        line = _curve_line(rank)
        figure.add_scatter(x=curve.x, y=curve.y, name=curve.name, mode="lines", line=line)
    for rank, point in enumerate(plot.points):
        marker = _point_marker(rank)
        figure.add_scatter(x=point.x, y=point.y, name=point.name, mode="markers", marker=marker)
    if plot.mark:
        note = {"text": plot.mark[1], "xanchor": "right", "x": 1, "yanchor": "top"}
        figure.add_hline(y=plot.mark[0], line={"color": _INK, "width": 1.5}, annotation=note)
    return figure


def _bar_marker(rank: int) -> dict[str, Any]:
    colour = COLOURS[rank % len(COLOURS)]
    border = {"color": colour, "width": 2}
    return {"color": colour, "line": border, "opacity": 0.45 if rank else 1.0}


def _curve_line(rank: int) -> dict[str, Any]:
    dashes = DASHES[rank % len(DASHES)].split()
    drawn = ",".join(f"{d}px" for d in dashes) or "solid"
    return {"color": COLOURS[rank % len(COLOURS)], "dash": drawn, "width": 2.5}


def _point_marker(rank: int) -> dict[str, Any]:
    shapes = ("diamond", "square", "triangle-up", "triangle-down", "cross", "octagon")
    shape = shapes[rank % len(shapes)]
    border = {"color": _INK, "width": 2}
    return {
        "size": 13,
        "symbol": shape,
        "color": COLOURS[(rank + 5) % len(COLOURS)],
        "line": border,
    }


def _layout(plot: Plot) -> dict[str, Any]:
    axis = {"gridcolor": _GRID, "zerolinecolor": _GRID}
    kind = "category" if plot.bars else "linear"
    return {
        "title": {"text": plot.title},
        "xaxis": {"title": {"text": plot.x_title}, "type": kind, **axis},
        "yaxis": {"title": {"text": plot.y_title}, "range": [0, plot.top], **axis},
        "barmode": "group",
        "height": 380,
        "margin": {"l": 60, "r": 20, "t": 60, "b": 60},
        "paper_bgcolor": _PAPER,
        "plot_bgcolor": _PAPER,
        "font": {"color": _INK, "size": 14},
        "showlegend": len(plot.series) > 1,
    }
