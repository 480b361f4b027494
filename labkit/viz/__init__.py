"""Pictures of a recorded run: deterministic SVG, charts, and one stepper widget.

Owns: the names below; each is loaded on first use. Does not know: models, caches, torch.
Importing this package loads neither torch nor plotly nor the widget packages.

    ribbon(trace)      the tokens, and what became of each drafted one
    kv_slots(trace)    the target's KV table, and its rollback
    draft_tree(trace, round=n)      one draft: kept, pruned, accepted
    attention_mask(trace, round=n)  what each of its nodes may look at
    timeline(trace)    where the time went, beside plain decoding
    still(trace)       all of it at one step
    Stepper(trace)     all of it, step by step
    Note(words, part)  a passage beside it that points at a part
    WhatIf(machine)    the speed-up model with sliders; ask=Change(...) to predict first
    RaceRecord         how a race between ways of decoding stands; `labkit.lab.race.Race` runs one
    share(trace)       a link that holds the run's file;  Opener()  a field that takes one
    charts             quantities: acceptance, speed, forward time, laws
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labkit.viz.notes import Note
    from labkit.viz.opener import Opener
    from labkit.viz.picture import Picture
    from labkit.viz.predict import Change
    from labkit.viz.race import RaceRecord
    from labkit.viz.sharing import share
    from labkit.viz.sliders import WhatIf
    from labkit.viz.stepper import Stepper
    from labkit.viz.views import attention_mask, draft_tree, kv_slots, ribbon, still, timeline

__all__ = [
    "Change",
    "Note",
    "Opener",
    "Picture",
    "RaceRecord",
    "Stepper",
    "WhatIf",
    "attention_mask",
    "charts",
    "draft_tree",
    "kv_slots",
    "ribbon",
    "share",
    "still",
    "timeline",
]

_HOMES = {
    "Note": "notes",
    "Change": "predict",
    "Opener": "opener",
    "share": "sharing",
    "Picture": "picture",
    "RaceRecord": "race",
    "attention_mask": "views",
    "draft_tree": "views",
    "kv_slots": "views",
    "ribbon": "views",
    "still": "views",
    "timeline": "views",
}


def __getattr__(name: str) -> Any:
    if name == "charts":
        return importlib.import_module("labkit.viz.charts")
    if name == "Stepper":
        return importlib.import_module("labkit.viz.loading").stepper_class()
    if name == "WhatIf":
        return importlib.import_module("labkit.viz.loading").whatif_class()
    if name in _HOMES:
        return getattr(importlib.import_module(f"labkit.viz.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
