"""Every state of a run, drawn once and packed for the browser.

Owns: the packing. Does not know: what is on the pictures, who plays the film.
Invariants: `unpack` gives back exactly the scenes that were packed; the same trace gives the same
bytes.

The pictures are drawn here, in Python, and the browser only puts the pieces together, so that the
live widget and the static figure cannot differ. Sent as they are, the pictures of a run of 64
tokens at full detail take 18 MB; packed they take about 65 kB:

    parts      each distinct piece of markup once; a chip or a slot is one part in all states;
               sorted, so that like stands beside like
    frames     a panel's places, [part, x, y] each, as the difference from its frame before:
               how many leading and trailing places stay, and what stands between them now
    at         which frame each state shows; panels that did not change share one
    deflate    the rest of the repetition (the browser's own DecompressionStream undoes it)
"""

import base64
import json
import zlib
from collections.abc import Iterable
from typing import Any

from labkit.viz.board import Board, Panel
from labkit.viz.notes import Passage
from labkit.viz.sentences import round_sentence, state_sentence
from labkit.viz.states import State, Story
from labkit.viz.svg import Piece, Scene, escape, number, opening

Place = tuple[int, float, float]


def pack(
    story: Story,
    boards: Iterable[Board],
    *,
    title: str,
    label: str,
    notes: Iterable[Passage] = (),
) -> str:
    """The film: JSON, deflated, in base64, which every widget transport carries.

    Keys: title, of the pictures; label, the heading above them; parts; panels (frames, at), each
    once, though boards may share it; boards, one for each page width: kind, width, head (the SVG's
    opening), panels ([number, x, y, key] each); sentences, one for each state, as XML text; rounds,
    the sentence of each round by the index of its last state; notes, see `labkit.viz.notes`.
    """
    parts: dict[str, int] = {}
    panels: list[dict[str, Any]] = []
    packed = []
    for board in boards:
        placed = []
        for panel in board.panels:
            reel = _pack_panel(panel, story.states, parts)
            if reel not in panels:
                panels.append(reel)
            placed.append([panels.index(reel), panel.x, panel.y, panel.key])
        head = opening(board.width, board.height)
        kind = {"kind": board.kind, "width": board.width, "height": board.height}
        packed.append({**kind, "head": head, "panels": placed})
    shown = _sorted(parts, panels)
    film = {
        "title": escape(title),
        "label": label,
        "parts": shown,
        "panels": panels,
        "boards": packed,
        "sentences": [escape(state_sentence(story, state)) for state in story.states],
        "rounds": {str(end): _end_sentence(story, end) for end in story.round_ends},
        "notes": [passage.record() for passage in notes],
    }
    plain = json.dumps(film, ensure_ascii=False, separators=(",", ":"))
    data = plain.encode(errors="backslashreplace")  # half a character: JSON's own escape for it
    return base64.b64encode(zlib.compress(data, 9)).decode()


def unpack(film: str, *, board: int, state: int) -> Scene:
    """The scene of one state: what the browser does, in Python (its height is not packed)."""
    record = json.loads(zlib.decompress(base64.b64decode(film)))
    pieces = []
    for reel, left, top, _ in record["boards"][board]["panels"]:
        panel = record["panels"][reel]
        places: list[list[float]] = []
        for frame in panel["frames"][: panel["at"][state] + 1]:
            head, tail, *flat = frame
            middle = [flat[i : i + 3] for i in range(0, len(flat), 3)]
            places = places[:head] + middle + places[len(places) - tail :]
        parts = tuple(Piece(x, y, record["parts"][int(part)]) for part, x, y in places)
        pieces.append(Piece(left, top, Scene(0, 0, parts).body))
    return Scene(record["boards"][board]["width"], 0, tuple(pieces))


def _end_sentence(story: Story, end: int) -> str:
    state = story.states[end]
    if state.phase in ("start", "finish"):
        return escape(state_sentence(story, state))
    return escape(round_sentence(story, state.at))


def _pack_panel(panel: Panel, states: Iterable[State], parts: dict[str, int]) -> dict[str, Any]:
    frames: list[list[float]] = []
    at: list[int] = []
    before: list[Place] | None = None
    for state in states:
        places = [_place(piece, parts) for piece in panel.scene(state).pieces]
        if places != before:
            frames.append(_difference(before or [], places))
            before = places
        at.append(len(frames) - 1)
    return {"frames": frames, "at": at}


def _sorted(parts: dict[str, int], panels: list[dict[str, Any]]) -> list[str]:
    """The parts in an order in which like stands beside like, which deflate rewards by a fifth
    where trees are drawn; the numbers in the frames follow."""
    order = sorted(parts)
    place = {parts[part]: i for i, part in enumerate(order)}
    for panel in panels:
        for frame in panel["frames"]:
            frame[2::3] = [place[part] for part in frame[2::3]]
    return order


def _place(piece: Piece, parts: dict[str, int]) -> Place:
    return parts.setdefault(piece.markup, len(parts)), _short(piece.x), _short(piece.y)


def _short(value: float) -> float:
    """The coordinate as it is written, so that 3.0 and 3 take the same bytes."""
    written = number(value)
    return float(written) if "." in written else int(written)


def _difference(old: list[Place], new: list[Place]) -> list[float]:
    """[leading places that stay, trailing ones that stay, part, x, y, part, x, y, ...]."""
    shorter = min(len(old), len(new))
    head = next((i for i in range(shorter) if old[i] != new[i]), shorter)
    rest = shorter - head
    tail = next((i for i in range(rest) if old[-1 - i] != new[-1 - i]), rest)
    return [head, tail, *(v for place in new[head : len(new) - tail] for v in place)]
