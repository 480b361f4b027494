"""What this machine has, against what the lab wants.

Owns: the list of checks.
Does not know: how the report is printed.
Invariants: looking changes nothing and opens no connection; version ranges come from the package's
own metadata, so that they stand in one place.
"""

import importlib.metadata
import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from labkit import __version__
from labkit.devices import HOST, device_label, dtype_name, memory, resolve_device, resolve_dtype
from labkit.kernels import skinny_pays
from labkit.lab.presets import DEFAULT, find
from labkit.lab.pull import folder_of
from labkit.lab.store import damaged_files, home_directory

_WANTED_MEMORY = 3e9  # bytes: the default model in float32, its cache, Jupyter and a browser
_WANTED_DISK = 1e9


@dataclass(frozen=True)
class Check:
    """One line of the report; ``ok`` is False when ``advice`` should be followed."""

    name: str
    ok: bool
    found: str
    wanted: str = ""
    advice: str = ""


def examine(*, home: Path | None = None) -> tuple[Check, ...]:
    """Every check, in the order in which a person would read them."""
    place = home or home_directory()
    return (
        Check("labkit", True, __version__),
        _python(),
        *_packages(),
        *_device(),
        _memory(),
        _disk(place),
        _model(place),
    )


def all_well(checks: tuple[Check, ...]) -> bool:
    """True when nothing has to be put right."""
    return all(check.ok for check in checks)


def _python() -> Check:
    wanted = importlib.metadata.metadata("labkit")["Requires-Python"] or ""
    found = platform.python_version()
    ok = SpecifierSet(wanted).contains(found)
    return Check("python", ok, found, wanted, f"install Python {wanted}")


def _packages() -> Iterator[Check]:
    for line in sorted(importlib.metadata.requires("labkit") or ()):
        requirement = Requirement(line)
        if requirement.marker is not None:  # an extra
            continue
        wanted = str(requirement.specifier)
        try:
            found = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            found = "missing"
        ok = found != "missing" and requirement.specifier.contains(found, prereleases=True)
        advice = f'pip install "{requirement.name}{wanted}"'
        yield Check(requirement.name, ok, found, wanted, advice)


def _device() -> Iterator[Check]:
    device = resolve_device()
    dtype = resolve_dtype("auto", device)
    kernels = "skinny" if skinny_pays(device, dtype) else "plain"
    yield Check("device", True, f"{device} ({device_label(device)})")
    yield Check("dtype", True, dtype_name(dtype))
    yield Check("linear layers", True, kernels)
    yield Check("cpu", True, f"{os.cpu_count()} cores, torch uses {torch.get_num_threads()}")


def _memory() -> Check:
    there = memory(HOST)
    if there is None:
        return Check("memory", True, "unknown")
    found = f"{there.available / 1e9:.1f} GB free of {there.total / 1e9:.1f} GB"
    wanted = f"{_WANTED_MEMORY / 1e9:.0f} GB free"
    return Check(
        "memory", there.available >= _WANTED_MEMORY, found, wanted, "stop other kernels or programs"
    )


def _disk(home: Path) -> Check:
    there = home
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free
    ok = os.access(there, os.W_OK) and (free >= _WANTED_DISK or folder_of(find(DEFAULT), home))
    return Check(
        "cache",
        bool(ok),
        f"{home}, {free / 1e9:.1f} GB free",
        f"writable, {_WANTED_DISK / 1e9:.0f} GB free for the default model",
        "set LABKIT_HOME to a directory with room",
    )


def _model(home: Path) -> Check:
    preset = find(DEFAULT)
    folder = folder_of(preset, home)
    if folder is None:
        return Check("model", False, "not here", preset.title, "run `labkit pull`")
    damaged = damaged_files(folder)
    if damaged:
        advice = f"remove {folder} and run `labkit pull`"
        return Check("model", False, f"damaged: {', '.join(damaged)}", preset.title, advice)
    return Check("model", True, f"{preset.title}, checksums right", preset.title)


def report(checks: tuple[Check, ...]) -> str:
    """The checks as aligned text, advice last."""
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        mark = "ok " if check.ok else "BAD"
        wanted = f"  (wanted: {check.wanted})" if check.wanted and not check.ok else ""
        lines.append(f"{mark} {check.name:<{width}}  {check.found}{wanted}")
    lines += [f"Next: {check.advice}." for check in checks if not check.ok]
    return "\n".join(lines)
