"""axe-core finds nothing serious in the stepper, in both themes, on a page, a phone, in a room."""

from typing import Any

import pytest
import viz_traces
from axe import grave_violations
from harness import open_stepper
from playwright.sync_api import Browser

from labkit import viz

NOTES = (viz.Note("The dot is the draw.", "u", phase="verify"), viz.Note("Slots.", "slots"))
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 740}
STEPPER = ".labkit-stepper"


def opened(browser: Browser, trace: Any, *, scheme: Any, size: dict[str, int]) -> Any:
    stepper = viz.Stepper(trace, compare=0.04, notes=NOTES, step=5)
    return open_stepper(browser, stepper, viewport=size, color_scheme=scheme)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("make", [viz_traces.chain, viz_traces.dynamic], ids=["chain", "tree"])
def test_nothing_serious_is_found(browser: Browser, make: Any, size: Any, scheme: Any) -> None:
    page = opened(browser, make(), scheme=scheme, size=size)
    page.locator(STEPPER).focus()
    page.keyboard.press("a")
    assert grave_violations(page, STEPPER) == []
    page.keyboard.press("p")
    page.locator(".labkit-projector").wait_for()
    assert grave_violations(page, STEPPER) == []
    page.context.close()


@pytest.mark.parametrize(
    ("harm", "rule"),
    [
        ("box.append(Object.assign(document.createElement('button'), {type: 'button'}))",
         "button-name"),
        ("box.querySelector('input').removeAttribute('aria-label')", "label"),
        ("box.querySelector('.labkit-sentence').style.color = '#c8c8c8'", "color-contrast"),
    ],
    ids=["unnamed button", "unnamed slider", "pale words"],
)  # fmt: skip
def test_a_defect_is_found(browser: Browser, harm: str, rule: str) -> None:
    """Negative control."""
    page = opened(browser, viz_traces.chain(), scheme="light", size=DESKTOP)
    page.evaluate(f"() => {{ const box = document.querySelector('{STEPPER}'); {harm}; }}")
    found = grave_violations(page, STEPPER)
    assert found
    assert {words.split(":")[0] for words in found} == {rule}
    page.context.close()
