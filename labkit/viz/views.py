"""The pictures that a notebook asks for by name.

Owns: which moment a picture shows, and its title. Does not know: how panels are drawn.
Invariants: pure functions of the trace; the same arguments give the same bytes.
"""

from labkit.errors import BadInput
from labkit.trace import Trace
from labkit.viz.panels.inspector import inspector_scene
from labkit.viz.panels.mask import MaskPanel
from labkit.viz.panels.ribbon import Ribbon
from labkit.viz.panels.slots import round_slots_scene, slots_scene
from labkit.viz.panels.timeline import timeline_scene
from labkit.viz.panels.tree import TreePanel
from labkit.viz.picture import Picture
from labkit.viz.sentences import (
    mask_sentence,
    plain_seconds,
    round_sentence,
    run_sentence,
    slots_sentence,
    slots_title,
    timing,
    tree_sentence,
)
from labkit.viz.states import State, Story
from labkit.viz.svg import Piece, Scene, stack, text
from labkit.viz.tale import Tale

_MARGIN = 12


def ribbon(
    trace: Trace,
    *,
    round: int | None = None,
    node: int | None = None,
    width: int = 960,
    lines: int = 12,
) -> Picture:
    """The new tokens and what became of each drafted one.

    Args:
        round: stop after this round (1 is the first) and show its accept tests, p, q and u.
        node: with ``round``: list the likeliest tokens at this drafted node (full detail only).
        width: of the page, in CSS pixels.
        lines: most lines of text; older ones fold.

    Raises:
        BadInput: there is no such round or node.
    """
    story = Story.of(trace)
    state = _moment(story, round)
    if node is not None:
        _check_node(story, round, node)
    inner = width - 2 * _MARGIN
    scenes = [("", Ribbon(story, width=inner, most=lines).scene(state, tight=True))]
    drafted = len(story.trees[round - 1]) - 1 if round is not None else 0
    if drafted:
        tests = inspector_scene(story, state, node=node, rows=drafted)
        scenes.append((f"Accept tests of round {round}", tests))
    sentence = run_sentence(story) if round is None else round_sentence(story, round - 1)
    return _picture(scenes, width, title="Token ribbon", sentence=sentence)


def kv_slots(trace: Trace, *, round: int | None = None, width: int = 960) -> Picture:
    """The target's slot table: at the end of the run, or before, during and after one round.

    Raises:
        BadInput: there is no such round.
    """
    story = Story.of(trace)
    state = _moment(story, round)
    inner = width - 2 * _MARGIN
    if round is None:
        scene = slots_scene(story, state, width=inner, max_rows=12)
        sentence = slots_sentence(story, state)
    else:
        scene = round_slots_scene(story, round - 1, width=inner)
        sentence = round_sentence(story, round - 1)
    return _picture([("", scene)], width, title=slots_title(story), sentence=sentence)


def draft_tree(trace: Trace, *, round: int, width: int = 960) -> Picture:
    """The draft of one round as a tree: kept and pruned candidates, the accepted path, and the
    target's own token where it was drawn. A chain is a tree with one leaf.

    Raises:
        BadInput: there is no such round.
    """
    story = Story.of(trace)
    state = _moment(story, round)
    scene = TreePanel(story, width=width - 2 * _MARGIN, at=round - 1).scene(state)
    sentence = tree_sentence(story, round - 1)
    return _picture([("", scene)], width, title="Draft tree", sentence=sentence)


def attention_mask(trace: Trace, *, round: int, width: int = 960) -> Picture:
    """What each node of one round may look at while the target scores the draft.

    Raises:
        BadInput: there is no such round.
    """
    story = Story.of(trace)
    scene = MaskPanel(story, width=width - 2 * _MARGIN).scene(_moment(story, round))
    sentence = mask_sentence(story, round - 1)
    return _picture([("", scene)], width, title="Attention mask", sentence=sentence)


def timeline(trace: Trace, *, ar: Trace | float | None = None, width: int = 960) -> Picture:
    """Where the decoding time went, beside plain decoding of the same tokens.

    Args:
        ar: plain decoding: a trace of it, or its seconds per token.
    """
    story, seconds = Story.of(trace), plain_seconds(ar)
    inner = width - 2 * _MARGIN
    scene = timeline_scene(story, story.states[-1], width=inner, ar_seconds=seconds)
    return _picture(
        [("", scene)], width, title="Time", sentence=timing(story.trace, ar_seconds=seconds)
    )


def still(
    trace: Trace,
    *,
    step: int = -1,
    ar: Trace | float | None = None,
    width: int = 960,
    note: str = "",
    tree: bool | None = None,
) -> Picture:
    """All panels at one step: what the stepper shows there. -1 is the last step.

    Args:
        tree: show the draft as a tree, and its attention mask; None: when a draft branches.

    Raises:
        BadInput: there is no such step.
    """
    tale = Tale.of(trace, compare=ar, width=width, title=None, tree=tree)
    return tale.picture(step, note=note)


def _picture(scenes: list[tuple[str, Scene]], width: int, *, title: str, sentence: str) -> Picture:
    """Scenes under each other, each below its heading."""
    placed: list[tuple[float, float, Scene]] = []
    y = _MARGIN
    for heading, scene in scenes:
        if heading:
            head = Scene(width, 30, (Piece(0, 0, text(heading, 0, 16, size=16, weight=700)),))
            placed.append((_MARGIN, y, head))
            y += head.height
        placed.append((_MARGIN, y, scene))
        y += scene.height + 18
    whole = stack(placed, width, y - 18 + _MARGIN)
    return Picture(whole.svg(title=title, description=sentence), sentence)


def _moment(story: Story, number: int | None) -> State:
    if number is None:
        return story.states[-1]
    if not 1 <= number <= len(story.rounds):
        raise BadInput(
            "round",
            expected=f"a number from 1 to {len(story.rounds)}",
            got=repr(number),
            next_step="choose one of the recorded rounds",
        )
    return story.last_of_round(number)


def _check_node(story: Story, number: int | None, node: int) -> None:
    drafted = 0 if number is None else len(story.rounds[number - 1].drafted.tokens) - 1
    if not 1 <= node <= drafted:
        raise BadInput(
            "node",
            expected=f"a drafted node from 1 to {drafted}" if number else "a round as well",
            got=repr(node),
            next_step="choose a round with a drafted token"
            if not drafted
            else "choose one of these",
        )
