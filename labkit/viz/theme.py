"""What a status looks like: colour, glyph, border and word, in light and in dark.

Owns: the palette (Okabe and Ito 2008, safe for colour-blind readers), the glyphs, the style sheet.
Does not know: traces, layout.
Invariants: a status is told by its glyph and border as well as by its colour; text has a contrast
of at least 4.5 on every ground it stands on, in both themes; every shape also carries the light
colours as attributes, so a page that strips the style sheet still shows a readable picture.
"""

from dataclasses import dataclass
from typing import Literal

Status = Literal[
    "prompt", "accepted", "rejected", "resampled", "bonus", "pending", "dropped", "free", "forced"
]

SANS = "system-ui,-apple-system,'Segoe UI',Roboto,'Noto Sans','DejaVu Sans',sans-serif"
MONO = "ui-monospace,'SF Mono',Menlo,Consolas,'DejaVu Sans Mono',monospace"


@dataclass(frozen=True, slots=True)
class Look:
    """One status. light, dark: ground colours; dash: the border's dashes ("" is a solid line)."""

    word: str
    glyph: str
    colour: str
    light: str
    dark: str
    dash: str = ""


LOOKS: dict[Status, Look] = {
    "prompt": Look("prompt", "", "#c4c4cc", "#f3f3f6", "#26262c"),
    "accepted": Look("accepted", "✓", "#009E73", "#d8f0e7", "#0c3a2e"),
    "rejected": Look("rejected", "✗", "#D55E00", "#fbe3d5", "#4a2509", "5 3"),
    "resampled": Look("resampled", "↻", "#E69F00", "#fdedca", "#463203", "9 3"),
    "bonus": Look("bonus", "★", "#0072B2", "#d3e7f4", "#07304a"),
    "pending": Look("not judged yet", "…", "#999999", "#ffffff", "#16161a", "2 3"),
    "dropped": Look("not used", "–", "#999999", "#f0f0f0", "#2c2c32", "2 3"),
    "free": Look("free", "", "#c4c4cc", "#ffffff", "#16161a", "1 4"),
    "forced": Look("forced by hand", "⚑", "#77777f", "#f3f3f6", "#26262c"),
}
_GROUND_OF: dict[Status, Status] = {"forced": "prompt"}  # both were given, not drawn

DRAFT = "#56B4E9"
TARGET = "#CC79A7"

# name: (light, dark). "ink" and "muted" are for text, "line" for hairlines, "paper" for grounds.
TONES: dict[str, tuple[str, str]] = {
    "ink": ("#17171b", "#f4f4f7"),
    "muted": ("#54545e", "#b8b8c4"),
    "line": ("#c4c4cc", "#4c4c57"),
    "soft": ("#f3f3f6", "#26262c"),
    "paper": ("#ffffff", "#16161a"),
}

# Where a page says which theme it is in: JupyterLab and Notebook, VS Code, Colab.
_SAYS_LIGHT = ('body[data-jp-theme-light="true"]', "body.vscode-light", 'html[theme="light"]')
_SAYS_DARK = ('body[data-jp-theme-light="false"]', "body.vscode-dark", 'html[theme="dark"]')


def paint(status: Status) -> str:
    """The attributes of a shape with this status: its class, and the light colours themselves."""
    look = LOOKS[status]
    dash = f' stroke-dasharray="{look.dash}"' if look.dash else ""
    name = _GROUND_OF.get(status, status)
    return f'class="lk-{name}" fill="{look.light}" stroke="{look.colour}"{dash}'


def style_sheet() -> str:
    """CSS for every picture: variables for both themes, and the classes that use them."""
    light, dark = _variables(0), _variables(1)
    rules = [
        f".labkit{{{light}}}",
        f"@media (prefers-color-scheme:dark){{.labkit{{{dark}}}}}",
        f"{_within(_SAYS_LIGHT)}{{{light}}}",
        f"{_within(_SAYS_DARK)}{{{dark}}}",
        f"@media print{{.labkit.labkit.labkit{{{light}}}}}",
        f".labkit text{{fill:var(--lk-ink);font-family:{SANS}}}",
        f".labkit .lk-mono{{font-family:{MONO}}}",
        ".labkit .lk-muted{fill:var(--lk-muted)}",
        ".labkit .lk-paper{fill:var(--lk-paper)}",
        ".labkit .lk-soft{fill:var(--lk-soft)}",
        ".labkit .lk-line{stroke:var(--lk-line)}",
        ".labkit .lk-inkline{stroke:var(--lk-ink)}",
        ".labkit .lk-inkfill{fill:var(--lk-ink)}",
    ]
    rules += [f".labkit .lk-{name}{{fill:var(--lk-{name})}}" for name in _grounds()]
    return "".join(rules)


def _grounds() -> list[Status]:
    """The statuses with a ground of their own."""
    return [name for name in LOOKS if name not in _GROUND_OF]


def _variables(theme: int) -> str:
    tones = [f"--lk-{name}:{pair[theme]}" for name, pair in TONES.items()]
    looks = ((name, LOOKS[name]) for name in _grounds())
    grounds = [f"--lk-{name}:{(look.light, look.dark)[theme]}" for name, look in looks]
    return ";".join([*tones, *grounds, f"color-scheme:{('light', 'dark')[theme]}"])


def _within(pages: tuple[str, ...]) -> str:
    return ",".join(f"{page} .labkit" for page in pages)
