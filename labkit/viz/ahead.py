"""Two drawings for multi-token prediction: what each guess reads, and what each memory can undo.

Owns: the drawings and their sentences. Does not know: models, traces.
Invariants: as of `labkit.viz.views`: the same arguments give the same bytes; what is given,
guessed, accepted and rejected differs by border and glyph, not by colour alone.
"""

from collections.abc import Iterator, Sequence

from labkit.errors import require
from labkit.viz.picture import Picture
from labkit.viz.svg import Piece, Scene, box, line, mono_width, text, visible
from labkit.viz.theme import DRAFT, LOOKS, Status, paint

_WIDTH, _MARGIN = 720, 12
_HEAD = f'class="lk-soft" fill="#f3f3f6" stroke="{DRAFT}" stroke-width="2.5"'


def guessing() -> Picture:
    """Three guesses by parallel heads, and by one module used three times."""
    pieces = [*_parallel(_MARGIN), *_sequential(260)]
    told = (
        "Parallel heads: all three read state f2 of the target, and no token; they guess x4, x5 "
        "and x6 at once, so none knows what the others guessed. Sequential module: the first step "
        "reads state f2 and token x3 and guesses x4; the second reads the first step's own state "
        "and x4 and guesses x5; the third reads the second's own state and x5 and guesses x6."
    )
    return Picture(Scene(_WIDTH, 494, tuple(pieces)).svg(title="Heads", description=told), told)


def _parallel(top: float) -> Iterator[Piece]:
    yield _heading("Parallel heads: one look, three guesses", top)
    middle = top + 122
    yield from _chip(16, middle, "state f2", "prompt", width=104)
    for d, (word, y) in enumerate(zip(("x4", "x5", "x6"), (54, 122, 190), strict=True)):
        yield Piece(0, 0, line(120, middle, 250, top + y, tone="ink", width=1.5))
        yield from _label(250, top + y, f"head {d}")
        yield _arrow(370, top + y, 470)
        yield from _chip(470, top + y, word, "pending", width=72)
    yield Piece(566, middle - 6, text("x5 is guessed without", size=14, classes="lk-muted"))
    yield Piece(566, middle + 14, text("knowing x4", size=14, classes="lk-muted"))


def _sequential(top: float) -> Iterator[Piece]:
    yield _heading("Sequential module: each step reads the last guess", top)
    middle, above, below = top + 122, top + 54, top + 196
    yield from _chip(16, middle, "state f2", "prompt", width=104)
    yield _arrow(120, middle, 168)
    for step, x in enumerate((168, 366, 564)):
        yield from _label(x, middle, "module")
        yield Piece(0, 0, line(x + 60, middle - 20, x + 60, above + 18, tone="ink", width=1.5))
        yield from _chip(x + 24, above, f"x{4 + step}", "pending", width=72)
        yield Piece(0, 0, line(x + 60, below - 18, x + 60, middle + 20, tone="ink", width=1.5))
        yield from _chip(x + 24, below, f"x{3 + step}", "pending" if step else "prompt", width=72)
        if step < 2:
            yield _arrow(x + 120, middle, x + 198)
            yield Piece(x + 126, middle + 18, text("state", size=13, classes="lk-muted"))
            yield Piece(0, 0, line(x + 96, above, x + 222, below - 8, width=2))


def remembering(before: Sequence[str], draft: Sequence[str], *, accepted: int) -> Picture:
    """The same round in a layer with slots and in one with a single state.

    Args:
        before: the last tokens of the cached text. draft: the pending token, then the guesses.
        accepted: guesses that stay.

    Raises:
        BadInput: more of them than there are guesses.
    """
    require(0 <= accepted < len(draft), "accepted", f"0 to {len(draft) - 1}", accepted)
    kept: list[Status] = ["accepted"] * (accepted + 1)
    lost: list[Status] = ["rejected"] * (len(draft) - accepted - 1)
    given: list[Status] = ["prompt"] * len(before)
    words, mixed = (*before, *draft), list(draft[: accepted + 1])
    pieces = [_heading("An attention layer: a slot for every token", _MARGIN)]
    pieces += _row(60, "scored", words, [*given, *kept, *lost])
    free: list[Status] = ["free"] * len(lost)
    pieces += _row(106, "forgotten", (*before, *mixed, *("" for _ in free)), [*given, *kept, *free])
    pieces.append(_heading("A recurrent layer: one state for all of them", 150))
    pieces += _mixture(198, "scored", words, "rejected" if lost else "accepted")
    told = (
        f"After a draft of {len(draft) - 1} guesses of which {accepted} stay: an attention layer "
        f"forgets {len(lost)} slots and is done. A recurrent layer has mixed all of them into one "
        "state"
    )
    if lost:
        pieces += _mixture(244, "restored", before, "prompt")
        pieces += _mixture(290, "read again", (*before, *mixed), "accepted")
        told += f"; it goes back to its copy, which has read {' '.join(before)}, and reads "
        told += f"{' '.join(mixed)} again."
    else:
        told += ", which is right as it stands."
    scene = Scene(_WIDTH, 324 if lost else 232, tuple(pieces))
    return Picture(scene.svg(title="Two memories", description=told), told)


def _row(y: float, name: str, words: Sequence[str], looks: Sequence[Status]) -> Iterator[Piece]:
    yield Piece(16, y + 5, text(name, size=14, classes="lk-muted"))
    x = 112.0
    for word, look in zip(words, looks, strict=True):
        glyph = LOOKS[look].glyph
        shown = f"{visible(word)} {glyph}".strip() if word else "free"
        width = max(44.0, mono_width(shown, 14) + 16)
        yield from _chip(x, y, shown, look, width=width)
        x += width + 6


def _mixture(y: float, name: str, words: Sequence[str], look: Status) -> Iterator[Piece]:
    """One state, and all that it has read."""
    yield Piece(16, y + 5, text(name, size=14, classes="lk-muted"))
    glyph = LOOKS[look].glyph
    shown = " ⊕ ".join(visible(word) for word in words) + (f"  {glyph}" if glyph else "")
    yield from _chip(112, y, f"… {shown}", look, width=mono_width(f"… {shown}", 14) + 28, round_=18)


def _chip(
    x: float, y: float, words: str, look: Status, *, width: float, round_: float = 5
) -> Iterator[Piece]:
    """A box around ``words``, its left side at ``x``, its middle at ``y``."""
    yield Piece(x, y - 18, box(0, 0, width, 36, paint(look) + ' stroke-width="2"', round_=round_))
    label = text(words, 0, 0, size=14, classes="lk-mono", anchor="middle")
    yield Piece(x + width / 2, y + 5, label)


def _label(x: float, y: float, words: str) -> Iterator[Piece]:
    yield Piece(x, y - 20, box(0, 0, 120, 40, _HEAD, round_=8))
    yield Piece(x + 60, y + 5, text(words, 0, 0, size=15, anchor="middle", weight=700))


def _arrow(x: float, y: float, to: float) -> Piece:
    head = f'<path class="lk-inkfill" d="M{to - x:.0f} 0l-9 -5v10z"/>'
    return Piece(x, y, line(0, 0, to - x - 8, 0, tone="ink", width=1.5) + head)


def _heading(words: str, y: float) -> Piece:
    return Piece(_MARGIN, y + 16, text(words, size=16, weight=700))
