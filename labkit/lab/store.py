"""Where models are kept, and what makes a kept model complete.

Owns: the cache directory, its locks, and the manifest beside each model.
Does not know: how files are fetched or what is in them.
Invariants: a model folder appears whole or not at all: it is filled under another name, its
manifest is written last, and one rename makes it visible. One process works on a model at a time.
"""

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from labkit.errors import BadCheckpoint, ModelUnavailable
from labkit.progress import Progress, silent

MANIFEST = "labkit.json"
LAYOUT = 1  # Raised when stored files change their meaning; older folders are then made anew.
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Manifest:
    """What a folder was made from, and the size and SHA-256 of each file in it."""

    source_sha256: str
    layout: int
    sizes: Mapping[str, int]
    sha256: Mapping[str, str]


def home_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """``LABKIT_HOME``, else ``labkit`` in the user's cache directory of this system.

    Raises:
        ModelUnavailable: this account has no home directory, so that there is none.
    """
    try:
        return _home_directory(environ)
    except RuntimeError as error:
        raise ModelUnavailable(
            "cache directory",
            expected="LABKIT_HOME, or a home directory to keep models in",
            got=str(error),
            next_step="set LABKIT_HOME to a directory of yours",
        ) from error


def _home_directory(environ: Mapping[str, str]) -> Path:
    if chosen := environ.get("LABKIT_HOME"):
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        return Path(environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "labkit"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "labkit"
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "labkit"


def model_folder(home: Path, name: str) -> Path:
    """Where the model of that name is, or will be."""
    return home / "models" / name


def is_complete(folder: Path, source_sha256: str) -> bool:
    """True when every file is there with its size. Reads one small file: takes no time."""
    manifest = read_manifest(folder)
    if manifest is None or manifest.layout != LAYOUT or manifest.source_sha256 != source_sha256:
        return False
    return all(_size(folder / name) == size for name, size in manifest.sizes.items())


def damaged_files(folder: Path) -> tuple[str, ...]:
    """Names of files whose content is not what was stored; reads all of them."""
    manifest = read_manifest(folder)
    if manifest is None:
        return (MANIFEST,)
    return tuple(
        name
        for name, expected in manifest.sha256.items()
        if _size(folder / name) != manifest.sizes[name] or sha256_of(folder / name) != expected
    )


def read_manifest(folder: Path) -> Manifest | None:
    """The folder's manifest; None when there is none that can be read."""
    try:
        return Manifest(**json.loads((folder / MANIFEST).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def write_manifest(folder: Path, source_sha256: str) -> None:
    """Describe every file that is in the folder now."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != MANIFEST)
    manifest = Manifest(
        source_sha256=source_sha256,
        layout=LAYOUT,
        sizes={path.name: path.stat().st_size for path in files},
        sha256={path.name: sha256_of(path) for path in files},
    )
    text = json.dumps(asdict(manifest), indent=1)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


def publish(staged: Path, folder: Path) -> None:
    """Make a filled folder visible under its final name; replaces an incomplete one."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    if folder.exists():
        shutil.rmtree(folder)
    staged.rename(folder)


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def check_file(path: Path, *, size: int, sha256: str, next_step: str) -> None:
    """Compare a file with its known size and checksum.

    Raises:
        BadCheckpoint: they differ. The file is left to the caller.
    """
    there = _size(path)
    if there != size:
        expected, got = f"{size} bytes", f"{there} bytes"
    else:
        digest = sha256_of(path)
        if digest == sha256:
            return
        expected, got = f"SHA-256 {sha256}", f"SHA-256 {digest}"
    raise BadCheckpoint(str(path), expected=expected, got=got, next_step=next_step)


def prepare_home(home: Path, *, free_bytes: int) -> None:
    """Make the cache directory and make sure that it can be filled.

    Raises:
        ModelUnavailable: it cannot be written, or the disk has too little room.
    """
    wrong = None
    try:
        home.mkdir(parents=True, exist_ok=True)
        if not os.access(home, os.W_OK):
            wrong = "no permission"
    except (FileExistsError, NotADirectoryError):
        wrong = "a file in its place"
    except OSError as error:
        wrong = error.strerror or type(error).__name__
    if wrong:
        raise ModelUnavailable(
            "cache directory",
            expected=f"{home} to be a directory that can be written to",
            got=wrong,
            next_step="set LABKIT_HOME to a directory of yours",
        )
    free = shutil.disk_usage(home).free
    if free < free_bytes:
        raise disk_full(home, needed=free_bytes, free=free)


def disk_full(home: Path, *, needed: int, free: int) -> ModelUnavailable:
    """The error for a disk without room."""
    return ModelUnavailable(
        "disk space",
        expected=f"{needed / 1e6:.0f} MB free in {home}",
        got=f"{free / 1e6:.0f} MB",
        next_step="free some space, or set LABKIT_HOME to a directory on another disk",
    )


@contextmanager
def only_one(home: Path, name: str, progress: Progress = silent) -> Iterator[None]:
    """Hold the lock of one model; wait while another process holds it."""
    lock = FileLock(home / f".{name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress(f"waiting for another process that prepares {name}", 0, 0)
        lock.acquire()
    try:
        for left_behind in home.glob(f".{name}-*"):  # by a process that was killed
            shutil.rmtree(left_behind, ignore_errors=True)
        yield
    finally:
        lock.release()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1
