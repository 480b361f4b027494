"""Pictures of the stepper that a person has looked at: ``python tests/browser/reviewed.py``.

Owns: which states are kept, how a picture is made small, how two are compared.
Does not know: what is on them.
Invariants: the picture alone is kept, whose shapes stand where Python put them; letters, which
look different with every font, are a few pixels in it. A wanted change: run this file, open the
pictures in tests/browser/reviewed/, mend what is not clear, then commit them.
"""

import base64
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "unit")]

import viz_traces  # noqa: E402
from harness import launch, open_stepper  # noqa: E402
from playwright.sync_api import Browser, Page, sync_playwright  # noqa: E402

from labkit import viz  # noqa: E402
from labkit.trace import Trace  # noqa: E402

FOLDER = Path(__file__).parent / "reviewed"
CELL = 10  # pixels of the squares whose mean colours are compared
SMALL = f"""
window.shrunk = async (source, across) => {{
  const image = new Image();
  image.src = source;
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = across;
  canvas.height = Math.round(across * image.height / image.width);
  const pen = canvas.getContext("2d", {{ willReadFrequently: true }});
  pen.imageSmoothingQuality = "high";
  pen.drawImage(image, 0, 0, canvas.width, canvas.height);
  const all = pen.getImageData(0, 0, canvas.width, canvas.height);
  for (let i = 0; i < all.data.length; i++) all.data[i] |= 15; // few colours, small files
  pen.putImageData(all, 0, 0);
  return [canvas, pen];
}};
window.squares = async ([source, across]) => {{
  const [canvas, pen] = await shrunk(source, across);
  const out = [];
  for (let y = 0; y + {CELL} <= canvas.height; y += {CELL}) {{
    for (let x = 0; x + {CELL} <= canvas.width; x += {CELL}) {{
      const data = pen.getImageData(x, y, {CELL}, {CELL}).data;
      const mean = [0, 1, 2].map((c) => {{
        let sum = 0;
        for (let i = c; i < data.length; i += 4) sum += data[i];
        return Math.round(sum / (data.length / 4));
      }});
      out.push(mean);
    }}
  }}
  return out;
}};
"""


@dataclass(frozen=True, slots=True)
class Shot:
    """One state on one screen. keys: pressed before the picture is taken. across: pixels of the
    picture that is kept."""

    trace: Callable[[], Trace]
    step: int
    width: int
    scheme: str = "light"
    keys: str = ""
    across: int = 400


SHOTS = {
    "chain_rejected": Shot(viz_traces.chain, 5, 1280),
    "chain_resampled_dark": Shot(viz_traces.chain, 6, 1280, "dark"),
    "tree_dark": Shot(viz_traces.dynamic, 4, 1280, "dark"),
    "tree_phone": Shot(viz_traces.dynamic, 4, 390, across=200),
    "large_tree_folded": Shot(lambda: viz_traces.dynamic(1, depth=8, nodes=59), 4, 1280),
    "room": Shot(viz_traces.chain, 6, 1920, "light", "p"),
}


def open_shot(browser: Browser, shot: Shot, *, step: int | None = None) -> Page:
    """A page that shows ``shot``, or another step of the same run."""
    stepper = viz.Stepper(shot.trace(), compare=0.04, step=shot.step if step is None else step)
    size: Any = {"width": shot.width, "height": 900}
    page = open_stepper(browser, stepper, viewport=size, color_scheme=shot.scheme,
                        reduced_motion="reduce")  # fmt: skip
    # the head follows the page and would lie over a tall picture
    page.add_style_tag(content=".labkit-head { position: static !important; }")
    page.locator(".labkit-stepper").focus()
    for key in shot.keys:
        page.keyboard.press(key)
    page.wait_for_timeout(300)
    return page


def picture(page: Page) -> str:
    """The drawing as a data address."""
    # what was changed a moment ago has to be painted first
    page.evaluate("() => new Promise((d) => requestAnimationFrame(() => requestAnimationFrame(d)))")
    data = page.locator(".labkit-stage svg").screenshot()
    return "data:image/png;base64," + base64.b64encode(data).decode()


def kept(name: str) -> str:
    data = (FOLDER / f"{name}.png").read_bytes()
    return "data:image/png;base64," + base64.b64encode(data).decode()


def difference(page: Page, one: str, other: str, *, across: int = 400) -> float:
    """The share of squares whose mean colours differ by more than a sixteenth of the scale; 1 for
    pictures of different shapes."""
    page.evaluate(f"() => {{ {SMALL} }}")
    a, b = (page.evaluate("pair => squares(pair)", [source, across]) for source in (one, other))
    if len(a) != len(b):
        return 1.0
    far = sum(
        max(abs(x - y) for x, y in zip(p, q, strict=True)) > 16 for p, q in zip(a, b, strict=True)
    )
    return far / len(a)


def main() -> None:
    """Take every picture again."""
    FOLDER.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = launch(playwright)
        for name, shot in SHOTS.items():
            page = open_shot(browser, shot)
            page.evaluate(f"() => {{ {SMALL} }}")
            small = page.evaluate(
                "async (pair) => (await shrunk(...pair))[0].toDataURL('image/png')",
                [picture(page), shot.across],
            )
            (FOLDER / f"{name}.png").write_bytes(base64.b64decode(small.split(",")[1]))
            print(name)  # noqa: T201
            page.context.close()
        browser.close()


if __name__ == "__main__":
    main()
