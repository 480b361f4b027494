"""axe-core in a page: which rules of accessibility it finds broken.

Owns: where the script comes from (the package axe-playwright-python holds it) and what counts.
Does not know: widgets.
"""

from importlib.resources import files
from typing import Any

from playwright.sync_api import Page

GRAVE = ("serious", "critical")
SCRIPT = files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")


def grave_violations(page: Page, place: str) -> list[str]:
    """ "rule: markup" for each serious or critical finding inside of ``place`` (a CSS selector)."""
    page.evaluate(SCRIPT)
    found: dict[str, Any] = page.evaluate("place => axe.run(place)", place)
    return [
        f"{rule['id']}: {node['html'][:160]}"
        for rule in found["violations"]
        if rule["impact"] in GRAVE
        for node in rule["nodes"]
    ]
