"""Record the gallery's runs on a real model.

Owns: which runs can be recorded on a model, and under which names. Does not know: drafting.
Invariants: tokens are the same on every machine that computes alike; seconds are those of this one.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from labkit.drafters.shapes import DynamicTree
from labkit.errors import BadInput, ModelUnavailable
from labkit.gallery.scenes import Scene
from labkit.lab.presets import DEFAULT
from labkit.lab.session import Lab
from labkit.progress import Progress
from labkit.trace import Trace


@dataclass(frozen=True, slots=True)
class Recorded:
    """One scene. path: its file, None when the model has no drafter for it, and ``why``."""

    name: str
    path: Path | None
    tokens: int = 0
    why: str = ""


def record(
    lab: Lab, scenes: Sequence[Scene], folder: str | Path, *, progress: Progress | None = None
) -> Iterator[Recorded]:
    """Record ``scenes`` into ``folder``, one after another.

    Methods for which this model has no drafter are told and left out.

    Raises:
        BadInput: there is no such folder, or no scene.
    """
    folder = Path(folder)
    if not folder.is_dir() or not scenes:
        raise BadInput(
            "recording",
            expected="a folder that exists, and at least one run",
            got=f"{folder}, {len(scenes)} runs",
            next_step="make the folder first" if scenes else "name a run of the gallery",
        )
    for done, scene in enumerate(scenes):
        if progress:
            progress(scene.name, done, len(scenes))
        name = name_on(lab.loaded.name, scene.name)
        try:
            trace = one(lab, scene)
        except ModelUnavailable as error:
            yield Recorded(name, None, why=str(error))
            continue
        trace.save(folder / f"{name}.json.gz")
        yield Recorded(name, folder / f"{name}.json.gz", len(trace.tokens))


def one(lab: Lab, scene: Scene) -> Trace:
    """One run, after a short one of the same kind that is not kept, with its title."""
    bench = lab
    if scene.tree:
        children, nodes = scene.tree
        bench = Lab(lab.loaded, shape=DynamicTree(top_k=children, nodes=nodes))
    options: dict[str, Any] = {"method": scene.method, "detail": "full", **scene.settings}
    bench.record(scene.prompt, **{**options, "max_new_tokens": 4})
    run = bench.record(scene.prompt, **options)
    return replace(run, header=run.header | {"title": scene.title})


def name_on(model: str, scene: str) -> str:
    """The run's file name: that of the scene, after the model's where it is not the lab's own."""
    if model == DEFAULT:
        return scene
    return re.sub(r"[^a-z0-9.]+", "-", Path(model).name.lower()).strip("-") + f"-{scene}"
