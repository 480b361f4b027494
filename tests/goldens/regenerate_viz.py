"""Draw the golden pictures again (python tests/goldens/regenerate_viz.py), then look at the diff.

Every picture is drawn from the scripted runs of tests/unit/viz_traces.py.
"""

import sys
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent / "unit")]

import viz_traces  # noqa: E402

from labkit import metrics, viz  # noqa: E402

FOLDER = HERE / "viz"


def _acceptance() -> str:
    runs = {"draft": viz_traces.chain(), "ngram": viz_traces.nothing_drafted()}
    numbers = {name: metrics.acceptance(trace) for name, trace in runs.items()}
    return viz.charts.acceptance_by_position(numbers).picture.svg


PICTURES: dict[str, Callable[[], str]] = {
    "ribbon_chain.svg": lambda: viz.ribbon(viz_traces.chain()).svg,
    "ribbon_tree.svg": lambda: viz.ribbon(viz_traces.tree(), width=390).svg,
    "ribbon_odd_tokens.svg": lambda: viz.ribbon(viz_traces.odd_tokens()).svg,
    "tree.svg": lambda: viz.draft_tree(viz_traces.dynamic(), round=1).svg,
    "tree_narrow.svg": lambda: viz.draft_tree(viz_traces.tree(), round=1, width=360).svg,
    "mask.svg": lambda: viz.attention_mask(viz_traces.dynamic(), round=1).svg,
    "slots_round.svg": lambda: viz.kv_slots(viz_traces.chain(), round=1).svg,
    "timeline.svg": lambda: viz.timeline(viz_traces.chain(), ar=viz_traces.plain()).svg,
    "still_verify.svg": lambda: viz.still(viz_traces.corrected(), step=5, ar=0.04, width=640).svg,
    "acceptance.svg": _acceptance,
}

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / name).write_text(draw() + "\n", encoding="utf-8")
        print(name)  # noqa: T201
