"""Names of heads: a folder, or one of the heads that come with the lab.

Owns: where those lie, and what a name stands for. Does not know: formats, models, torch.
Invariants: a folder of that name wins; an error lists the names there are.
"""

import os
from pathlib import Path

import labkit
from labkit.errors import BadCheckpoint
from labkit.lab.presets import DEFAULT

WEIGHTS = Path(labkit.__file__).parent / "weights"
_NO_HEAD = "draft"  # a whole small model: found, so that its reader can say so, but not offered


def head_folder(head: str | Path) -> Path:
    """The folder that ``head`` names: a folder, a head of the lab by its folder's name
    ("smollm2-135m-eagle31"), or by its kind alone ("eagle31": the default target's).

    Raises:
        BadCheckpoint: neither is there.
    """
    if os.path.isdir(head):  # unlike Path's, it answers for impossible names too
        return Path(head)
    known = _shipped()
    if (name := str(head)) in known:
        return known[name]
    offered = [name for name, path in known.items() if not path.name.endswith(f"-{_NO_HEAD}")]
    raise BadCheckpoint(
        f"head {name}",
        expected="a folder with a head, or one of " + ", ".join(offered),
        got="a file" if os.path.exists(head) else "nothing there",
        next_step="name the folder of a head, or one of the lab's own",
    )


def _shipped() -> dict[str, Path]:
    """The lab's own weights, by kind for the default target, and by the names of their folders."""
    heads = sorted(config.parent for config in WEIGHTS.glob("*/config.json"))
    start = f"{DEFAULT}-"
    short = {f.name.removeprefix(start): f for f in heads if f.name.startswith(start)}
    return short | {folder.name: folder for folder in heads}
