"""The running totals, each under the name that its definition in `labkit.metrics` has.

Owns: the list. Does not know: how a number is computed.
Invariants: a rate without a denominator reads n/a; "accepted per round" and "committed per round"
both stand there, since publications mean one or the other by "acceptance length".
"""

from labkit.metrics import Acceptance
from labkit.viz.sentences import rate
from labkit.viz.states import State, Story
from labkit.viz.svg import Piece, Scene, line, pane, text

WIDTH = 208
_MEANS = {
    "rounds": "One forward of the target each.",
    "new tokens": "Committed so far; the prompt is not counted.",
    "drafted": "Tokens that the drafter proposed.",
    "accepted": "Drafted tokens that stayed in the text.",
    "accepted / drafted": "The share of drafted tokens that stayed.",
    "accepted per round": "Drafted tokens that stayed, per forward of the target.",
    "committed per round": "The same with the target's own token: the mean accepted length.",
}


def totals_scene(story: Story, state: State) -> Scene:
    """Counts and rates of the rounds committed by ``state``."""
    done = state.at + 1 if state.phase in ("commit", "forget", "finish") else max(0, state.at)
    rows = total_rows(story.totals[done])
    pieces = []
    for i, (name, value) in enumerate(rows):
        pieces.append(Piece(0, i * 23, text(name, 0, 15, size=14)))
        pieces.append(Piece(WIDTH, i * 23, text(value, 0, 15, size=14, anchor="end", weight=700)))
        pieces.append(Piece(0, i * 23 + 20, line(0, 0, WIDTH, 0)))
        told = f"{name}: {value}. {_MEANS[name]}"
        pieces.append(Piece(0, i * 23, pane(0, 0, WIDTH, 20, told)))
    return Scene(WIDTH, len(rows) * 23, tuple(pieces))


def total_rows(numbers: Acceptance) -> list[tuple[str, str]]:
    """(name, value) of every total."""
    return [
        ("rounds", str(numbers.rounds)),
        ("new tokens", str(numbers.committed)),
        ("drafted", str(numbers.drafted)),
        ("accepted", str(numbers.accepted)),
        ("accepted / drafted", rate(numbers.rate)),
        ("accepted per round", rate(numbers.accepted_per_round)),
        ("committed per round", rate(numbers.mean_accepted_length)),
    ]
