"""Files that appear whole or not at all, and one message where they cannot be written.

Owns: the part beside a file until it is complete, and what is said of a disk that takes no more.
Does not know: what is written.
Invariants: a failure leaves neither a part nor a changed file; it names the file that was asked
for. A whole file has the mode of any new file. Neither torch nor safetensors is imported until
tensors are stored.
"""

import contextlib
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from labkit.errors import BadInput

if TYPE_CHECKING:
    from torch import Tensor


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Work that writes ``path``, or files in it.

    Raises:
        BadInput: for any `OSError` in it, which stays its cause: writes that fail name no file.
    """
    try:
        yield
    except OSError as error:
        raise BadInput(
            f"output {path}",
            expected="a place that may be written to and has room for it",
            got=error.strerror or str(error) or type(error).__name__,
            next_step="make room there, or write elsewhere",
        ) from error


@contextlib.contextmanager
def beside(path: Path, *, mark: str = "") -> Iterator[Path]:
    """The file to write instead of ``path``, which it replaces when all is written; whatever goes
    wrong passes unchanged, and no part is left.

    Args:
        mark: in the name of the part, where several may write the same file.
    """
    part = path.with_name(f"{path.name}{mark}.part")
    try:
        part.unlink(missing_ok=True)
        part.touch()
        mode = part.stat().st_mode  # as the umask has it; safetensors' own files are 0600
        yield part
        part.chmod(stat.S_IMODE(mode))
        os.replace(part, path)
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


@contextlib.contextmanager
def whole(path: Path, *, named: Path | None = None) -> Iterator[Path]:
    """`beside`, with one message for all that goes wrong.

    Args:
        named: how an error calls it, where ``path`` is not yet where it will be.

    Raises:
        BadInput: it cannot be written.
    """
    with writing(named or path), beside(path) as part:
        yield part


def save_tensors(
    path: Path,
    tensors: Mapping[str, "Tensor"],
    *,
    metadata: dict[str, str],
    named: Path | None = None,
) -> None:
    """Store tensors as a safetensors file, whole or not at all; a file of that name is replaced.

    Args:
        named: see `whole`.

    Raises:
        BadInput: it cannot be written.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    with whole(path, named=named) as part:
        try:
            save_file(dict(tensors), part, metadata=metadata)
        except SafetensorError as error:  # an exception of its own for what the system said
            raise _as_system_error(str(error)) from error


def _as_system_error(told: str) -> OSError:
    """From words such as "I/O error: No space left on device (os error 28)"."""
    number = re.search(r"\(os error (\d+)\)", told)
    if number is None:
        return OSError(told)
    return OSError(int(number[1]), os.strerror(int(number[1])))
