"""The accept tests of one round: p, q, the threshold and the random draw on one axis.

Owns: the bars, the accept zone, the list of likeliest tokens. Does not know: the rule itself.
Invariants: a draw inside the zone is an accepted token, so the picture is the rule; a number that
was not recorded is left out, never guessed.

    ' cat'   p ████████░░░░░░        the zone 0 ... min(1, p/q) is tinted,
             q ████                  the draw u is a dot: inside the zone is accepted
"""

from collections.abc import Iterator
from dataclasses import dataclass

from labkit.events import Likeliest, Trial
from labkit.trace import Round
from labkit.viz.states import State, Story, own_token, tree_of
from labkit.viz.svg import (
    Piece,
    Scene,
    box,
    line,
    number,
    probability,
    shortened,
    text,
    tip,
    visible,
)
from labkit.viz.theme import DRAFT, LOOKS, TARGET, paint

WIDTH = 374
_AXIS = 116
_SCALE = 158
_NUMBERS = _AXIS + _SCALE + 10
_ROW = 43
_MOST_ROWS = 6
_DETAIL_ROW = 23
_DETAIL_ROWS = 4
_GREEDY = " (softmax; greedy takes the first)"
_RING = 'class="lk-inkline" stroke="#17171b" stroke-width="2"'


@dataclass(frozen=True, slots=True)
class _Detail:
    """The likeliest tokens at one place. marked: the token in question."""

    heading: str
    p: Likeliest
    q: Likeliest
    marked: int


def has_detail(story: Story) -> bool:
    """Were the likeliest tokens recorded?"""
    return any(r.scored and r.scored.p_top for r in story.rounds)


def inspector_scene(
    story: Story, state: State, *, node: int | None = None, rows: int | None = None
) -> Scene:
    """The tests of the round at ``state``, and the likeliest tokens at the place under test.

    Args:
        node: show the place of this node instead of the one that the state is about.
        rows: room for so many tests; by default what the longest draft of the run needs.
    """
    rows = min(_MOST_ROWS, story.longest_tree if rows is None else rows)
    pieces: list[Piece] = []
    if state.at >= 0 and state.phase != "finish":
        round_ = story.rounds[state.at]
        nodes = _window(round_, node or _tested_node(round_, state), rows)
        for i, shown in enumerate(nodes):
            pieces += _row(story, round_, state, shown, y=i * _ROW)
    if not pieces and rows:
        pieces.append(Piece(0, 0, text("No round is under way.", 0, 18, classes="lk-muted")))
    foot = rows * _ROW
    if rows:
        pieces += _axis(foot)
        foot += 64
    if has_detail(story):
        detail = _detail(story, state, node)
        pieces += _detail_pieces(story, detail, y=foot) if detail else []
        foot += 30 + _DETAIL_ROWS * _DETAIL_ROW
    return Scene(WIDTH, foot, tuple(pieces))


def _window(round_: Round, node: int, rows: int) -> list[int]:
    """At most ``rows`` drafted nodes, ``node`` among them."""
    count = len(round_.drafted.tokens) - 1
    start = max(0, min(count - rows, (node - 1) // rows * rows)) if rows else 0
    return list(range(start + 1, min(count, start + rows) + 1))


def _tested_node(round_: Round, state: State) -> int:
    tested = _tested(round_, state)
    return tested.node if tested else 1


def _tested(round_: Round, state: State) -> Trial | None:
    """The latest accept test at ``state``."""
    seen = round_.verified.trials[: state.trials] if round_.verified else ()
    return seen[-1] if seen else None


def _row(story: Story, round_: Round, state: State, node: int, *, y: int) -> Iterator[Piece]:
    token = round_.drafted.tokens[node]
    trials = {t.node: t for t in round_.verified.trials} if round_.verified else {}
    seen = {t.node for t in round_.verified.trials[: state.trials]} if round_.verified else set()
    trial = trials.get(node)
    tested = _tested(round_, state)
    if tested and tested.node == node and state.phase == "verify":
        yield Piece(
            0, y, box(-6, -3, WIDTH + 6, _ROW - 2, 'class="lk-soft" fill="#f3f3f6"', round_=6)
        )
    yield Piece(0, y, _label(story, token))
    q = _q_of(round_, node, trial)
    p = _p_of(round_, node, trial) if state.phase != "draft" else None
    if trial and state.phase != "draft":
        yield Piece(_AXIS, y, _zone(trial))
    if q is not None:
        yield Piece(_AXIS, y, _bar("q", q))
    if p is not None:
        yield Piece(_AXIS, y, _bar("p", p))
    told = "  ".join(f"{n} {probability(v)}" for n, v in (("p", p), ("q", q)) if v is not None)
    yield Piece(_NUMBERS, y, text(told, 0, 14, size=13))
    if trial and node in seen:
        yield Piece(_AXIS, y, _draw(trial))
        yield Piece(_NUMBERS, y, _outcome(trial))


def _label(story: Story, token: int) -> str:
    words = visible(story.trace.token_text(token))
    return text(shortened(words, 12), 0, 20, size=14, classes="lk-mono") + tip(
        f"{words} · token {token}"
    )


def _q_of(round_: Round, node: int, trial: Trial | None) -> float | None:
    if trial:
        return trial.q
    known = round_.drafted.q[node] if round_.drafted.q else None
    return 1.0 if round_.drafted.deterministic else known


def _p_of(round_: Round, node: int, trial: Trial | None) -> float | None:
    """p of the node's token: from its test, else from the recorded likeliest tokens."""
    if trial:
        return trial.p
    parent = round_.drafted.parents[node]
    tops = round_.scored.p_top if round_.scored else ()
    if _is_greedy(round_) or not tops:
        return None
    return dict(tops[parent]).get(round_.drafted.tokens[node])


def _is_greedy(round_: Round) -> bool:
    """At temperature 0 the law in force is one-hot while the recorded list is the softmax."""
    trials = round_.verified.trials if round_.verified else ()
    return bool(trials) and all(t.p in (0.0, 1.0) and t.q == 1.0 for t in trials)


def _bar(name: str, value: float) -> str:
    y, colour = (3, TARGET) if name == "p" else (20, DRAFT)
    return text(name, -6, y + 11, size=13, anchor="end") + box(
        0, y, max(1.5, value * _SCALE), 12, f'fill="{colour}"'
    )


def _zone(trial: Trial) -> str:
    edge = trial.threshold * _SCALE
    ground = f'class="lk-accepted" fill="{LOOKS["accepted"].light}"'
    return (
        box(0, -1, max(edge, 0.5), 37, ground)
        + line(edge, -3, edge, 38, tone="ink", width=2)
        + tip(f"threshold min(1, p/q) = {probability(trial.threshold)}")
    )


def _draw(trial: Trial) -> str:
    look = LOOKS["accepted" if trial.accepted else "rejected"]
    return (
        f'<circle cx="{number(trial.u * _SCALE)}" cy="17.5" r="6.5" fill="{look.colour}" {_RING}/>'
        + tip(f"u = {probability(trial.u)}: {look.word}")
    )


def _outcome(trial: Trial) -> str:
    look, sign = LOOKS["accepted" if trial.accepted else "rejected"], "<" if trial.accepted else "≥"
    words = f"{look.glyph} {probability(trial.u)} {sign} {probability(trial.threshold)}"
    return text(words.replace("< <", "<"), 0, 32, size=13, weight=700)


def _axis(y: int) -> Iterator[Piece]:
    ticks = line(0, 2, _SCALE, 2)
    for value, name in ((0, "0"), (0.5, "0.5"), (1, "1")):
        x = value * _SCALE
        ticks += line(x, 0, x, 5) + text(name, x, 18, size=13, classes="lk-muted", anchor="middle")
    yield Piece(_AXIS, y, ticks)
    key = (
        box(0, 1, 14, 12, f'fill="{TARGET}"')
        + text("p target", 19, 12, size=13)
        + box(84, 1, 14, 12, f'fill="{DRAFT}"')
        + text("q draft", 103, 12, size=13)
        + box(160, 1, 14, 12, f"{paint('accepted')}")
        + text("accepted if the draw u", 179, 12, size=13)
        + f'<circle cx="7" cy="25" r="5.5" fill="none" {_RING}/>'
        + text("random draw u", 19, 30, size=13)
        + text("is below min(1, p/q)", 179, 30, size=13)
    )
    yield Piece(0, y + 24, key)


def _detail(story: Story, state: State, node: int | None) -> _Detail | None:
    """Which distribution to list: of the node in question, or of the target's own token."""
    if state.at < 0 or state.phase == "finish":
        return None
    round_ = story.rounds[state.at]
    if node is None and state.phase in ("commit", "forget") and own_token(round_):
        return _own_detail(round_)
    tested = _tested(round_, state)
    chosen = node or (tested.node if tested else min(1, len(round_.drafted.tokens) - 1))
    tree = tree_of(round_)
    parent = tree.parents[chosen] if chosen else 0
    known = round_.scored is not None and state.phase != "draft" and bool(round_.scored.p_top)
    p = round_.scored.p_top[parent] if known and round_.scored else ()
    q = round_.drafted.q_top[chosen] if chosen and round_.drafted.q_top else ()
    law = _GREEDY if _is_greedy(round_) else ""
    return _Detail(f"Likeliest tokens here{law}", p, q, tree.tokens[chosen] if chosen else -1)


def _own_detail(round_: Round) -> _Detail | None:
    """What the target's own token was drawn from; under greedy decoding, where that is one token,
    the softmax it is the largest of."""
    own, verified, scored = own_token(round_), round_.verified, round_.scored
    if own is None or verified is None or scored is None or not scored.p_top:
        return None
    if len(verified.residual_top) == 1:
        softmax = scored.p_top[verified.path[-1]]
        return _Detail(f"Likeliest tokens here{_GREEDY}", softmax, (), own[0])
    left = "What p has over q" if own[1] == "resampled" else "p after the last kept token"
    drawn = f"{left}: drawn {LOOKS[own[1]].glyph}"
    return _Detail(drawn, verified.residual_top, (), own[0])


def _detail_pieces(story: Story, detail: _Detail, *, y: int) -> Iterator[Piece]:
    yield Piece(0, y, text(detail.heading, 0, 16, size=14, weight=700))
    p, q = dict(detail.p), dict(detail.q)
    best = sorted(p.keys() | q.keys(), key=lambda t: (-max(p.get(t, 0), q.get(t, 0)), t))
    listed = best[:_DETAIL_ROWS]
    if detail.marked in best[_DETAIL_ROWS:]:
        listed[-1] = detail.marked
    for i, token in enumerate(listed):
        row = y + 26 + i * _DETAIL_ROW
        yield Piece(0, row, _detail_label(story, token, marked=token == detail.marked))
        for name, value, at, colour in (
            ("p", p.get(token), 2, TARGET),
            ("q", q.get(token), 11, DRAFT),
        ):
            if value is not None:
                yield Piece(
                    _AXIS, row + at, box(0, 0, max(1.5, value * _SCALE), 8, f'fill="{colour}"')
                )
                yield Piece(_NUMBERS + (0 if name == "p" else 44), row, _detail_number(name, value))


def _detail_label(story: Story, token: int, *, marked: bool) -> str:
    words = shortened(visible(story.trace.token_text(token)), 11 if marked else 12)
    lead = "▸" if marked else ""
    return text(lead + words, 0, 15, size=13, classes="lk-mono", weight=700 if marked else 400)


def _detail_number(name: str, value: float) -> str:
    return text(f"{name} {probability(value)}", 0, 15, size=12)
