"""The stepper, without a browser: what is sent, what is stored, what happens on a re-run."""

import base64
import json
import subprocess
import sys
import types
import zlib
from pathlib import Path
from typing import Any

import nbformat
import pytest
import viz_traces

from labkit import viz
from labkit.errors import BadInput
from labkit.trace import Trace
from labkit.viz.assets import script, sheet
from labkit.viz.board import WIDTHS, board
from labkit.viz.film import pack, unpack
from labkit.viz.states import Story
from labkit.viz.stillness import StillStepper
from labkit.viz.tale import TITLE

ROOT = Path(__file__).parents[2]
STATIC = ROOT / "labkit" / "viz" / "static"
WIDGET = "application/vnd.jupyter.widget-view+json"
BOTH = pytest.mark.parametrize("kind", [viz.Stepper, StillStepper], ids=["live", "still"])


def run(script: str) -> str:
    """The output of a fresh interpreter that knows the test traces."""
    head = "import sys; sys.path.insert(0, 'tests/unit'); import viz_traces\n"
    done = subprocess.run(
        [sys.executable, "-c", head + script], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("make", viz_traces.EVERY.values(), ids=viz_traces.EVERY)
def test_the_film_gives_back_every_picture(make: Any) -> None:
    story = Story.of(make())
    boards = [board(story, width=width, ar_seconds=0.04) for width in (960, 390)]
    film = pack(story, boards, title=TITLE, label="")
    for state in story.states[:: max(1, len(story.states) // 25)]:
        for i, b in enumerate(boards):
            assert unpack(film, board=i, state=state.index).body == b.scene(state).body


def test_a_damaged_film_would_be_noticed() -> None:
    story = Story.of(viz_traces.corrected())
    b = board(story, width=960)
    record = json.loads(zlib.decompress(base64.b64decode(pack(story, [b], title="", label=""))))
    record["panels"][0]["frames"][0][3] += 5  # x of the first place
    film = base64.b64encode(zlib.compress(json.dumps(record).encode())).decode()
    bodies = [unpack(film, board=0, state=s.index).body == b.scene(s).body for s in story.states]
    assert not all(bodies)


def test_what_is_sent_is_small() -> None:
    """64 tokens at full detail, four drafted per round: budgets are 300 kB and 600 kB."""
    trace = viz_traces.long_run(64)
    assert len(trace.dumps().encode()) <= 300_000
    stepper = viz.Stepper(trace, compare=viz_traces.plain())
    assert len(json.dumps(stepper.get_state())) <= 150_000
    assert len(script("stepper").encode()) <= 60_000


@pytest.mark.parametrize("name", ["opener", "race", "stepper", "whatif"])
def test_a_widget_asks_nobody_for_anything(name: str) -> None:
    for word in ("http://", "https://", "import ", "fetch(", "XMLHttpRequest", "url("):
        allowed = script(name).replace('"http://www.w3.org/2000/svg"', "")
        assert word not in allowed, word
        assert word not in sheet(name), word


@pytest.mark.parametrize("name", ["opener", "race", "stepper", "whatif"])
def test_what_widgets_share_stands_once_in_each(name: str) -> None:
    own = (STATIC / f"{name}.js").read_text(encoding="utf-8")
    assert own.count('from "./shared.js";') == 1
    assert script(name).count("export function make(") == 1
    assert "function make(" not in own
    assert sheet(name).count(".labkit-widget {") == 1
    assert "var(--lk-ink," not in sheet(name), "a colour is told by the theme alone"


@BOTH
def test_steps_can_be_read_and_set(kind: Any) -> None:
    stepper = kind(viz_traces.corrected(), step=2, grain="round")
    assert (stepper.steps, stepper.step, stepper.state.phase) == (9, 2, "score")
    stepper.step = 3
    assert stepper.picture.svg == viz.still(viz_traces.corrected(), step=3).svg
    stepper.goto(round=1)
    assert stepper.state.phase == "forget"
    assert kind(viz_traces.corrected(), step=-1).step == 8


@BOTH
@pytest.mark.parametrize(
    "wrong", [{"step": 9}, {"step": -10}, {"grain": "token"}], ids=["step", "negative", "grain"]
)
def test_impossible_settings_are_refused_by_name(kind: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=rf"{next(iter(wrong))}: expected .* Next: "):
        kind(viz_traces.corrected(), **wrong)


@BOTH
def test_a_later_impossible_step_changes_nothing(kind: Any) -> None:
    stepper = kind(viz_traces.corrected(), step=4)
    with pytest.raises(BadInput, match="step"):
        stepper.step = 99
    with pytest.raises(BadInput, match="round"):
        stepper.goto(round=2)
    assert stepper.step == 4


def test_one_width_can_be_asked_for() -> None:
    def widths(**options: Any) -> list[int]:
        film = viz.Stepper(viz_traces.corrected(), **options).film
        boards = json.loads(zlib.decompress(base64.b64decode(film)))["boards"]
        return [b["width"] for b in boards if b["kind"] == "page"]

    assert widths() == list(WIDTHS)
    assert widths(width=390) == [390]


def kinds(trace: Any, **options: Any) -> list[str]:
    film = json.loads(zlib.decompress(base64.b64decode(viz.Stepper(trace, **options).film)))
    return [board["kind"] for board in film["boards"]]


def test_large_trees_are_sent_folded_and_whole() -> None:
    """And every run is sent once more for a room."""
    large = viz_traces.dynamic(1, depth=8, nodes=59)
    assert kinds(large) == ["page"] * 3 + ["open"] * 3 + ["projector"]
    assert kinds(large, tree=False) == kinds(viz_traces.dynamic(1)) == ["page"] * 3 + ["projector"]


def test_a_cell_stores_widget_picture_and_sentence() -> None:
    stepper = viz.Stepper(viz_traces.corrected(), step=5)
    data, metadata = stepper._repr_mimebundle_()
    assert set(data) == {WIDGET, "text/html", "text/plain"}
    assert stepper.picture.svg in data["text/html"]
    assert "Run this cell to make it interactive." in data["text/html"]
    assert data["text/plain"] == repr(stepper) == stepper.picture.sentence
    assert metadata == {}


def test_ipython_stores_all_three() -> None:
    """Also under ipywidgets 7, whose widgets display themselves and store no picture."""
    from IPython.core.interactiveshell import InteractiveShell

    formatter = InteractiveShell.instance().display_formatter
    data, _ = formatter.format(viz.Stepper(viz_traces.corrected()))
    assert set(data) == {WIDGET, "text/html", "text/plain"}


@pytest.mark.parametrize(
    ("trace", "phase", "rounds"),
    [
        (viz_traces.corrected(), "forget", 1),
        (viz_traces.chain(), "forget", 4),
        (viz_traces.cut_short(), "forget", 1),  # another draft, which nobody judged
    ],
)
def test_an_untouched_stepper_stores_its_last_verdict(
    trace: Trace, phase: str, rounds: int
) -> None:
    """At step 0 there is nothing to see yet; a reader who cannot step sees the last draft that
    was judged, with what became of it, and is told how the run ended."""
    stepper = viz.Stepper(trace)
    story = Story.of(trace)
    (shown,) = [s for s in story.states if (s.phase, s.at) == (phase, rounds - 1)]
    picture = viz.still(trace, step=shown.index)
    assert stepper.step == 0
    assert picture.svg in stepper._repr_mimebundle_()[0]["text/html"]
    end = viz.still(trace).sentence
    assert repr(stepper) == f"{end} In the picture: {picture.sentence}"


@pytest.mark.parametrize("trace", [viz_traces.plain(), viz_traces.nothing_drafted()])
def test_where_nothing_was_drafted_the_end_is_stored(trace: Trace) -> None:
    stepper = viz.Stepper(trace)
    assert viz.still(trace).svg in stepper._repr_mimebundle_()[0]["text/html"]
    assert repr(stepper) == viz.still(trace).sentence


def test_the_sentence_is_the_same_on_every_run() -> None:
    script = "from labkit.viz import Stepper; print(repr(Stepper(viz_traces.chain(), step=4)))"
    assert run(script) == run(script)
    assert "0x" not in run(script)


@pytest.mark.filterwarnings("ignore:Your element with mimetype")
def test_a_notebook_without_widget_state_shows_the_picture() -> None:
    """What readers of a converted notebook get: the state is stripped, the picture is not."""
    from nbconvert import HTMLExporter

    def page(*, keep: bool) -> str:
        data, _ = viz.Stepper(viz_traces.corrected())._repr_mimebundle_()
        kept = data if keep else {k: v for k, v in data.items() if k == WIDGET}
        output = nbformat.v4.new_output("display_data", data=kept)
        cell = nbformat.v4.new_code_cell("stepper", execution_count=1, outputs=[output])
        return HTMLExporter().from_notebook_node(nbformat.v4.new_notebook(cells=[cell]))[0]

    assert 'class="labkit"' in page(keep=True)
    assert "Run this cell to make it interactive." in page(keep=True)
    assert 'class="labkit"' not in page(keep=False)


def without(package: str) -> str:
    return run(
        f"sys.modules[{package!r}] = None\n"
        "from labkit.viz import Stepper\n"
        "s = Stepper(viz_traces.corrected())\n"
        "bundle = s._repr_mimebundle_()\n"
        "print(sorted(bundle), '<svg' in bundle['text/html'], repr(s)[:14])\n"
        "print(bundle['text/html'].split('<em>')[1])"
    )


@pytest.mark.parametrize("package", ["anywidget", "ipywidgets"])
def test_without_the_widget_packages_a_static_figure_names_them(package: str) -> None:
    """Instead of an import error, or of nothing at all."""
    first, second = without(package).splitlines()
    assert first == "['image/svg+xml', 'text/html', 'text/plain'] True Finished (eos)"
    assert f"pip install {package}" in second


def test_with_the_packages_nothing_is_said_to_be_missing() -> None:
    assert (
        "pip install" not in viz.Stepper(viz_traces.corrected())._repr_mimebundle_()[0]["text/html"]
    )


def test_pictures_load_neither_widgets_nor_plotly_nor_torch() -> None:
    heavy = ("torch", "transformers", "plotly", "anywidget", "ipywidgets", "traitlets")
    script = (
        "import labkit.viz as viz\n"
        "viz.still(viz_traces.chain()); viz.charts.forward_time({1: 1.0}).picture\n"
        f"print([m for m in {heavy} if m in sys.modules])"
    )
    assert run(script) == "[]\n"


COLAB = (
    "import types\n"
    "calls = []\n"
    "output = types.ModuleType('google.colab.output')\n"
    "output.enable_custom_widget_manager = lambda: calls.append(1)\n"
    "output._widgets = types.SimpleNamespace(_installed_url='https://example.org/m.js')\n"
    "if {here}:\n"
    "    sys.modules['google.colab.output'] = output\n"
    "from labkit.viz import Stepper\n"
    "steppers = [Stepper(viz_traces.corrected()) for _ in range(3)]\n"
    "bundles = [s._repr_mimebundle_() for s in steppers]\n"
    "print(len(calls), [m for m in sys.modules if m.startswith('google.colab')],\n"
    "      all('<svg' in data['text/html'] for data, _ in bundles))"
)


def test_colab_is_asked_once_to_show_widgets() -> None:
    """Once for the whole session, not per view; and every cell has its static figure."""
    assert run(COLAB.format(here=True)) == "1 ['google.colab.output'] True\n"


def test_elsewhere_colab_is_never_imported() -> None:
    assert run(COLAB.format(here=False)) == "0 [] True\n"


CELL = "stepper = Stepper(trace)\nstepper.observe(handler, names='step')\n"


def changes(cell: str) -> int:
    """How often the handler runs when the cell ran three times and the reader steps once."""
    seen: list[int] = []
    names: dict[str, Any] = {
        "Stepper": viz.Stepper,
        "trace": viz_traces.corrected(),
        "handler": lambda change: seen.append(change["new"]),
    }
    names["shared"] = viz.Stepper(names["trace"])
    module = types.ModuleType("notebook")
    module.__dict__.update(names)
    for _ in range(3):
        runner = compile(cell, "cell", "exec")
        types.FunctionType(runner, module.__dict__)()
    module.stepper.set_state({"step": 4})  # as a message of the browser does
    return len(seen)


def test_running_a_cell_again_does_not_pile_up_handlers() -> None:
    """One change is one call of the handler, however often its cell was run."""
    assert changes(CELL) == 1


def test_piled_up_handlers_would_be_noticed() -> None:
    piled = "stepper = shared\nstepper.observe(lambda c: handler(c), names='step')\n"
    assert changes(piled) == 3


def test_one_change_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    stepper = viz.Stepper(viz_traces.corrected())
    sent: list[Any] = []
    comm = types.SimpleNamespace(kernel=1, send=lambda data, buffers: sent.append(data["state"]))
    monkeypatch.setattr(viz.Stepper, "comm", comm)
    stepper.step = 5
    assert sent == [{"step": 5}]  # not the film again
