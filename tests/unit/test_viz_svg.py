"""Escaping, visible tokens, number formats and contrast: what every picture stands on."""

import re
import xml.etree.ElementTree as ET

import pytest

from labkit.viz import svg
from labkit.viz.svg import Piece, Scene
from labkit.viz.theme import LOOKS, TONES, style_sheet

NASTY = ("<b>", "&amp;", '"', "]]>", "\x00\x1b", "\ud800", "\ufffe", "a\u0301", "‮rtl", "\U0001f600")


@pytest.mark.parametrize("token", NASTY)
def test_any_token_makes_well_formed_xml(token: str) -> None:
    markup = svg.text(token) + svg.tip(token) + svg.text(svg.visible(token))
    drawn = Scene(10, 10, (Piece(0, 0, markup),)).svg(title=token, description=token)
    drawn.encode("utf-8")
    ET.fromstring(drawn)


def test_unescaped_markup_would_be_noticed() -> None:
    drawn = Scene(10, 10, (Piece(0, 0, "<text><b></text>"),)).svg(title="", description="")
    with pytest.raises(ET.ParseError):
        ET.fromstring(drawn)


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        (" the", "␣the"),
        ("\n\n", "⏎⏎"),
        ("\t", "⇥"),
        ("\r\n", "␍⏎"),
        ("\u00a0", "⍽"),
        ("\x00", "␀"),
        ("\x7f", "␡"),
        ("", "∅"),
        ("\u200b", "⟨200B⟩"),
        ("\u200d", "⟨200D⟩"),
        ("\u0301", "◌\u0301"),
        ("\ufffd", "\ufffd"),
        ("été", "été"),
        ("👩‍👧", "👩‍👧"),
    ],
)
def test_white_space_and_controls_are_visible(token: str, shown: str) -> None:
    assert svg.visible(token) == shown
    assert svg.width_in_cells(svg.visible(token)) > 0


def test_widths_count_what_is_seen() -> None:
    assert svg.width_in_cells("abc") == 3
    assert svg.width_in_cells("日本") == 4
    assert svg.width_in_cells("e\u0301") == 1


def test_shortening_keeps_to_the_room() -> None:
    assert svg.shortened("Wednesday", 20) == "Wednesday"
    assert svg.shortened("Wednesday", 5) == "Wedn…"
    assert svg.width_in_cells(svg.shortened("日本語日本語", 5)) <= 5


@pytest.mark.parametrize(
    ("value", "written"),
    [(0.0, "0"), (1.0, "1"), (0.5, "0.50"), (0.001, "<0.01"), (0.999, ">0.99"), (1e-9, "<0.01")],
)
def test_only_exact_ends_read_as_ends(value: float, written: str) -> None:
    assert svg.probability(value) == written


@pytest.mark.parametrize(
    ("value", "written"), [(3, "3"), (3.0, "3"), (2.25, "2.2"), (-0.04, "0"), (-2.5, "-2.5")]
)
def test_coordinates_are_short(value: float, written: str) -> None:
    assert svg.number(value) == written


def luminance(colour: str) -> float:
    """Relative luminance, WCAG 2.1."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    dark, light = sorted((luminance(a), luminance(b)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("tone", ["ink", "muted"])
def test_text_is_readable_on_every_ground(theme: int, tone: str) -> None:
    grounds = [(look.light, look.dark)[theme] for look in LOOKS.values()]
    grounds += [TONES["paper"][theme], TONES["soft"][theme]]
    assert min(contrast(TONES[tone][theme], ground) for ground in grounds) >= 4.5


def test_the_contrast_formula_is_the_published_one() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)  # just not enough
    assert contrast(LOOKS["resampled"].colour, "#ffffff") < 4.5  # why colours never carry text


def test_statuses_differ_without_their_colours() -> None:
    signs = [
        (look.glyph, look.dash) for name, look in LOOKS.items() if name not in ("prompt", "free")
    ]
    assert len(set(signs)) == len(signs)
    palette = {"#009E73", "#D55E00", "#E69F00", "#0072B2", "#999999"}  # Okabe and Ito
    assert palette <= {look.colour for look in LOOKS.values()}


def test_the_page_decides_the_theme() -> None:
    sheet = style_sheet()
    for page in (
        '[data-jp-theme-light="false"]',
        'html[theme="dark"]',
        "prefers-color-scheme:dark",
    ):
        assert page in sheet
    dark = re.search(r'html\[theme="dark"\] \.labkit\{([^}]*)\}', sheet)
    assert dark
    assert TONES["paper"][1] in dark.group(1)
