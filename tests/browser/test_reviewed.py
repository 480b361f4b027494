"""The stepper looks as it did when somebody looked: shapes and colours, whatever the font."""

import pytest
from playwright.sync_api import Browser
from reviewed import FOLDER, SHOTS, difference, kept, open_shot, picture

ENOUGH = 0.02  # share of squares that another font may change


@pytest.mark.parametrize("name", SHOTS)
def test_pictures_look_like_the_reviewed_ones(browser: Browser, name: str) -> None:
    page = open_shot(browser, SHOTS[name])
    across = SHOTS[name].across
    assert difference(page, picture(page), kept(name), across=across) <= ENOUGH
    page.context.close()


def test_another_font_is_no_difference(browser: Browser) -> None:
    page = open_shot(browser, SHOTS["chain_rejected"])
    before = picture(page)
    page.add_style_tag(content=".labkit-stage text { font-family: serif !important; }")
    assert picture(page) != before
    assert difference(page, picture(page), kept("chain_rejected")) <= ENOUGH
    page.context.close()


# by rule: an element changed by hand is put right again when the board is laid out anew
RULE = "document.head.insertAdjacentHTML('beforeend', '<style>{} !important}}</style>')"


@pytest.mark.parametrize(
    "harm",
    [
        "model.set('step', 6)",
        RULE.format("[data-panel=slots] { display: none"),
        "document.documentElement.setAttribute('theme', 'dark')",
        RULE.format("[data-panel=inspector] { transform: translate(0, 30px)"),
    ],
    ids=["another step", "a panel is gone", "another theme", "a panel has moved"],
)
def test_another_picture_is_noticed(browser: Browser, harm: str) -> None:
    """Negative control."""
    page = open_shot(browser, SHOTS["chain_rejected"])
    page.evaluate(f"() => {{ {harm}; }}")
    assert difference(page, picture(page), kept("chain_rejected")) > ENOUGH
    page.context.close()


def test_kept_pictures_are_few_and_small() -> None:
    sizes = {path.stem: path.stat().st_size for path in FOLDER.iterdir()}
    assert sizes.keys() == SHOTS.keys()
    assert sum(sizes.values()) < 600_000
