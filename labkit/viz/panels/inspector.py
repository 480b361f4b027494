"""The accept tests of one round: p, q, the threshold and the random draw on one axis.

Owns: the bars, the accept zone, the list of likeliest tokens. Does not know: the rule itself.
Invariants: a draw inside the zone is an accepted token, so the picture is the rule; a number that
was not recorded is left out, never guessed.

    ' cat'   p ████████░░░░░░        the zone 0 ... min(1, p/q) is tinted,
             q ████                  the draw u is a dot: inside the zone is accepted

Where a draft was rejected, the list shows p, q and the residual, what p has over q, from which
the target's own token is drawn. Shapes that prose can point at say which part they are
(data-part: threshold, u, residual).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from labkit.events import Likeliest, Trial, Verified
from labkit.trace import Round
from labkit.viz.states import State, Story, own_token, tree_of
from labkit.viz.svg import (
    Piece,
    Scene,
    box,
    line,
    number,
    pane,
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
_COLUMN = 48  # from p's number to q's
_ROW = 43
_MOST_ROWS = 6
_DETAIL_ROW = 23
_DETAIL_ROWS = 4
_BETWEEN = 30
_GREEDY = " (softmax; greedy takes the first)"
_RING = 'class="lk-inkline" stroke="#17171b" stroke-width="2"'


@dataclass(frozen=True, slots=True)
class _Detail:
    """The likeliest tokens at one place. marked: the token in question. residual: what p has over
    q, as a distribution, where the token was drawn from that."""

    heading: str
    p: Likeliest
    q: Likeliest
    marked: int
    residual: Likeliest = ()


def has_detail(story: Story) -> bool:
    """Were the likeliest tokens recorded?"""
    return any(r.scored and r.scored.p_top for r in story.rounds)


def inspector_scene(
    story: Story,
    state: State,
    *,
    node: int | None = None,
    rows: int | None = None,
    beside: bool = False,
) -> Scene:
    """The tests of the round at ``state``, and the likeliest tokens at the place under test.

    Args:
        node: show the place of this node instead of the one that the state is about.
        rows: room for so many tests; by default what the longest draft of the run needs.
        beside: the likeliest tokens stand beside the tests, not below them.
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
    if not has_detail(story):
        return Scene(WIDTH, foot, tuple(pieces))
    detail = _detail(story, state, node)
    tall = 30 + _DETAIL_ROWS * _DETAIL_ROW
    left, top = (WIDTH + _BETWEEN, 0) if beside else (0, foot)
    if detail:
        pieces += [Piece(p.x + left, p.y + top, p.markup) for p in _detail_pieces(story, detail)]
    return Scene(left + WIDTH, max(foot, top + tall), tuple(pieces))


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
    name = visible(story.trace.token_text(token))
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
        yield Piece(_AXIS, y, _bar("q", q) + tip(f"{name}: q {probability(q)}, by the drafter"))
    if p is not None:
        yield Piece(_AXIS, y, _bar("p", p) + tip(f"{name}: p {probability(p)}, by the target"))
    for i, (letter, value) in enumerate((("p", p), ("q", q))):
        if value is not None:
            told = f"{letter} {probability(value)}"
            yield Piece(
                _NUMBERS + i * _COLUMN, y, text(told, 0, 14, size=13) + tip(f"{name}: {told}")
            )
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
    told = f"threshold min(1, p/q) = {probability(trial.threshold)}"
    if trial.q:
        ratio = f"{probability(trial.p)} / {probability(trial.q)}"
        told = f"threshold min(1, p/q) = min(1, {ratio}) = {probability(trial.threshold)}"
    drawn = box(0, -1, max(edge, 0.5), 37, ground) + line(edge, -3, edge, 38, tone="ink", width=2)
    return f'<g data-part="threshold">{drawn}{tip(told)}</g>'


def _draw(trial: Trial) -> str:
    look = LOOKS["accepted" if trial.accepted else "rejected"]
    dot = (
        f'<circle cx="{number(trial.u * _SCALE)}" cy="17.5" r="6.5" fill="{look.colour}" {_RING}/>'
    )
    return f'<g data-part="u">{dot}{tip(_verdict(trial))}</g>'


def _verdict(trial: Trial) -> str:
    word = LOOKS["accepted" if trial.accepted else "rejected"].word
    side = "below" if trial.accepted else "not below"
    limit = f"{side} the threshold {probability(trial.threshold)}"
    return f"u = {probability(trial.u)}, {limit}: {word}"


def _outcome(trial: Trial) -> str:
    look, sign = LOOKS["accepted" if trial.accepted else "rejected"], "<" if trial.accepted else "≥"
    words = f"{look.glyph} {probability(trial.u)} {sign} {probability(trial.threshold)}"
    return text(words.replace("< <", "<"), 0, 32, size=13, weight=700) + tip(_verdict(trial))


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
    if own[1] != "resampled":
        heading = f"p after the last kept token: drawn {LOOKS[own[1]].glyph}"
        return _Detail(heading, verified.residual_top, (), own[0])
    heading = f"The residual, what p has over q: drawn {LOOKS['resampled'].glyph}"
    return _Detail(heading, *_over(round_, verified), own[0], verified.residual_top)


def _over(round_: Round, verified: Verified) -> tuple[Likeliest, Likeliest]:
    """p and q at the place of a resampled token, where they tell all of the residual: when one
    child was rejected there (each more takes another q away)."""
    place, drafted = verified.path[-1], round_.drafted
    tried = [t.node for t in verified.trials if drafted.parents[t.node] == place]
    if len(tried) != 1 or not round_.scored:
        return (), ()
    q = () if drafted.deterministic or not drafted.q_top else drafted.q_top[tried[0]]
    return round_.scored.p_top[place], q


def _detail_pieces(story: Story, detail: _Detail) -> Iterator[Piece]:
    yield Piece(0, 0, text(detail.heading, 0, 16, size=14, weight=700))
    p, q, left = dict(detail.p), dict(detail.q), dict(detail.residual)
    lead = left or {t: max(p.get(t, 0), q.get(t, 0)) for t in p.keys() | q.keys()}
    best = sorted(lead, key=lambda t: (-lead[t], t))
    listed = best[:_DETAIL_ROWS]
    if detail.marked in best[_DETAIL_ROWS:]:
        listed[-1] = detail.marked
    for i, token in enumerate(listed):
        y = 26 + i * _DETAIL_ROW
        yield Piece(0, y, _detail_label(story, token, marked=token == detail.marked))
        known = [
            (name, values[token])
            for name, values in (("p", p), ("q", q), ("residual", left))
            if token in values
        ]
        yield from _residual_bars(known, y) if left else _detail_bars(known, y)
        name = visible(story.trace.token_text(token))
        told = f"{name}: " + ", ".join(f"{n} {probability(v)}" for n, v in known)
        sheet = pane(0, 0, WIDTH, _DETAIL_ROW - 2, told)
        yield Piece(0, y, f'<g data-part="residual">{sheet}</g>' if left else sheet)


def _detail_bars(known: list[tuple[str, float]], y: int) -> Iterator[Piece]:
    for name, value in known:
        at, colour, across = (2, TARGET, 0) if name == "p" else (11, DRAFT, _COLUMN)
        yield Piece(_AXIS, y + at, _thin(value, 8, f'fill="{colour}"'))
        yield Piece(_NUMBERS + across, y, _detail_number(name, value))


def _residual_bars(known: list[tuple[str, float]], y: int) -> Iterator[Piece]:
    """p and q thin, the residual thick and with a number."""
    for name, value in known:
        if name == "residual":
            look = paint("resampled")
            yield Piece(_AXIS, y + 10, _thin(value, 9, f'{look} stroke-width="1.5"'))
            yield Piece(_NUMBERS, y, _detail_number("residual", value))
        else:
            at, colour = (1, TARGET) if name == "p" else (5, DRAFT)
            yield Piece(_AXIS, y + at, _thin(value, 4, f'fill="{colour}"'))


def _thin(value: float, tall: int, look: str) -> str:
    return box(0, 0, max(1.5, value * _SCALE), tall, look)


def _detail_label(story: Story, token: int, *, marked: bool) -> str:
    words = shortened(visible(story.trace.token_text(token)), 11 if marked else 12)
    lead = "▸" if marked else ""
    return text(lead + words, 0, 15, size=13, classes="lk-mono", weight=700 if marked else 400)


def _detail_number(name: str, value: float) -> str:
    return text(f"{name} {probability(value)}", 0, 15, size=12)
