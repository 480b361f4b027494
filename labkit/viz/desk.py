"""What the live and the static what-if have in common: one machine, one setting, one question.

Owns: what the browser is sent, and the page that works alone. Does not know: widgets.
Invariants: the page needs neither kernel nor network; nothing of the question's answer stands in
the open part of a static page.
"""

import html
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit import trace_file
from labkit.machine import MOST, Machine
from labkit.viz.assets import script, sheet
from labkit.viz.picture import Picture, stands_still
from labkit.viz.predict import Change, Prediction
from labkit.viz.theme import style_sheet
from labkit.viz.whatif import (
    BOARDS,
    TITLE,
    TOPS,
    WORDS,
    Board,
    forward_top,
    last_doubling,
    picture,
    sentence,
)
from labkit.whatif import BATCHES, FREE, MEASURED, Answer, Setting

RATIOS = (0.0, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0)
LABELS = {
    "drafting": "Acceptance",
    "chance": "one chance for every token",
    "way": "as measured: {name}",
    "alpha": "Chance of acceptance",
    "draft_length": "Drafted tokens per round",
    "cost_ratio": "A draft step, in target steps",
    "batch": "Batch: sequences together",
    "verify": "Verifying",
    "measured": "costs what was measured",
    "free": "costs one step, whatever its size",
    "back": "Back to the start",
}


@dataclass(frozen=True, slots=True)
class Desk:
    """answer: machine and first setting; ask: what to predict before the curve is shown."""

    answer: Answer
    ask: Prediction | None

    @classmethod
    def of(cls, machine: Machine | None, ask: Change | None, settings: dict[str, Any]) -> "Desk":
        """See `labkit.viz.WhatIf`."""
        machine = machine or Machine()
        setting = Setting(**{"verify": MEASURED if machine.forward else FREE} | settings)
        answer = Answer(setting, machine)
        return cls(answer, Prediction(ask, answer) if ask else None)

    def at(self, **settings: Any) -> Answer:
        """The model at another setting."""
        return Answer(Setting(**settings), self.answer.machine)

    def facts(self) -> str:
        """All that the browser needs, as JSON: numbers, words, and empty charts by page width."""
        machine, doublings = self.answer.machine, last_doubling()
        record = {
            "title": TITLE,
            "about": f"Measured on {machine.about}." if machine.about else "Nothing was measured.",
            "words": dict(WORDS),
            "labels": LABELS,
            "ways": [
                {"name": w.name, "tokens": w.tokens, "steps": w.steps, "cost_ratio": w.cost_ratio}
                for w in machine.drafting
            ],
            "forward": machine.forward,
            "ran": [run.speedup for run in machine.ran],
            "batches": BATCHES,
            "ratios": RATIOS,
            "most": MOST,
            "tops": TOPS,
            "doublings": doublings,
            "highest": forward_top(machine) if machine.forward else 0,
            "boards": [self._board(i) for i in range(len(BOARDS))],
            "ask": self.ask.to_json() if self.ask else None,
        }
        return json.dumps(record, ensure_ascii=False, separators=(",", ":"))

    def _board(self, number: int) -> dict[str, Any]:
        # runs are drawn at batch 1 and hidden by the browser elsewhere
        alone = Answer(Setting(**{**vars(self.answer.setting), "batch": 1}), self.answer.machine)
        board = Board.of(alone, number)
        # the style sheet, two thirds of each, is sent once, with the widget's own
        style = f"<style>{style_sheet()}</style>"
        frames = [
            board.scene(alone, top).svg(title=TITLE, description="").replace(style, "")
            for top in TOPS
        ]
        areas = [
            {"left": a.left, "top": a.top, "across": a.across, "up": a.up}
            for a in board.areas(alone)
        ]
        return {"width": board.width, "frames": frames, "areas": areas}

    def picture(self, answer: Answer, *, note: str = "") -> Picture:
        """The static picture of a setting."""
        return picture(answer, note=note)

    def html(self, answer: Answer, *, note: str, answered: str) -> str:
        """What stands on a page that runs no script."""
        shown = self.picture(answer, note=note).html
        if self.ask is None:
            return shown
        if answered:
            return f"<p>{html.escape(self.ask.reply(answered))}</p>{shown}"
        return self.ask.page(shown)

    def words(self, answer: Answer, answered: str) -> str:
        """The same in plain words."""
        if self.ask is None:
            return sentence(answer)
        return f"{self.ask.reply(answered)} {sentence(answer)}" if answered else self.ask.question

    def page(self, path: str | Path, state: dict[str, Any]) -> Path:
        """Write a page of its own with working sliders.

        Raises:
            BadInput: a path that cannot be written.
        """
        still = self.html(self.answer, note="The sliders need a browser with scripts.", answered="")
        facts = {**state, "facts": self.facts()}
        # "</" would end the script element wherever it stands
        held = json.dumps(facts, ensure_ascii=False).replace("</", "<\\/")
        text = _PAGE.format(
            title=html.escape(TITLE), style=sheet("whatif"), still=still,
            script=script("whatif"), state=held,
        )  # fmt: skip
        return trace_file.write(path, text)


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>body{{margin:0 auto;max-width:1240px}}{style}</style>
</head>
<body class="labkit" style="background:var(--lk-paper)">
<main id="place"></main>
<noscript>{still}</noscript>
<script type="module">
{script}
const state = {state};
const told = {{}};
render({{
  el: document.getElementById("place"),
  model: {{
    get: (name) => state[name],
    set(name, value) {{ state[name] = value; (told[name] ?? []).forEach((tell) => tell()); }},
    on(event, tell) {{ (told[event.slice("change:".length)] ??= []).push(tell); }},
    off() {{}},
    save_changes() {{}},
  }},
}});
</script>
</body>
</html>
"""


class StillWhatIf:
    """`labkit.viz.WhatIf` where no widget can be shown: set a slider and show it again.

    Args: as for `labkit.viz.WhatIf`; missing: the pip package without which there is no widget.
    """

    def __init__(
        self,
        machine: Machine | None = None,
        *,
        ask: Change | None = None,
        missing: str = "anywidget",
        **settings: Any,
    ) -> None:
        self._desk = Desk.of(machine, ask, settings)
        self.missing = missing
        self.answered = ""
        self.setting = self._desk.answer.setting

    @property
    def answer(self) -> Answer:
        """The model at the present setting."""
        return Answer(self.setting, self._desk.answer.machine)

    def save_page(self, path: str | Path) -> Path:
        """Write a page with working sliders, which needs no kernel and no network."""
        return self._desk.page(path, {**vars(self.setting), "answered": self.answered})

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        note = stands_still(self.missing)
        shown = self._desk.html(self.answer, note=note, answered=self.answered)
        return {"text/html": shown, "text/plain": repr(self)}

    def __repr__(self) -> str:
        return self._desk.words(self.answer, self.answered)
