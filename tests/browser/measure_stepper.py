"""How large a stepper is and how fast it steps here: ``python tests/browser/measure_stepper.py``.

Prints figures, asserts none: they depend on the machine. Budgets of the design: a full trace of 64
tokens 300 KB, first paint 1 s, a step 50 ms.
"""

import json
import statistics
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "unit")]

import viz_traces  # noqa: E402
from harness import launch, open_stepper  # noqa: E402
from playwright.sync_api import sync_playwright  # noqa: E402

from labkit import viz  # noqa: E402
from labkit.viz.assets import script  # noqa: E402

RUNS = {
    "chain, 64 tokens": lambda: viz_traces.long_run(64),
    "trees of 15, 66 tokens": lambda: viz_traces.dynamic(22),
    "trees of 59, 60 tokens": lambda: viz_traces.dynamic(20, depth=8, nodes=59),
}
PAINT = """async ([script, state]) => {
  close(); const start = performance.now(); await show(script, state);
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  return performance.now() - start;
}"""
STEPS = """async (count) => {
  const times = [];
  for (let i = 1; i < count; i++) {
    await new Promise((done) => requestAnimationFrame(done));
    const start = performance.now();
    model.set("step", i); document.querySelector(".labkit-stage svg").getBoundingClientRect();
    times.push(performance.now() - start);
  }
  return times;
}"""


def main() -> None:
    """One line for each kind of run."""
    with sync_playwright() as playwright:
        browser = launch(playwright)
        for name, make in RUNS.items():
            trace = make()
            start = time.process_time()
            stepper = viz.Stepper(trace, compare=0.04)
            made = time.process_time() - start
            size: dict[str, int] = {"width": 1280, "height": 900}
            page = open_stepper(browser, stepper, viewport=size)
            state = {"film": stepper.film, "step": 0, "grain": "phase"}
            paint = min(page.evaluate(PAINT, [script("stepper"), state]) for _ in range(3))
            steps = page.evaluate(STEPS, min(stepper.steps, 80))
            print(  # noqa: T201
                f"{name}: trace {len(trace.dumps().encode()) / 1e3:.0f} KB, sent "
                f"{len(json.dumps(stepper.get_state())) / 1e3:.0f} KB, drawn in {made:.2f} s of "
                f"CPU, first paint {paint:.0f} ms, a step {statistics.median(steps):.0f} ms "
                f"(slowest {max(steps):.0f}), {stepper.steps} steps"
            )
            page.context.close()
        browser.close()


if __name__ == "__main__":
    main()
