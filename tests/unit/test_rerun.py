"""Cells that are interrupted, run again or run out of order leave nothing behind.

In a real kernel, on a tiny model with a real tokenizer: hooks, slots, tensors and widgets are
counted before and after.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from kernels import Kernel, kernel
from tiny_gguf import write_gguf

LOAD = """
from holdings import holdings
from labkit.lab.load import load_model
from labkit.lab.session import Lab
lab = Lab(load_model({gguf!r}, device="cpu"), draft={gguf!r})
"""
HEAD = """
from labkit.heads.checkpoints import checkpoint_of, write_checkpoint
from labkit.heads.eagle import head_config, random_head
head = random_head(head_config(lab.model, 1), lab.model)
stored = checkpoint_of(head, target_model=lab.model, target="tiny")
write_checkpoint(stored, {folder!r}, format="safeailab")
del head, stored
lab.head = {folder!r}
"""
RECORD = 'trace = lab.record("the other thing", method={method!r}, max_new_tokens=8)'
FOREVER = 'print("now", flush=True)\nwhile True:\n    ' + RECORD
FIGURES = """
from labkit.lab.quiz import ask
from labkit.viz import Stepper, kv_slots, ribbon
stepper = Stepper(trace)
display(ask("00-text"), ribbon(trace), kv_slots(trace, round=1))
stepper
"""
TOOLS = """
from labkit.gallery import gallery
from labkit.lab import contest, live
from labkit.lab.breaking_panel import BreakIt
from labkit.lab.race import Race
from labkit.viz import Opener, WhatIf
bench = live.open(lab, "the other thing", method="ngram", max_new_tokens=8)
game = contest.open(lab, "the other thing", against=("ngram", "draft"), max_new_tokens=8)
race = Race(lab, "the other thing", ("ngram", "draft"), max_new_tokens=8)
bench.run(2), game.guess(""), race.run()
display(bench, game, race, BreakIt(lab, "the other thing"), WhatIf(gallery.machine), Opener())
"""
BENCHES = """
from labkit.lab import live
one, two = (live.open(lab, "the other thing", method="ngram", max_new_tokens=8) for _ in range(2))
"""
FULL = """
import itertools, weakref, torch
calls, cache = itertools.count(1), weakref.ref(lab.target._cache)
def full(*_):
    if next(calls) >= 4:  # the prompt, then round 3
        raise torch.OutOfMemoryError("no room")
hook = lab.model.register_forward_hook(full)
"""
OTHER_ERROR = "raise ValueError"  # an error's traceback holds its frames until the next error
METHODS = ["ar", "ngram", "draft", "eagle1"]


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("rerun") / "tiny.Q4_1.gguf")


@pytest.fixture(scope="module")
def notebook(gguf: Path) -> Iterator[Kernel]:
    with kernel() as running:
        for cell in (LOAD.format(gguf=str(gguf)), HEAD.format(folder=str(gguf.parent / "head"))):
            assert not running.run(cell).error
        yield running


def held(notebook: Kernel) -> dict[str, int]:
    return notebook.value("holdings(lab)")


def text_of(notebook: Kernel, method: str) -> str:
    said = notebook.run(RECORD.format(method=method))
    assert not said.error, said
    return str(notebook.value("trace.text"))


@pytest.mark.parametrize("method", METHODS)
def test_an_interrupted_cell_leaves_nothing_behind(notebook: Kernel, method: str) -> None:
    expected = text_of(notebook, method)
    notebook.run(OTHER_ERROR)
    before = held(notebook)
    for _ in range(3):
        said = notebook.run(FOREVER.format(method=method), interrupt_after="now")
        assert said.error == "KeyboardInterrupt"
    notebook.run(OTHER_ERROR)
    assert text_of(notebook, method) == expected
    assert held(notebook) == before


def test_cells_that_run_twenty_times_leave_nothing_behind(notebook: Kernel) -> None:
    def once() -> None:
        for method in METHODS:
            assert not notebook.run(RECORD.format(method=method), cell=method).error
        assert not notebook.run(FIGURES, cell="figures").error

    once()
    before = held(notebook)
    assert before["widgets"] > 0
    for _ in range(20):
        once()
    assert held(notebook) == before


def test_tools_that_are_shown_again_take_the_place_of_the_first(notebook: Kernel) -> None:
    """Workbench, contest, race, switches and sliders, each with its own targets."""

    def shown() -> dict[str, int]:
        said = notebook.run(TOOLS, cell="tools")
        assert not said.error, said
        return held(notebook)

    first = shown()
    assert first["widgets"] > 40
    assert [shown() for _ in range(3)] == [first] * 3


def test_boxes_that_follow_a_bench_leave_nothing_behind(notebook: Kernel) -> None:
    """One cell makes benches, another shows one of them, a third plays on."""

    def shown(name: str) -> dict[str, int]:
        # nothing is the last expression of a cell, which IPython keeps in Out
        show, play = f"display({name})", f"{name}.rewind(0)\ntold = {name}.step()"
        for source, cell in ((show, "show a bench"), (play, "play")):
            said = notebook.run(source, cell=cell)
            assert not said.error, said
        assert notebook.value(f"len({name}.standing.watchers)") == 1
        assert notebook.value(f"'after round 1' in {name}._face.where.value")
        return held(notebook)

    def made() -> None:
        assert not notebook.run(BENCHES, cell="make benches").error

    made()
    first = shown("one")
    for name in ("two", "one", "one", "two", "one"):
        now = shown(name)
        other = "two" if name == "one" else "one"
        assert notebook.value(f"len({other}.standing.watchers)") == 0
        assert now["widgets"] == first["widgets"]
    made()
    shown("one")
    made()
    assert shown("one") == first


def test_a_run_that_does_not_fit_leaves_nothing_behind(notebook: Kernel) -> None:
    """The kernel keeps the error with its traceback, and yet the cache is gone."""
    expected = text_of(notebook, "draft")
    notebook.run(FULL)
    said = notebook.run(RECORD.format(method="draft"))
    assert said.error == "OutOfMemory"
    notebook.run("hook.remove()")
    assert notebook.value("cache() is None")
    assert text_of(notebook, "draft") == expected


def test_what_piles_up_would_be_noticed(notebook: Kernel) -> None:
    """Negative control: the same cell under another name each time, and a hook that stays."""
    notebook.run(RECORD.format(method="ar"))
    before = held(notebook)
    notebook.run(FIGURES, cell="another")
    notebook.run("stay = lab.model.register_forward_hook(lambda *_: None)")
    after = held(notebook)
    notebook.run("stay.remove()")
    assert after["widgets"] > before["widgets"]
    assert after["hooks"] == before["hooks"] + 1


def test_cells_out_of_order_end_where_cells_in_order_do(notebook: Kernel) -> None:
    cells = {method: RECORD.format(method=method) for method in METHODS} | {"figures": FIGURES}

    def end_in_order() -> tuple[str, dict[str, int]]:
        for name, source in cells.items():
            assert not notebook.run(source, cell=name).error
        return str(notebook.value("trace.text")), held(notebook)

    notebook.run(OTHER_ERROR)  # an error that the kernel keeps holds tensors of its frames
    expected = end_in_order()
    for order in (["figures", "eagle1", "ar", "draft"], ["draft", "draft", "ngram", "figures"]):
        for name in order:
            assert not notebook.run(cells[name], cell=name).error
        assert notebook.run("del trace\ntrace.text").error == "NameError"
        assert notebook.run(cells["figures"], cell="figures").error == "NameError"
        assert end_in_order() == expected


def test_a_model_that_is_loaded_again_takes_the_place_of_the_first(
    notebook: Kernel, gguf: Path
) -> None:
    """Memory does not grow with every run of the cell."""
    load = LOAD.format(gguf=str(gguf))
    folder = str(gguf.parent / "head")

    def load_and_use() -> dict[str, int]:
        assert not notebook.run(load).error
        notebook.run(f"lab.head = {folder!r}")
        for method in METHODS:
            assert not notebook.run(RECORD.format(method=method)).error
        counts = held(notebook)
        del counts["widgets"]  # transformers leaves its progress bars for GGUF files open
        return counts

    first = load_and_use()
    assert [load_and_use() for _ in range(3)] == [first] * 3


def test_a_model_that_is_kept_would_be_noticed(notebook: Kernel, gguf: Path) -> None:
    """Negative control of the test above."""
    before = held(notebook)
    weights = notebook.value("sum(one.nbytes for one in lab.model.parameters())")
    notebook.run("kept = lab")
    assert not notebook.run(LOAD.format(gguf=str(gguf))).error
    after = held(notebook)
    notebook.run("del kept")
    assert after["modules"] > before["modules"]
    assert after["bytes"] >= before["bytes"] + weights > before["bytes"]
