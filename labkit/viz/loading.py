"""Which widgets this environment can show.

Owns: the one place where the widget packages are first imported. Does not know: traces.
Invariants: a missing package is named, and a static stand-in takes its place.
"""

from functools import partial
from typing import Any


def stepper_class() -> Any:
    """`Stepper` when anywidget and ipywidgets are there, else a `StillStepper` that names what
    is missing."""
    try:
        from labkit.viz.stepper import Stepper
    except ImportError as error:
        from labkit.viz.stillness import StillStepper

        return partial(StillStepper, missing=_package(error))
    return Stepper


def whatif_class() -> Any:
    """`WhatIf` likewise, else a `StillWhatIf`."""
    try:
        from labkit.viz.sliders import WhatIf
    except ImportError as error:
        from labkit.viz.desk import StillWhatIf

        return partial(StillWhatIf, missing=_package(error))
    return WhatIf


def race_view_class() -> Any:
    """`RaceView` likewise, else a `StillRace`."""
    try:
        from labkit.viz.race_view import RaceView
    except ImportError as error:
        from labkit.viz.race import StillRace

        return partial(StillRace, missing=_package(error))
    return RaceView


def _package(error: ImportError) -> str:
    """The pip package that is missing."""
    return (error.name or "anywidget").partition(".")[0]
