"""Draft trees and attention masks: what is drawn is what the engine recorded, at every state.

The pictures are read back from their SVG and held against the record: paths, tests, parents and
candidates of runs that heads with random weights drafted for a tiny model.
"""

import itertools
import json
import re
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import replace
from functools import lru_cache

import pytest
import viz_traces
from helpers import prompt_of, run
from viz_traces import Script

from labkit import viz
from labkit.drafters.eagle import eagle_drafter
from labkit.drafters.shapes import SMALL_TREE, Chain, DynamicTree, Shape
from labkit.errors import BadInput
from labkit.events import Drafted
from labkit.heads.eagle import head_config, random_head
from labkit.target import Target
from labkit.toy import tiny
from labkit.trace import Round, Trace
from labkit.viz.layout import folded_below, layout, pruned_below, visible_nodes
from labkit.viz.panels.mask import MaskPanel
from labkit.viz.panels.tree import FOLDED, OPEN, TreePanel
from labkit.viz.sentences import round_sentence, state_sentence
from labkit.viz.states import State, Story
from labkit.viz.svg import visible
from labkit.viz.theme import LOOKS

SVG = "{http://www.w3.org/2000/svg}"
SHAPES: dict[str, Shape] = {
    "chain": Chain(),
    "static": SMALL_TREE,
    "dynamic": DynamicTree(top_k=4, nodes=15),
}
WIDE, NARROW = 928, 374


@lru_cache
def by_the_engine(shape: str, temperature: float = 0.0) -> Trace:
    model = tiny("llama", layers=8)
    head = random_head(head_config(model, 3), model, seed=3)
    return run(
        Target(model, needs=head.config.needs),
        eagle_drafter(head, shape=SHAPES[shape]),
        prompt_of(9),
        max_new_tokens=16,
        draft_length=4,
        detail="full",
        temperature=temperature,
    )


RUNS = {
    "chain": lambda: by_the_engine("chain"),
    "static": lambda: by_the_engine("static"),
    "static, drawn": lambda: by_the_engine("static", 1.5),
    "dynamic": lambda: by_the_engine("dynamic"),
    "dynamic, drawn": lambda: by_the_engine("dynamic", 1.5),
    "scripted": viz_traces.dynamic,
    "by hand": viz_traces.tree,
}
EACH = pytest.mark.parametrize("make", RUNS.values(), ids=RUNS)


def body(story: Story, state: State, panel: str, width: int) -> ET.Element:
    scene = (TreePanel if panel == "tree" else MaskPanel)(story, width=width).scene(state)
    return ET.fromstring(scene.svg(title="", description=""))


def drawn_nodes(root: ET.Element) -> dict[int, tuple[str, str]]:
    """node -> (colour of its border, first token text) of every chip."""
    found = {}
    for chip in root.iter(f"{SVG}g"):
        if chip.get("data-node") is not None:
            rect, words = chip.find(f"{SVG}rect"), chip.find(f"{SVG}text")
            assert rect is not None
            assert words is not None
            found[int(chip.get("data-node") or 0)] = (rect.get("stroke") or "", words.text or "")
    return found


def drawn_mask(root: ET.Element) -> list[list[bool]]:
    """Rows of the grid, read from its squares."""
    rows = []
    for group in root.iter(f"{SVG}g"):
        paths = group.findall(f"{SVG}path")
        if len(group.findall(f"{SVG}text")) or not paths or "v" not in (paths[0].get("d") or ""):
            continue
        squares = [re.findall(r"M(\d+) 1h", p.get("d") or "") for p in paths]
        full = squares[-2]
        row = sorted((int(x), True) for x in full)
        row += [(int(x), False) for x in (squares[0] if len(paths) == 3 else [])]
        rows.append([seen for _, seen in sorted(row)])
    return rows


def judged(round_: Round, state: State) -> dict[int, str]:
    """What the record says of each tested node by ``state``: the slow, separate reading."""
    if state.phase in ("draft", "score"):
        return {}
    trials = round_.verified.trials if round_.verified else ()
    seen = trials[: state.trials] if state.phase == "verify" else trials
    told = {t.node: "accepted" if t.accepted else "rejected" for t in seen}
    if state.phase in ("commit", "forget") and round_.committed:
        kept = round_.committed.sources.count("draft")
        assert round_.verified
        for node in round_.verified.path[1 + kept :]:
            told[node] = "dropped"  # accepted behind a stop: not in the text
    return told


@EACH
def test_chips_say_what_the_engine_recorded(make) -> None:
    story = Story.of(make())
    tried = Counter()
    for state in story.states:
        if state.at < 0 or state.phase == "finish":
            continue
        round_ = story.rounds[state.at]
        chips = drawn_nodes(body(story, state, "tree", WIDE))
        assert set(chips) == set(range(len(round_.drafted.tokens)))
        told = judged(round_, state)
        for node, (colour, words) in chips.items():
            token = visible(story.trace.token_text(round_.drafted.tokens[node]))
            assert token.startswith(words.rstrip("…"))
            if node in told:
                assert colour == LOOKS[told[node]].colour  # type: ignore[index]
                tried[told[node]] += 1
            elif node:
                assert colour == LOOKS["pending"].colour
    assert sum(tried.values()) > 3


def test_another_path_would_be_noticed() -> None:
    """The test above reads the picture and not the record: a changed record changes the picture."""
    story = Story.of(viz_traces.dynamic())
    state = next(s for s in story.states if s.phase == "verify")
    round_ = story.rounds[state.at]
    assert round_.verified
    first = round_.verified.trials[0]
    flipped = replace(round_.verified, trials=(replace(first, accepted=not first.accepted),))
    other = replace(story, rounds=(replace(round_, verified=flipped), *story.rounds[1:]))
    one, two = (drawn_nodes(body(s, state, "tree", WIDE)) for s in (story, other))
    assert one[first.node] != two[first.node]


@EACH
def test_the_mask_is_the_one_of_the_parents(make) -> None:
    """Each row against a walk up the recorded parents."""
    story = Story.of(make())
    for state in story.states:
        if state.phase != "score":
            continue
        parents = story.rounds[state.at].drafted.parents
        expected = []
        for node in range(len(parents)):
            seen, above = {node}, parents[node]
            while above >= 0:
                seen.add(above)
                above = parents[above]
            expected.append([other in seen for other in range(len(parents))])
        assert drawn_mask(body(story, state, "mask", WIDE)) == expected


def test_a_wrong_parent_would_be_noticed() -> None:
    trace = viz_traces.tree()
    events = tuple(
        replace(e, parents=(-1, 0, 0, 1, 1, 0)) if isinstance(e, Drafted) and e.round == 1 else e
        for e in trace.events
    )
    one, two = Story.of(trace), Story.of(replace(trace, events=events))
    scored = next(s for s in one.states if s.phase == "score")
    masks = [drawn_mask(body(story, scored, "mask", WIDE)) for story in (one, two)]
    assert masks[0] != masks[1]


@EACH
@pytest.mark.parametrize("width", [WIDE, 608, NARROW])
def test_the_targets_own_token_hangs_where_it_was_drawn(make, width: int) -> None:
    story = Story.of(make())
    seen = 0
    for at, round_ in enumerate(story.rounds):
        if not round_.committed or "target" not in round_.committed.sources:
            continue
        assert round_.verified
        state = story.last_of_round(at + 1)
        root = body(story, state, "tree", width)
        told = [t.text or "" for t in root.iter(f"{SVG}title") if "own token" in (t.text or "")]
        word = "resampled" if round_.verified.resampled else "bonus"
        assert len(told) == 1
        assert told[0].endswith(f"{word}, after node {round_.verified.path[-1]}")
        seen += 1
    assert seen


@EACH
@pytest.mark.parametrize("width", [WIDE, 608, NARROW])
def test_chips_lie_right_of_their_parents_and_never_on_each_other(make, width: int) -> None:
    story = Story.of(make())
    deepest = max(tree.depth for tree in story.trees)
    for round_ in story.rounds:
        found = layout(round_, width=width, deepest=deepest, most=24)
        places = {s.node: s for s in found.spots if s.kind == "node"}
        for spot in found.spots:
            assert spot.x + spot.width <= width
            if spot.parent >= 0:
                above = places[spot.parent]
                assert spot.x > above.x
                assert spot.y >= above.y if found.lines else spot.y > above.y
        for y in {s.y for s in found.spots}:
            row = sorted((s.x, s.x + s.width) for s in found.spots if s.y == y)
            assert all(end <= start for (_, end), (start, _) in itertools.pairwise(row))
        assert found.rows == 1 + max(s.y for s in found.spots)


@pytest.mark.parametrize("make", [RUNS["dynamic"], viz_traces.dynamic], ids=["engine", "scripted"])
def test_every_pruned_candidate_is_counted_once_below_its_nearest_node(make) -> None:
    story = Story.of(make())
    pruned = 0
    for round_ in story.rounds:
        rows = round_.drafted.considered
        expected: Counter[int] = Counter()
        for candidate in range(len(rows)):
            above = candidate
            while rows[above][3] < 0:
                above = rows[above][1]
            if above != candidate:
                expected[rows[above][3]] += 1
        assert {node: len(some) for node, some in pruned_below(round_).items()} == expected
        pruned += sum(expected.values())
    assert pruned > 20


def test_large_trees_fold_with_a_count_and_keep_what_was_judged() -> None:
    parents = [0] * 10 + [i // 2 + 1 for i in range(53)]
    script = Script(method="eagle2", draft_length=8, full=True)
    drafted = [f" t{i}" for i in range(63)]
    trace = script.round(drafted, parents=parents, accept=(3, 15), own=".")
    story = Story.of(trace.end())
    round_ = story.rounds[0]
    seen = visible_nodes(round_, FOLDED)
    assert len(seen) <= FOLDED == 16
    assert round_.verified
    assert {0, *round_.verified.path, *(t.node for t in round_.verified.trials)} <= set(seen)
    folded = folded_below(story.trees[0], seen)
    assert len(seen) + sum(folded.values()) == 64
    state = story.last_of_round(1)
    drawn = TreePanel(story, width=WIDE).scene(state).body
    assert sum(int(n) for n in re.findall(r">\+(\d+) nodes?<", drawn)) == 64 - len(seen)
    whole = TreePanel(story, width=WIDE, most=OPEN).scene(state).body
    assert "folded" not in whole
    assert len(set(re.findall(r'data-node="(\d+)"', whole))) == 64
    scored = next(s for s in story.states if s.phase == "score")
    rows = drawn_mask(body(story, scored, "mask", NARROW))
    assert len({len(row) for row in rows} | {len(rows)}) == 1
    assert f"{64 - len(rows)} of them folded" in MaskPanel(story, width=NARROW).scene(scored).body


@pytest.mark.parametrize(
    ("make", "asked", "shown"),
    [
        (viz_traces.tree, None, True), (viz_traces.dynamic, None, True),
        (viz_traces.chain, None, False), (viz_traces.chain, True, True),
        (viz_traces.dynamic, False, False), (viz_traces.plain, True, False),
    ],
)  # fmt: skip
def test_trees_are_shown_where_drafts_branch_or_on_request(make, asked, shown: bool) -> None:
    drawn = viz.still(make(), step=3, tree=asked).svg
    assert ("Draft tree" in drawn, "Attention mask" in drawn) == (shown, shown)
    stepper = viz.Stepper(make(), tree=asked, width=390)
    assert ("Draft tree" in stepper.picture.svg) == shown


def test_sentences_of_a_tree() -> None:
    trace = viz_traces.dynamic()
    assert [repr(viz.draft_tree(trace, round=n)) for n in (1, 3, 4)] == [
        "Round 1 of 4: 15 nodes drafted, 5 deep, 53 candidates pruned, path ' quick' → ' brown' → "
        "' fox' accepted, 1 rejected; the target adds ↻ ' here' resampled.",
        "Round 3 of 4: 15 nodes drafted, 2 deep, 5 candidates pruned, path ' small' → ' wizards' "
        "accepted; the target adds ★ ' then' bonus. The draft stopped early: the head was not "
        "sure enough.",
        "Round 4 of 4: 15 nodes drafted, 4 deep, 53 candidates pruned, no node accepted, 3 "
        "rejected; the target adds ↻ ' slowly' resampled.",
    ]
    assert repr(viz.attention_mask(trace, round=1)) == (
        "Round 1 of 4, attention mask: 16 nodes in one forward; each sees the 4 committed tokens, "
        "its ancestors and itself: 57 of 256 pairs of nodes."
    )
    story = Story.of(trace)
    assert round_sentence(story, 0) == (
        "Round 1 of 4: 15 drafted, 53 candidates pruned, 3 accepted, 1 rejected, 11 not used, "
        "↻ ' here' resampled; KV 4 → 20 → 8 slots."
    )
    drafted = [state_sentence(story, s) for s in story.states if s.phase == "draft"]
    assert "53 more candidates were pruned" in drafted[0]
    assert drafted[2].endswith("The draft stopped early: the head was not sure enough.")
    assert "stopped" not in drafted[0]


def test_a_chain_can_be_looked_at_too() -> None:
    picture = viz.draft_tree(viz_traces.chain(), round=1)
    assert picture.sentence == (
        "Round 1 of 4: 4 nodes drafted, 4 deep, path ' mat' → ',' accepted, 1 rejected; the "
        "target adds ↻ ' purr' resampled."
    )


@pytest.mark.parametrize("ask", [viz.draft_tree, viz.attention_mask])
@pytest.mark.parametrize("number", [0, 9])
def test_a_round_that_does_not_exist_is_refused(ask, number: int) -> None:
    with pytest.raises(BadInput, match=r"round: expected .* got .* Next: "):
        ask(viz_traces.tree(), round=number)


def test_numbers_on_demand() -> None:
    """q, the head's own probability, cumulative confidence and, once tested, p."""
    story = Story.of(viz_traces.dynamic())
    sure = story.rounds[0].drafted.confidence
    first = next(s for s in story.states if s.phase == "draft")
    last = story.last_of_round(1)
    for state, told in ((first, " · not judged yet"), (last, " · p 1 · accepted")):
        root = body(story, state, "tree", WIDE)
        chip = next(g for g in root.iter(f"{SVG}g") if g.get("data-node") == "4")
        title = chip.findtext(f"{SVG}title") or ""
        assert title == (
            f"node 4 · ␣brown · below node 1 · no draw (q 1) · own probability "
            f"{sure[4] / sure[1]:.2f} · cumulative confidence {sure[4]:.2f}{told}"
        )
        assert chip.get("data-path") == "0 1 4"


def test_trees_of_odd_tokens_are_well_formed() -> None:
    script = Script(prompt=("<b>", "\n"), full=True)
    drafted = ["\x00", "<script>", "]]>", "\u202e", "日本語" * 9, "\ud800"]
    story = Story.of(script.round(drafted, parents=(0, 0, 1, 1, 3, 5), accept=(1, 3)).end())
    for width in (WIDE, NARROW):
        for state in story.states:
            body(story, state, "tree", width)
            body(story, state, "mask", width)


def test_trees_are_sent_small_too() -> None:
    """About 64 tokens at full detail, 15 nodes and up to 53 pruned candidates per round."""
    trace = viz_traces.dynamic(22)
    assert 60 <= len(trace.tokens) <= 70
    assert len(trace.dumps().encode()) <= 300_000
    assert len(json.dumps(viz.Stepper(trace, compare=0.04).get_state())) <= 300_000
