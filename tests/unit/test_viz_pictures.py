"""Every picture of every kind of run: well-formed, small, deterministic, and true to the trace."""

import hashlib
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import viz_traces
from viz_traces import Script

from labkit import viz
from labkit.errors import BadInput
from labkit.events import Committed, Verified
from labkit.trace import Trace
from labkit.viz import race
from labkit.viz.board import WIDTHS, board
from labkit.viz.picture import Picture
from labkit.viz.sentences import round_sentence, state_sentence
from labkit.viz.states import Story
from labkit.viz.theme import LOOKS

SVG = "{http://www.w3.org/2000/svg}"
EVERY = pytest.mark.parametrize("make", viz_traces.EVERY.values(), ids=viz_traces.EVERY)
Make = Callable[[], Trace]


def pictures(trace: Trace, widths: tuple[int, ...] = (960, 390)) -> Iterator[Picture]:
    """Every view of a trace, on a desktop and on a phone."""
    for width in widths:
        yield viz.ribbon(trace, width=width)
        yield viz.kv_slots(trace, width=width)
        yield viz.timeline(trace, width=width)
        yield viz.timeline(trace, ar=0.04, width=width)
        yield viz.still(trace, width=width)
        for number in range(1, len(trace.rounds) + 1)[:3]:
            yield viz.ribbon(trace, round=number, width=width)
            yield viz.kv_slots(trace, round=number, width=width)
            yield viz.draft_tree(trace, round=number, width=width)
            yield viz.attention_mask(trace, round=number, width=width)


@EVERY
def test_pictures_are_well_formed_named_and_small(make: Make) -> None:
    for picture in pictures(make()):
        root = ET.fromstring(picture.svg)
        assert root.get("role") == "img"
        assert root.findtext(f"{SVG}title")
        assert root.findtext(f"{SVG}desc")
        assert len(list(root.iter())) <= 2000
        assert not [node for node in root.iter() if node.get("id") or node.tag == f"{SVG}script"]
        width, height = float(root.get("width") or 0), float(root.get("height") or 0)
        assert root.get("viewBox") == f"0 0 {width:g} {height:g}"


def test_long_runs_fold() -> None:
    for trace in (viz_traces.long_run(256, prompt=300), wide_tree(), viz_traces.plain(300)):
        for picture in (
            viz.ribbon(trace),
            viz.kv_slots(trace),
            viz.still(trace),
            viz.timeline(trace),
        ):
            assert len(list(ET.fromstring(picture.svg).iter())) <= 2000
    assert "folded" in viz.ribbon(viz_traces.long_run(256)).svg
    assert "folded" not in viz.ribbon(viz_traces.chain()).svg


def wide_tree() -> Trace:
    script = Script(method="eagle2", draft_length=8, full=True)
    parents = [0] * 10 + [i // 2 + 1 for i in range(53)]
    return script.round(
        [f" t{i}" for i in range(63)], parents=parents, accept=(3, 15), own="."
    ).end()


@EVERY
def test_pieces_stay_on_the_page(make: Make) -> None:
    """No chip, slot or panel is wider than the page that it was drawn for."""
    story = Story.of(make())
    for width in WIDTHS:
        for panel in board(story, width=width).panels:
            assert panel.x + panel.width <= width
            for state in story.states[:40]:
                scene = panel.scene(state)
                assert scene.height <= panel.height
                assert all(
                    -8 <= p.x <= panel.width and 0 <= p.y <= panel.height for p in scene.pieces
                )


@EVERY
def test_panels_keep_their_height(make: Make) -> None:
    story = Story.of(make())
    for panel in board(story, width=640).panels:
        assert len({panel.draw(state).height for state in story.states}) == 1, panel.name


@EVERY
def test_a_saved_trace_draws_the_same_bytes(make: Make, tmp_path: Path) -> None:
    trace = make()
    again = Trace.load(trace.save(tmp_path / "t.json"))
    for one, other in zip(pictures(trace, (640,)), pictures(again, (640,)), strict=True):
        assert one == other


def test_a_saved_trace_draws_the_same_bytes_beyond_six_digits(tmp_path: Path) -> None:
    """0.1250000000001 reads 0.13 and its six digits 0.125 read 0.12: rounding comes first."""
    trace = viz_traces.corrected()
    events = tuple(
        replace(e, trials=tuple(replace(t, u=0.1250000000001) for t in e.trials))
        if isinstance(e, Verified)
        else e
        for e in trace.events
    )
    trace = replace(trace, events=events)
    again = Trace.load(trace.save(tmp_path / "t.json"))
    assert f"{0.1250000000001:.2f}" != f"{0.125:.2f}"
    assert viz.still(trace, step=3).svg == viz.still(again, step=3).svg


def test_other_processes_draw_the_same_bytes() -> None:
    script = (
        "import sys, hashlib; sys.path.insert(0, 'tests/unit'); import viz_traces\n"
        "from test_viz_pictures import pictures\n"
        "h = hashlib.sha256()\n"
        "for make in (viz_traces.chain, viz_traces.tree, viz_traces.odd_tokens):\n"
        "    for p in pictures(make(), (640,)): h.update(p.svg.encode())\n"
        "print(h.hexdigest())"
    )
    root = Path(__file__).parents[2]
    seen = {
        subprocess.run(
            [sys.executable, "-c", script],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(root)},
            capture_output=True, text=True, check=True, cwd=root,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    here = hashlib.sha256()
    for make in (viz_traces.chain, viz_traces.tree, viz_traces.odd_tokens):
        for picture in pictures(make(), (640,)):
            here.update(picture.svg.encode())
    assert seen == {here.hexdigest() + "\n"}


def chips(svg: str) -> list[tuple[str, str, str]]:
    """(colour, glyph, words) of the chips in the text row, in order."""
    found = []
    for group in ET.fromstring(svg).iter(f"{SVG}g"):
        told = group.findtext(f"{SVG}title") or ""
        rect = group.find(f"{SVG}rect")
        if "· token " in told and rect is not None and rect.get("height") == "42":
            words = [t.text or "" for t in group.findall(f"{SVG}text")]
            found.append((rect.get("stroke") or "", "".join(words[1:]), words[0]))
    return found


def test_colours_and_glyphs_tell_the_provenance() -> None:
    shown = chips(viz.ribbon(viz_traces.corrected()).svg)[len(viz_traces.PROMPT) :]
    assert shown == [
        (LOOKS["accepted"].colour, "✓", "␣mat"),
        (LOOKS["accepted"].colour, "✓", ","),
        (LOOKS["resampled"].colour, "↻", "␣small"),
    ]
    assert "␣big · token" in viz.ribbon(viz_traces.corrected()).svg  # the rejected one, below


def test_other_sources_give_other_colours() -> None:
    trace = viz_traces.corrected()
    events = tuple(
        replace(e, resampled=False, trials=()) if isinstance(e, Verified) else e
        for e in trace.events
    )
    swapped = chips(viz.ribbon(replace(trace, events=events)).svg)
    assert swapped != chips(viz.ribbon(trace).svg)


def test_every_status_has_its_glyph_in_the_stepper() -> None:
    trace = viz_traces.chain()
    seen = "".join(viz.still(trace, step=i).svg for i in range(len(Story.of(trace).states)))
    for status in ("accepted", "rejected", "resampled", "bonus", "pending", "dropped"):
        look = LOOKS[status]  # type: ignore[index]
        assert f">{look.glyph}<" in seen
        assert f"· {look.word}</title>" in seen


def test_a_draw_in_the_zone_is_an_accepted_token() -> None:
    """The picture is the rule: the dot lies left of the threshold exactly when it was accepted."""
    trace = viz_traces.long_run(24)
    story = Story.of(trace)
    inside = outside = 0
    for state in story.states:
        if state.phase != "verify":
            continue
        trial = story.rounds[state.at].verified.trials[state.trials - 1]  # type: ignore[union-attr]
        dot, edge = dot_and_edge(viz.still(trace, step=state.index).svg, trial.node - 1)
        assert (dot < edge) == trial.accepted
        inside, outside = inside + trial.accepted, outside + (not trial.accepted)
    assert min(inside, outside) > 3


def dot_and_edge(svg: str, row: int) -> tuple[float, float]:
    root = ET.fromstring(svg)
    parts = [g for g in root.iter(f"{SVG}g") if g.get("data-part")]
    path = [g for g in parts if g.get("data-part") == "threshold"][row].find(f"{SVG}path")
    circle = [g for g in parts if g.get("data-part") == "u"][row].find(f"{SVG}circle")
    assert path is not None
    assert circle is not None
    return float(circle.get("cx") or 0), float((path.get("d") or "").split("L")[1].split()[0])


def test_near_ties_are_marked() -> None:
    trace = viz_traces.corrected()
    assert "near tie" not in viz.ribbon(trace).svg
    events = tuple(
        replace(e, near_ties=(False, True, False)) if isinstance(e, Committed) else e
        for e in trace.events
    )
    tied = replace(trace, events=events)
    assert ", · token 16 · accepted · near tie" in viz.ribbon(tied).svg
    told = [state_sentence(Story.of(tied), s) for s in Story.of(tied).states]
    assert any("Near tie: the two best were almost equal at ','" in words for words in told)


def test_sentences_of_a_round() -> None:
    story = Story.of(viz_traces.chain())
    assert [round_sentence(story, at) for at in range(4)] == [
        "Round 1 of 4: 4 drafted, 2 accepted, 1 rejected, 1 not used, ↻ ' purr' resampled; "
        "KV 4 → 9 → 7 slots.",
        "Round 2 of 4: 4 drafted, 4 accepted, ★ ' It' bonus; KV 7 → 12 → 12 slots.",
        "Round 3 of 4: 4 drafted, 0 accepted, 1 rejected, 3 not used, ↻ ' is' resampled; "
        "KV 12 → 17 → 13 slots.",
        "Round 4 of 4: 4 drafted, 3 accepted, 1 rejected, ↻ '!' resampled; KV 13 → 18 → 17 slots.",
    ]


def test_sentences_of_the_states_of_a_round() -> None:
    story = Story.of(viz_traces.corrected())
    told = [state_sentence(story, state) for state in story.states]
    assert told[0] == (
        "Start: 5 prompt tokens; 4 in the cache, ' the' pending. Wanted: 64 new tokens; "
        "'draft' drafts up to 4 tokens deep per round."
    )
    assert told[1] == ("Round 1 of 1, draft: the drafter proposes 3 tokens: ' mat', ',', ' big'.")
    assert told[2] == (
        "Round 1 of 1, score: one forward of the target reads the pending ' the' and 3 drafted "
        "into slots 4–7; KV 4 → 8 slots."
    )
    assert told[5].startswith("Round 1 of 1, verify: test 3, ' big': p ")
    assert told[5].endswith("is not below it. ✗ rejected.")
    assert told[6] == (
        "Round 1 of 1, commit: 2 drafted tokens join the text; the target adds ↻ ' small', drawn "
        "from what p has over q, because the draft was rejected here."
    )
    assert told[7] == "Round 1 of 1, forget: slot 7 is forgotten; KV 4 → 8 → 7 slots."
    assert told[8] == (
        "Finished (eos): 3 new tokens in 1 round. Drafted 3 (3.00 per round), accepted 2 (rate "
        "0.67); accepted per round 2.00, committed per round 3.00 (mean accepted length)."
    )


def test_a_run_that_drafts_nothing_reads_na() -> None:
    """0 drafted: no rate is made up, the mean length is 1, everything renders."""
    trace = viz_traces.nothing_drafted()
    picture = viz.still(trace)
    assert picture.sentence == (
        "Finished (eos): 2 new tokens in 2 rounds. Nothing was drafted: acceptance n/a, accepted "
        "per round 0.00, committed per round 1.00 (mean accepted length)."
    )
    shown = [node.text for node in ET.fromstring(picture.svg).iter(f"{SVG}text")]
    assert shown[shown.index("accepted / drafted") + 1] == "n/a"
    assert shown[shown.index("committed per round") + 1] == "1.00"


def test_a_recording_that_was_cut_short_says_so() -> None:
    assert viz.still(viz_traces.cut_short()).sentence.endswith("The recording ends here.")
    assert "cut short" in viz.ribbon(viz_traces.cut_short()).sentence
    assert "recording ends" not in viz.still(viz_traces.chain()).sentence


@pytest.mark.parametrize(
    ("ar", "words"),
    [(0.1, "Faster here"), (0.001, "Slower here"), (None, "not measured")],
)
def test_the_timeline_is_honest(ar: float | None, words: str) -> None:
    picture = viz.timeline(viz_traces.chain(), ar=ar)
    assert words in picture.svg
    assert picture.sentence.startswith("Slower here: ") == (words == "Slower here")


def test_the_timeline_is_to_scale() -> None:
    """Draft 8 ms and target 45 ms in every round: their blocks have these widths."""
    lanes: dict[str, list[float]] = {"drafting": [], "forward": [], "plain": []}
    for node in ET.fromstring(viz.timeline(viz_traces.chain(), ar=0.02).svg).iter(f"{SVG}path"):
        told, path = node.findtext(f"{SVG}title") or "", node.get("d") or ""
        for word, widths in lanes.items():
            if word in told:
                widths += [float(p.split("h")[1].split("v")[0]) + 0.6 for p in path.split("M")[1:]]
    drafted, scored, plain = lanes.values()
    assert sum(scored) / sum(drafted) == pytest.approx(45 / 8, rel=0.02)
    assert len(plain) == 13
    assert sum(plain) / sum(scored) == pytest.approx(13 * 20 / (4 * 45), rel=0.02)


def test_plain_decoding_can_be_measured_on_a_trace() -> None:
    plain = viz_traces.plain()
    seconds = 0.0385 + 0.0012
    assert (
        viz.timeline(viz_traces.chain(), ar=plain).svg
        == viz.timeline(viz_traces.chain(), ar=seconds).svg
    )


@pytest.mark.parametrize(
    "ask",
    [
        lambda t: viz.ribbon(t, round=0),
        lambda t: viz.ribbon(t, round=5),
        lambda t: viz.kv_slots(t, round=9),
        lambda t: viz.ribbon(t, node=1),
        lambda t: viz.ribbon(t, round=1, node=5),
        lambda t: viz.still(t, step=999),
        lambda t: viz.still(Trace(())),
    ],
)
def test_what_does_not_exist_is_refused_by_name(ask: Callable[[Trace], object]) -> None:
    with pytest.raises(BadInput, match=r"expected .* got .* Next: "):
        ask(viz_traces.chain())


def test_every_name_that_is_promised_is_loaded_on_demand() -> None:
    assert dir(viz) == sorted(viz.__all__)
    assert all(getattr(viz, name) for name in viz.__all__)
    assert viz.RaceRecord is race.RaceRecord
    with pytest.raises(AttributeError, match="has no attribute 'Race'"):
        _ = viz.Race  # it runs models; `labkit.lab.race`


def test_details_on_demand() -> None:
    trace = viz_traces.chain()
    first = viz.ribbon(trace, round=1, node=1).svg
    last = viz.ribbon(trace, round=1, node=4).svg
    assert "Likeliest tokens here" in first
    assert first != last
    assert "Likeliest tokens here" not in viz.ribbon(Script().round([" a"]).end(), round=1).svg


def test_three_representations() -> None:
    picture = viz.kv_slots(viz_traces.chain(), round=1)
    bundle = picture._repr_mimebundle_()
    assert bundle["text/plain"] == repr(picture) == picture.sentence
    assert bundle["image/svg+xml"] == picture.svg
    assert picture.svg in bundle["text/html"]
    assert "<script" not in bundle["text/html"]
    assert 'overflow-x:auto"><div style="min-width:640px"' in bundle["text/html"]  # on a phone
    narrow = viz.kv_slots(viz_traces.chain(), width=390)
    assert "min-width:390px" in narrow.html
    ET.fromstring(bundle["text/html"].replace("<br>", "<br/>"))
