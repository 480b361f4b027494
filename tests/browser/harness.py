"""A page that holds the stepper's real script and style, and a stand-in for the widget model.

The stand-in keeps what anywidget promises: get, set (which tells listeners at once), save_changes,
on, off. The pictures come from the real `Stepper`, so nothing of the widget itself is imitated.
"""

import sys
from pathlib import Path
from typing import Any

import chromium
from playwright.sync_api import Browser, Page, Playwright

from labkit.viz.assets import script, sheet

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tests" / "unit"))

FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
PATIENCE = 120_000  # milliseconds for anything a page has to do: a busy machine is no failure
MODEL = """
window.makeModel = (state) => {
  const listeners = {};
  return {
    saves: 0,
    get: (name) => state[name],
    set(name, value) {
      if (state[name] === value) return;
      state[name] = value;
      (listeners["change:" + name] ?? []).forEach((tell) => tell());
    },
    save_changes() { this.saves += 1; },
    on(name, tell) { (listeners[name] ??= []).push(tell); },
    off(name, tell) { listeners[name] = (listeners[name] ?? []).filter((one) => one !== tell); },
    listening: () => Object.values(listeners).reduce((sum, list) => sum + list.length, 0),
  };
};
window.show = async (script, state) => {
  const url = URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
  window.stepper = await import(url);
  window.model = makeModel(state);
  window.place = document.getElementById("place");
  window.close = await stepper.default.render({ model, el: place });
};
"""


def launch(playwright: Playwright) -> Browser:
    """The browser of `chromium.py`; None is playwright's own, or its message that there is none."""
    return playwright.chromium.launch(executable_path=chromium.find(), args=list(FLAGS))


def open_widget(
    browser: Browser, name: str, state: dict[str, Any], *, model: str = "", **context: Any
) -> Page:
    """A page with the widget of ``name``.js and .css on it. ``page.complaints`` collects what the
    console says.

    Args:
        state: of the stand-in model. model: script that makes more of it.
    """
    page = browser.new_context(**context).new_page()
    page.set_default_timeout(PATIENCE)
    complaints: list[str] = []
    page.complaints = complaints  # type: ignore[attr-defined]
    page.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.set_content(
        '<!doctype html><html lang="en"><head><meta name="viewport" content="width=device-width">'
        f"<title>{name}</title><style>body{{margin:0}}{sheet(name)}</style></head>"
        '<body><main id="place"></main><input id="elsewhere" aria-label="elsewhere"></body></html>'
    )
    page.add_script_tag(content=MODEL + model)
    page.evaluate("([script, state]) => show(script, state)", [script(name), state])
    return page


def open_stepper(browser: Browser, stepper: Any, **context: Any) -> Page:
    """A page with ``stepper`` on it; see `open_widget`."""
    state = {"film": stepper.film, "step": stepper.step, "grain": stepper.grain}
    return open_widget(browser, "stepper", state, **context)
