"""What if, live: sliders over the speed-up model, which the browser computes itself.

Owns: the widget and what is synchronised with the browser. Does not know: drawing, models.
Invariants: moving a slider needs no kernel; every slider can be read and set in Python; every cell
that shows the widget also stores a static picture and a sentence.

Needs anywidget; without it `labkit.viz.WhatIf` is `labkit.viz.desk.StillWhatIf`.
"""

from pathlib import Path
from typing import Any

import anywidget
import traitlets

from labkit.machine import Machine
from labkit.viz.assets import script, sheet
from labkit.viz.desk import Desk
from labkit.viz.picture import Picture
from labkit.viz.predict import CHOICES, Change
from labkit.viz.turnover import take_over
from labkit.whatif import Answer

_FIELDS = ("drafting", "alpha", "draft_length", "cost_ratio", "batch", "verify")
_NOTE = "Run this cell to move the sliders."


class WhatIf(anywidget.AnyWidget):
    """Move acceptance, drafted tokens, draft cost and batch, and see what the speed does.

    Args:
        machine: measured numbers (`labkit.lab.machine.measure_machine`, or
            `labkit.gallery.gallery.machine`); None: the published formula alone.
        ask: a change to predict before the curve is shown: ``Change("draft_length", 2, 8)``.
        settings: where the sliders begin; fields of `labkit.whatif.Setting`.

    The sliders are attributes: ``whatif.batch = 8``.

    Raises:
        BadInput: an impossible setting, or the name of a way to draft that was not measured.
    """

    _esm = script("whatif")
    _css = sheet("whatif")
    _ipython_display_ = None  # see `labkit.viz.stepper.Stepper`
    facts = traitlets.Unicode().tag(sync=True)
    drafting = traitlets.Unicode().tag(sync=True)
    alpha = traitlets.Float().tag(sync=True)
    draft_length = traitlets.Int().tag(sync=True)
    cost_ratio = traitlets.Float().tag(sync=True)
    batch = traitlets.Int().tag(sync=True)
    verify = traitlets.Unicode().tag(sync=True)
    answered = traitlets.Unicode("").tag(sync=True)

    def __init__(
        self, machine: Machine | None = None, *, ask: Change | None = None, **settings: Any
    ) -> None:
        desk = Desk.of(machine, ask, settings)
        self._desk = desk
        super().__init__(facts=desk.facts(), **vars(desk.answer.setting))
        take_over(self)

    @property
    def answer(self) -> Answer:
        """The model where the sliders are: ``answer.speeds``, ``answer.best``, ..."""
        return self._desk.at(**self._settings)

    @property
    def picture(self) -> Picture:
        """The static picture of this very setting."""
        return self._desk.picture(self.answer)

    def save_page(self, path: str | Path) -> Path:
        """Write a page with working sliders, which needs no kernel and no network.

        Raises:
            BadInput: a path that cannot be written.
        """
        return self._desk.page(path, {**self._settings, "answered": self.answered})

    @property
    def _settings(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _FIELDS}

    @traitlets.validate(*_FIELDS)
    def _valid(self, proposal: dict[str, Any]) -> Any:
        value = proposal["value"]
        self._desk.at(**{**vars(self._desk.answer.setting), proposal["trait"].name: value})
        return value

    @traitlets.validate("answered")
    def _valid_answer(self, proposal: dict[str, Any]) -> str:
        value: str = proposal["value"]
        if value and value not in CHOICES:
            raise traitlets.TraitError(f"answered: expected one of {[*CHOICES]}, got {value!r}")
        return value

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        bundle: Any = super()._repr_mimebundle_(**kwargs)
        data, metadata = bundle
        shown = self._desk.html(self.answer, note=_NOTE, answered=self.answered)
        return {**data, "text/html": shown, "text/plain": repr(self)}, metadata

    def __repr__(self) -> str:
        return self._desk.words(self.answer, self.answered)
