"""Drawing without a drawing library: pieces of SVG text, put at places, gathered into scenes.

Owns: escaping, visible white space, text widths, number formats, the assembly of a picture.
Does not know: traces, statuses.
Invariants: the same scene gives the same bytes; the text is well-formed XML whatever the tokens
hold; no ids (several pictures may share a page), no randomness, no clock.

A `Piece` is drawn around its own origin and then placed. That makes equal pieces equal strings,
so a film of many scenes can name each of them once (see `labkit.viz.film`).
"""

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from labkit.viz.theme import SANS, TONES, style_sheet

MONO_ADVANCE = 0.602  # em; width of one cell in the monospaced fonts of `theme.MONO`
_NAMED = {" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍", "\u00a0": "⍽", "\x7f": "␡"}
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"})


@dataclass(frozen=True, slots=True)
class Piece:
    """Markup drawn around (0, 0), and the place where it goes."""

    x: float
    y: float
    markup: str


@dataclass(frozen=True, slots=True)
class Scene:
    """Pieces on a ground of ``width`` x ``height`` CSS pixels, later ones on top."""

    width: int
    height: int
    pieces: tuple[Piece, ...] = ()

    @property
    def body(self) -> str:
        return "".join(place(p.markup, x=p.x, y=p.y) for p in self.pieces)

    def svg(self, *, title: str, description: str) -> str:
        """The whole picture. ``title`` is what a screen reader says first."""
        return opening(self.width, self.height) + caption(title, description) + self.body + "</svg>"


def opening(width: int, height: int) -> str:
    """The start tag, the style sheet and the ground."""
    paper, ink = TONES["paper"][0], TONES["ink"][0]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="labkit" role="img" width="{width}" '
        f'height="{height}" viewBox="0 0 {width} {height}" font-family="{SANS}" '
        f'fill="{ink}" style="max-width:100%;height:auto"><style>{style_sheet()}</style>'
        f'<rect class="lk-paper" width="{width}" height="{height}" fill="{paper}"/>'
    )


def caption(title: str, description: str) -> str:
    """What a screen reader says of the picture."""
    return f"<title>{escape(title)}</title><desc>{escape(description)}</desc>"


def place(markup: str, *, x: float, y: float) -> str:
    """``markup``, drawn around (0, 0), moved to (x, y)."""
    return f'<g transform="translate({number(x)} {number(y)})">{markup}</g>'


@lru_cache(maxsize=4096)
def text(
    words: str,
    x: float = 0,
    y: float = 0,
    *,
    size: int = 14,
    classes: str = "",
    anchor: str = "start",
    weight: int = 400,
) -> str:
    """One line of text; ``classes`` may name lk-mono and lk-muted."""
    rest = f' class="{classes}"' if classes else ""
    rest += f' fill="{TONES["muted"][0]}"' if "lk-muted" in classes else ""
    rest += ' font-family="monospace"' if "lk-mono" in classes else ""
    rest += f' text-anchor="{anchor}"' if anchor != "start" else ""
    rest += f' font-weight="{weight}"' if weight != 400 else ""
    return f'<text x="{number(x)}" y="{number(y)}" font-size="{size}"{rest}>{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, paint: str, *, round_: float = 0) -> str:
    """A rectangle; ``paint`` is its class, fill and stroke, as attributes."""
    corner = f' rx="{number(round_)}"' if round_ else ""
    return (
        f'<rect x="{number(x)}" y="{number(y)}" width="{number(width)}" '
        f'height="{number(height)}"{corner} {paint}/>'
    )


def line(
    x1: float, y1: float, x2: float, y2: float, *, tone: str = "line", width: float = 1
) -> str:
    """A straight line; tone "line" is a hairline's colour, "ink" that of text."""
    name, colour = ("lk-line", TONES["line"]) if tone == "line" else ("lk-inkline", TONES["ink"])
    return (
        f'<path class="{name}" stroke="{colour[0]}" stroke-width="{number(width)}" fill="none" '
        f'd="M{number(x1)} {number(y1)}L{number(x2)} {number(y2)}"/>'
    )


def tip(words: str) -> str:
    """What appears when the pointer rests on the shape around it."""
    return f"<title>{escape(words)}</title>"


def pane(x: float, y: float, width: float, height: float, words: str) -> str:
    """A sheet of glass: nothing to see, ``words`` when the pointer rests on it."""
    sheet = 'fill="none" pointer-events="all"'
    return f"<g>{box(x, y, width, height, sheet)}{tip(words)}</g>"


@lru_cache(maxsize=4096)  # many states repeat few words
def escape(words: str) -> str:
    """``words`` as XML text or attribute value; characters that XML forbids become U+FFFD."""
    return "".join(c if _is_xml(c) else "\ufffd" for c in words).translate(_ESCAPES)


@lru_cache(maxsize=4096)
def visible(token: str) -> str:
    """A token's text with white space, control characters and bare accents made visible."""
    if not token:
        return "∅"
    if width_in_cells(token) == 0 and not unicodedata.combining(token[0]):
        return "".join(f"⟨{ord(c):X}⟩" for c in token)
    carrier = "◌" if unicodedata.combining(token[0]) else ""
    return carrier + "".join(_shown(c) for c in token)


@lru_cache(maxsize=4096)
def shortened(words: str, cells: int) -> str:
    """``words``, cut to at most ``cells`` monospaced cells, with … where something is missing."""
    if width_in_cells(words) <= cells:
        return words
    kept = ""
    for c in words:
        if width_in_cells(kept + c) > cells - 1:
            break
        kept += c
    return kept + "…"


@lru_cache(maxsize=4096)
def width_in_cells(words: str) -> int:
    """Monospaced cells that ``words`` takes: 2 for wide characters, 0 for marks that combine."""
    return sum(_cells(c) for c in words)


def mono_width(words: str, size: int) -> float:
    """Width in pixels of ``words`` set in `theme.MONO` at ``size``."""
    return width_in_cells(words) * size * MONO_ADVANCE


@lru_cache(maxsize=4096)
def number(value: float) -> str:
    """A coordinate: at most one decimal, no trailing zero, no minus zero."""
    written = f"{value:.1f}"
    written = written[:-2] if written.endswith(".0") else written
    return "0" if written == "-0" else written


def probability(value: float) -> str:
    """A probability for reading: "0" and "1" only when it is exactly that, else two decimals."""
    if value in (0.0, 1.0):
        return str(int(value))
    if value < 0.005:
        return "<0.01"
    return ">0.99" if 0.995 <= value < 1 else f"{value:.2f}"


def stack(scenes: Iterable[tuple[float, float, Scene]], width: int, height: int) -> Scene:
    """Several scenes, each moved to its place, as one."""
    pieces = tuple(
        Piece(x + piece.x, y + piece.y, piece.markup)
        for x, y, scene in scenes
        for piece in scene.pieces
    )
    return Scene(width, height, pieces)


def _is_xml(c: str) -> bool:
    code = ord(c)
    return c in "\t\n\r" or 0x20 <= code <= 0xD7FF or 0xE000 <= code <= 0xFFFD or code >= 0x10000


def _shown(c: str) -> str:
    if c in _NAMED:
        return _NAMED[c]
    if ord(c) < 0x20:
        return chr(0x2400 + ord(c))  # Unicode has a picture of every control character
    if unicodedata.category(c) in ("Cc", "Cf", "Zs", "Zl", "Zp") and c not in "\u200d\ufe0f":
        return f"⟨{ord(c):X}⟩"
    return c if _is_xml(c) else "\ufffd"


def _cells(c: str) -> int:
    if unicodedata.combining(c) or c in "\u200d\ufe0e\ufe0f":
        return 0
    return 2 if unicodedata.east_asian_width(c) in "WF" else 1
