"""A trace that loads can be drawn by every view; what could not is refused, by round and event."""

import base64
import copy
import json
import math
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import viz_traces
from helpers import prompt_of, tiny
from typer.testing import CliRunner

from labkit import cli, metrics, trace_check, viz
from labkit.config import DecodeConfig
from labkit.decode import speculate
from labkit.drafters.draft_model import DraftModel
from labkit.errors import BadInput, LabError
from labkit.gallery import gallery
from labkit.gallery.shelf import open_run
from labkit.lab import broken
from labkit.target import Target
from labkit.toy import tiny as other_model
from labkit.trace import Trace
from labkit.viz import sentences
from labkit.viz.panels import timeline
from labkit.viz.states import Story
from labkit.viz.tale import Tale

Record = dict[str, Any]


def small() -> Record:
    """One round: a, b drafted, a accepted, c resampled."""
    script = viz_traces.Script(prompt=("The", " cat"), full=True)
    trace = script.round([" a", " b"], accept=1, own=" c").end()
    header = {"title": "small", "settings": {"temperature": 0.0}}
    record: Record = json.loads(Trace(trace.events, header, trace.vocabulary).dumps())
    return record


def grown() -> Record:
    """One tree with pruned candidates, and a round that drafts nothing."""
    script = viz_traces.Script(prompt=("The", " cat"), method="eagle2", full=True, draft_length=2)
    drafted, parents, told = viz_traces.grow(script, depth=2, top_k=2, nodes=3)
    script.round(drafted, parents=parents, accept=(1,), own=" c", grown=told, greedy=True)
    record: Record = json.loads(script.round(own=" e").end().dumps())
    return record


def draw(trace: Trace) -> None:
    """Every view of a run."""
    story, rounds = Story.of(trace), range(1, len(trace.rounds) + 1)
    viz.still(trace, ar=0.04)
    Tale.of(trace, compare=0.04, width=360, title=None, tree=True).film()
    viz.ribbon(trace)
    viz.kv_slots(trace)
    viz.timeline(trace, ar=trace)
    for number in rounds:
        viz.draft_tree(trace, round=number)
        viz.attention_mask(trace, round=number)
        viz.kv_slots(trace, round=number)
        viz.ribbon(trace, round=number)
        sentences.round_sentence(story, number - 1)
        sentences.tree_sentence(story, number - 1)
    for state in story.states:
        sentences.state_sentence(story, state)
    json.dumps(trace.chrome(), allow_nan=False)
    assert viz.share(trace).html
    metrics.acceptance_by_depth(trace)
    metrics.calibration(trace)
    metrics.tokens_by_nodes(trace, most=4)


# --- what passes


@pytest.mark.parametrize("make", viz_traces.EVERY.values(), ids=viz_traces.EVERY)
def test_a_run_passes_whole_and_cut_short_anywhere(make: Callable[[], Trace]) -> None:
    whole = make()
    for count in range(1, len(whole.events) + 1):
        cut = Trace(whole.events[:count], {}, whole.vocabulary)
        assert Trace.from_json(json.loads(cut.dumps())).events == cut.as_saved().events
    for count in range(1, min(len(whole.events), 7)):
        draw(Trace(whole.events[:count], {}, whole.vocabulary))


@pytest.mark.parametrize("name", gallery.names)
def test_every_run_of_the_gallery_passes(name: str) -> None:
    run = gallery.open(name)
    assert run.checked() is run


@pytest.mark.parametrize("wrap", [broken.NeverForgets, broken.Resets])
def test_the_run_of_a_cache_that_is_wrong_on_purpose_can_be_seen(wrap: Any) -> None:
    """Lessons step through it: the picture is what shows the fault."""
    drafter = DraftModel(other_model("llama", seed=5), vocab_size=tiny().config.vocab_size)
    config = DecodeConfig(max_new_tokens=8, draft_length=3, detail="full")
    events = speculate(wrap(Target(tiny())), drafter, prompt_of(5), config=config)
    trace = Trace.record(events)
    assert any(r.accepted < len(r.drafted.tokens) - 1 for r in trace.rounds), "nothing to forget"
    draw(Trace.from_json(json.loads(trace.dumps())))


# --- what does not: one wrong thing each


def setting(kind: str, name: str, value: Any, *, at: int = 0) -> Callable[[Record], None]:
    """Put ``value`` into the field of the ``at``-th event of the kind."""

    def change(record: Record) -> None:
        [e for e in record["events"] if e["kind"] == kind][at][name] = value

    return change


def without(kind: str) -> Callable[[Record], None]:
    def change(record: Record) -> None:
        record["events"] = [e for e in record["events"] if e["kind"] != kind]

    return change


def events(change: Callable[[list[Record]], list[Record]]) -> Callable[[Record], None]:
    def put(record: Record) -> None:
        record["events"] = change(record["events"])

    return put


WRONG: dict[str, tuple[Callable[[Record], None], str]] = {
    "path to nowhere": (setting("verified", "path", [0, 7]), "round 1, verified, path"),
    "path that jumps": (setting("verified", "path", [0, 2]), "round 1, verified, path"),
    "path without root": (setting("verified", "path", [1]), "round 1, verified, path"),
    "no path": (setting("verified", "path", []), "round 1, verified, path"),
    "test of no node": (
        setting("verified", "trials", [[9, 0.5, 0.5, 0.1, True]]), "verified, trials[0]",
    ),
    "test of the root": (
        setting("verified", "trials", [[0, 0.5, 0.5, 0.1, True]]), "verified, trials[0]",
    ),
    "path without its tests": (
        setting("verified", "trials", [[1, 0.5, 0.5, 0.9, False]]), "trials, accepted",
    ),
    "bonus after a rejection": (setting("verified", "resampled", False), "verified, resampled"),
    "u above 1": (
        setting("verified", "trials", [[1, 0.5, 0.5, 1.5, True]]), "trials[0]: expected probab",
    ),
    "slots without end": (setting("scored", "node_slots", [1, 2, 10**12]), "scored, node_slots"),
    "negative slot": (setting("scored", "node_slots", [1, 2, -1]), "scored, node_slots"),
    "one slot for two": (setting("scored", "node_slots", [1, 2, 2]), "scored, node_slots"),
    "a slot in use": (setting("scored", "node_slots", [0, 1, 2]), "scored, node_slots"),
    "a slot too few": (setting("scored", "node_slots", [1, 2]), "expected 3 slots, got 2"),
    "another context": (setting("scored", "context", 5), "scored, context"),
    "slots by too small a count": (setting("scored", "slots_after", 2), "scored, slots_after"),
    # as many as that may be in use while a forward of fixed width is judged, but not before it
    "slots by a wrong count": (setting("scored", "slots_after", 9), "verified, slots_before"),
    "never scored": (without("scored"), "round 1, verified: expected scored, got after drafted"),
    "never verified": (without("verified"), "committed: expected verified, got after scored"),
    "never committed": (without("committed"), "finished: expected committed, got after verified"),
    "no beginning": (without("started"), "prefilled: expected started"),
    "never read": (without("prefilled"), "drafted: expected prefilled"),
    "no event": (events(lambda some: []), "expected a started event"),
    "backwards": (events(lambda some: some[::-1]), "finished: expected started"),
    "twice": (events(lambda some: [*some[:3], *some[2:]]), "drafted: expected scored"),
    "after the end": (events(lambda some: [*some, some[-1]]), "finished: expected no event"),
    "wrong round": (setting("scored", "round", 2), "round 2, scored, round"),
    "another sequence": (setting("scored", "sequence", 1), "scored, sequence"),
    "parents forward": (setting("drafted", "parents", [-1, 2, 0]), "parents[1]"),
    "negative token": (setting("drafted", "tokens", [11, -1, 3]), "round 1, drafted, tokens"),
    "another root": (setting("drafted", "tokens", [12, 12, 13]), "drafted, tokens, the root"),
    "too many nodes": (
        setting("drafted", "tokens", [11] * 5000), "expected at most 1024 nodes, got 5000",
    ),
    "q of too few": (setting("drafted", "q", [None, 0.5]), "drafted, q: expected 3 entries"),
    "q above 1": (setting("drafted", "q", [None, 0.5, 1.5]), "drafted, q: expected probab"),
    "p of too few": (setting("scored", "p_top", [[]]), "scored, p_top: expected 3 entries"),
    "p above 1": (setting("scored", "p_top", [[10, 3.0], [], []]), "p_top: expected probab"),
    "twice the same token": (
        setting("scored", "p_top", [[10, 0.5, 10, 0.25], [], []]), "p_top: expected tokens once",
    ),
    "the likeliest last": (
        setting("scored", "p_top", [[10, 0.25, 11, 0.5], [], []]), "p_top: expected tokens once",
    ),
    "negative likeliest token": (
        setting("verified", "residual_top", [[-5, 0.5]]), "residual_top: expected token ids",
    ),
    "huge likeliest token": (
        setting("verified", "residual_top", [[2**40, 0.5]]), "residual_top: expected token ids",
    ),
    "other tokens": (setting("committed", "tokens", [12, 13]), "round 1, committed, tokens"),
    "no tokens": (setting("committed", "tokens", []), "round 1, committed, tokens"),
    "other sources": (
        setting("committed", "sources", ["target", "draft"]), "committed, sources",
    ),
    "kept the rejected": (setting("committed", "kept_slots", [1, 3]), "committed, kept_slots"),
    "freed too few": (setting("committed", "freed_slots", []), "committed, freed_slots"),
    "freed twice": (setting("committed", "freed_slots", [3, 3]), "committed, freed_slots"),
    "ties of too few": (setting("committed", "near_ties", [True]), "committed, near_ties"),
    "likelier than certain": (setting("committed", "logprobs", [1.0, 0.0]), "logprobs"),
    "another count": (setting("finished", "new_tokens", 3), "finished, new_tokens"),
    "a reason of a mile": (setting("finished", "reason", "x" * 999), "finished, reason"),
    "half a character": (setting("started", "method", "\ud800"), "started, method"),
    "no prompt": (setting("started", "prompt", []), "started, prompt"),
    "no such stop": (setting("drafted", "stopped", "tired"), "drafted, stopped"),
    "more cached than read": (setting("prefilled", "tokens", 9), "prefilled, tokens"),
    "time backwards": (setting("scored", "seconds", -1.0), "round 1, scored, seconds"),
    "time without end": (setting("drafted", "seconds", 1e308), "round 1, drafted, seconds"),
    "time of nothing": (setting("drafted", "seconds", 1e-320), "round 1, drafted, seconds"),
    "forwards without end": (setting("drafted", "forwards", 10**400), "drafted, forwards"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_belong_together_is_refused_by_name(name: str) -> None:
    change, told = WRONG[name]
    record = small()
    change(record)
    with pytest.raises(BadInput) as caught:
        Trace.from_json(record)
    assert told in str(caught.value)
    assert "Next: " in str(caught.value)


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ([5, 7, 0.5, -1], "considered[1]: expected a parent from 0 to 0"),
        ([5, 1, 0.5, -1], "considered[1]: expected a parent from 0 to 0"),
        ([-5, 0, 0.5, -1], "considered: expected token ids"),
        ([2**40, 0, 0.5, -1], "considered: expected token ids"),
        ([5, 0, 7.5, -1], "considered: expected probabilities"),
        ([5, 0, 0.5, 99], "considered[1]: expected a number from -1"),
        ([5, 0, 0.5, 0], "considered[1]: expected node 0 once"),
        ([5, 0, 0.5, 1], "considered[1]: expected node 1 once, as in the draft"),
    ],
)
def test_candidates_that_are_none_are_refused(row: list[Any], told: str) -> None:
    record = grown()
    drafted = next(e for e in record["events"] if e["kind"] == "drafted")
    root = [drafted["tokens"][0], -1, 1.0, 0]
    drafted["considered"] = [root, row]
    with pytest.raises(BadInput) as caught:
        Trace.from_json(record)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("part", "told"),
    [
        ({"vocabulary": {"1": "x" * 1001}}, "of 1001 characters, above 1000"),
        ({"vocabulary": {"-1": "x"}}, "vocabulary, '-1'"),
        ({"vocabulary": {"1": ["x", "y"]}}, "vocabulary, '1'"),
        ({"vocabulary": []}, "vocabulary: []"),
        ({"header": {"settings": 3}}, "header: "),
        ({"header": {"settings": {"temperature": "hot"}}}, "temperature 'hot'"),
        ({"header": {"seconds": math.inf}}, "numbers without end"),
        ({"header": {"live": "x" * 4_000_001}}, "characters, above"),
        ({"events": {"a": 1}}, "events: {'a': 1}"),
        ({"events": [3]}, "an event 3"),
    ],
)
def test_what_stands_beside_the_events_is_looked_at(part: Record, told: str) -> None:
    with pytest.raises(BadInput) as caught:
        Trace.from_json(small() | part)
    assert told in str(caught.value)


def test_a_vocabulary_larger_than_any_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_check, "MOST_NAMES", 20)
    names = {str(i): "x" for i in range(21)}
    with pytest.raises(BadInput, match="a vocabulary of 21 tokens, above 20"):
        Trace.from_json(small() | {"vocabulary": names})


def test_what_would_take_minutes_to_draw_is_only_not_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A long run is lost to nobody: it loads, and its numbers can be had."""
    for name, most in (("MOST_STEPS", 5), ("MOST_CELLS", 3), ("MOST_LISTED", 6)):
        with monkeypatch.context() as limit:
            limit.setattr(trace_check, name, most)
            trace = Trace.from_json(small())
            assert metrics.acceptance(trace).rounds
            with pytest.raises(BadInput, match=f"round 1, .*: expected at most {most} "):
                Story.of(trace)


# --- the whole kind: every leaf through nonsense

NONSENSE: tuple[Any, ...] = (
    None, True, -1, 10**12, 1e308, -0.5, 0.5, 0, 1, math.nan, "x", "\ud800", [], {}, [[]], [0],
)  # fmt: skip


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    parts = value.items() if isinstance(value, dict) else ()
    parts = enumerate(value) if isinstance(value, list) else parts
    for key, part in parts:
        yield from leaves(part, (*path, key))


def mutants(record: Record) -> Iterator[tuple[str, Record]]:
    """(which field and how, the record with it changed); of entries of one list the first few."""
    for path in leaves(record):
        name = ".".join(str(key) for key in path if type(key) is str) + f"/{len(path)}"
        if any(type(key) is int and key > 1 for key in path[2:]):
            continue
        for how in (*NONSENSE, "drop", "twice", "swap"):
            changed = copy.deepcopy(record)
            spot: Any = changed
            for key in path[:-1]:
                spot = spot[key]
            key = path[-1]
            if how == "drop":
                del spot[key]
            elif how == "twice" and isinstance(spot, list):
                spot.insert(key, spot[key])
            elif how == "swap" and isinstance(spot, list):
                spot[key], spot[key - 1] = spot[key - 1], spot[key]
            else:
                spot[key] = how
            yield f"{name} {how!r}", changed


@pytest.mark.parametrize("make", [small, grown])
def test_what_loads_can_be_drawn(make: Callable[[], Record]) -> None:
    loaded, refused = 0, 0
    drawn: Counter[str] = Counter()
    for name, record in mutants(make()):
        try:
            trace = Trace.from_json(record)
        except LabError:
            refused += 1
            continue
        loaded += 1
        field = name.rpartition(" ")[0]
        if drawn[field] < 2:
            draw(trace)
        drawn[field] += 1
    assert refused > 5 * loaded > 0
    assert len(drawn) > 25


# --- times


@pytest.mark.parametrize("span", [5e-324, 1e-300, 1e-12, 0.37, 1.0, 1e6, 1e100, 1.7e308])
@pytest.mark.parametrize("width", [100, 900])
def test_an_axis_of_any_span_has_a_few_ticks(span: float, width: int) -> None:
    [axis] = timeline._axis(span, width / span if span > 1e-300 else 1.0, 0)
    assert 1 <= axis.markup.count("<text") <= 6


def test_ticks_are_round_numbers_and_no_smaller_than_asked() -> None:
    for raw in (1e-9, 3e-3, 0.02, 0.3, 1.0, 1.1, 2.0, 4.9, 5.1, 70.0, 1e6):
        step = timeline._nice(raw)
        assert raw <= step * (1 + 1e-12) <= 2.5 * raw * (1 + 1e-9)
        assert float(f"{step:e}"[0]) in (1, 2, 5, 9)  # 9: 1e-5, a hair below


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf, 1e308, 5e-324, "x", True])
def test_a_pace_that_no_clock_measured_is_refused(seconds: Any) -> None:
    with pytest.raises(BadInput, match="seconds per token of plain decoding"):
        viz.timeline(viz_traces.chain(), ar=seconds)


# --- files and paths

LONG = "x" * 300 + ".json"


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("no\0where.json", "a name that no file can have"),
        (LONG, "File name too long"),
        ("nowhere.json", "No such file"),
        (".", "Is a directory"),
    ],
)
def test_a_path_that_cannot_be_read_is_refused_in_words(path: str, told: str) -> None:
    for read in (Trace.load, open_run):
        with pytest.raises(BadInput) as caught:
            read(path)
        assert told in str(caught.value)
        assert "Error" not in str(caught.value)
        assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "path", ["no\0where.json", LONG, "x" * 250 + ".json", ".", "none/run.json"]
)
def test_a_path_that_cannot_be_written_is_refused_in_words(path: str) -> None:
    trace = viz_traces.corrected()
    for write in (trace.save, trace.to_chrome):
        with pytest.raises(BadInput) as caught:
            write(path)
        assert "Error" not in str(caught.value)


def test_a_folder_that_cannot_be_is_no_gallery() -> None:
    for folder in ("no\0where", "x" * 300):
        with pytest.raises(BadInput, match="a folder with recorded runs"):
            gallery(folder)


@pytest.mark.parametrize("out", [LONG, ".", "none/run.json"])
def test_the_command_line_looks_at_the_output_first(
    out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a run is read or a model is loaded."""
    monkeypatch.chdir(tmp_path)

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("work began")

    monkeypatch.setattr("labkit.gallery.shelf.open_run", never)
    monkeypatch.setattr("labkit.cli_decode._open", never)
    monkeypatch.setattr("labkit.lab.session.open_lab", never)
    for arguments in (
        ["trace", "chrome", "chat-ar", out],
        ["trace", "measure", "--out", out],
        ["generate", "--prompt", "Hello", "--method", "ngram", "--trace", out],
    ):
        done = CliRunner().invoke(cli.app, arguments)
        assert isinstance(done.exception, BadInput), arguments
    assert os.listdir(tmp_path) == []


def test_numbers_that_json_does_not_know_are_refused(tmp_path: Path) -> None:
    text = json.dumps(small())
    for word in ("NaN", "Infinity", "-Infinity", "1e999"):
        path = tmp_path / "run.json"
        path.write_text(text.replace('"seconds": 0.05', f'"seconds": {word}'))
        assert word in path.read_text()
        with pytest.raises(BadInput):
            Trace.load(path)


def test_the_file_is_named(tmp_path: Path) -> None:
    """A folder of runs is refused as a whole: which of them is wrong?"""
    record = small()
    WRONG["no path"][0](record)
    for content in (json.dumps(record), '{"schema": 1, "events": 3}', '{"schema": 99}'):
        (tmp_path / "run.json").write_text(content)
        with pytest.raises(BadInput, match=r"^trace file '.*run\.json'"):
            _ = gallery(tmp_path).entries
        opener = viz.Opener()
        opener.file = ["run.json", base64.b64encode(content.encode()).decode()]
        assert opener.told.startswith("✗ trace file 'run.json'")


def test_a_title_of_half_a_character_is_shown(tmp_path: Path) -> None:
    record = small()
    record["header"] |= {"title": "\ud800" * 500, "model": "\ud800"}
    Trace.from_json(record).save(tmp_path / "run.json")
    shelf = gallery(tmp_path)
    json.dumps(shelf._repr_mimebundle_(), ensure_ascii=False).encode()
    shelf.play("run")
    done = CliRunner().invoke(cli.app, ["trace", "show", str(tmp_path / "run.json")])
    assert done.exit_code == 0


def test_a_heading_of_half_a_character_is_packed() -> None:
    film = Tale.of(viz_traces.chain(), compare=None, width=360, title="\ud800").film()
    assert json.loads(zlib.decompress(base64.b64decode(film)))["label"] == "\ud800"


@pytest.mark.parametrize("make", viz_traces.EVERY.values(), ids=viz_traces.EVERY)
def test_the_totals_of_a_story_are_those_of_its_rounds(make: Callable[[], Trace]) -> None:
    """Added up round by round, against counting every beginning of the run anew."""
    trace = make()
    ends = [i + 1 for i, e in enumerate(trace.events) if e.kind == "committed"]
    counted = [metrics.acceptance(Trace(trace.events[:end])) for end in (0, *ends)]
    assert list(Story.of(trace).totals[: len(counted)]) == counted
