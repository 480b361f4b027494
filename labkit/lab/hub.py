"""Models of the Hugging Face hub.

Owns: which files are wanted, when a cached copy is complete, and what a refusal means.
Does not know: how files become a model.
Invariants: a complete copy is used without a connection; pickled weights and code are never
fetched.
"""

import json
from pathlib import Path

from labkit.errors import BadCheckpoint, LabError, ModelUnavailable
from labkit.lab.presets import DEFAULT, HubSource, open_alternative
from labkit.progress import Progress, silent

WANTED = ("*.safetensors", "*.json", "*.jinja", "*.model", "merges.txt", "vocab.txt", "tokenizer*")
UNWANTED = ("original/*", "onnx/*", "*/*", "consolidated*")


def cached_folder(repo: str) -> Path | None:
    """The snapshot of a repository in the local hub cache, if it is complete."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(repo, local_files_only=True))
    except (LocalEntryNotFoundError, OSError):
        return None
    return folder if has_weights(folder) else None


def has_weights(folder: Path) -> bool:
    """True when the configuration and every safetensors file that the index names are there.

    Raises:
        BadCheckpoint: there is an index that names no files.
    """
    if not (folder / "config.json").is_file():
        return False
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        return all((folder / shard).is_file() for shard in _shards(index))
    return any(folder.glob("*.safetensors"))


def _shards(index: Path) -> set[str]:
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return {"".join(shard) for shard in weight_map.values()}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise BadCheckpoint(
            str(index),
            expected='JSON with a "weight_map" from names of weights to files',
            got=f"{type(error).__name__}: {error}",
            next_step="fetch the file again",
        ) from error


def fetch_repository(source: HubSource, *, progress: Progress = silent) -> Path:
    """The local folder of a hub model, fetched when it is not there yet.

    Raises:
        ModelUnavailable: gated, private, unknown, or no network.
        BadCheckpoint: the repository has no safetensors weights.
    """
    if (folder := cached_folder(source.repo)) is not None:
        return folder
    from huggingface_hub import snapshot_download

    progress(f"fetching {source.repo} from the hub", 0, 0)
    try:
        folder = Path(
            snapshot_download(source.repo, allow_patterns=[*WANTED], ignore_patterns=[*UNWANTED])
        )
    except Exception as error:
        raise explain(source, error) from error
    if not has_weights(folder):
        raise BadCheckpoint(
            source.repo,
            expected="config.json and weights in safetensors files",
            got="a repository without them",
            next_step="choose a model that is published as safetensors",
        )
    return folder


def explain(source: HubSource, error: Exception) -> LabError:
    """What the hub's refusal means and what helps; ``error`` itself when it is none of ours.

    Raises:
        Exception: ``error``, when it did not come from the hub or the network.
    """
    from huggingface_hub import errors
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
    alternative = open_alternative(source.repo)
    if isinstance(error, errors.GatedRepoError) or status in (401, 403):
        return ModelUnavailable(
            source.repo,
            expected=f"an account that may read it (accept its licence at {source.page})",
            got=f"HTTP {status or 403} from the hub",
            next_step=(
                f"run `hf auth login` and try again, or use an open model such as {alternative} "
                f"or {DEFAULT}"
            ),
        )
    if isinstance(error, errors.RepositoryNotFoundError) or status == 404:
        return ModelUnavailable(
            source.repo,
            expected=f"a public model at {source.page}",
            got="no such repository",
            next_step=f"check the spelling, or use {alternative} or {DEFAULT}",
        )
    if isinstance(error, (LocalEntryNotFoundError, OSError, HfHubHTTPError)):
        return ModelUnavailable(
            source.repo,
            expected="the hub to answer, or a complete copy in its local cache",
            got=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
            next_step=f"connect to a network and try again, or use {DEFAULT}, which needs no hub",
        )
    raise error
