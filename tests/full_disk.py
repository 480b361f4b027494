"""A disk without room, as safetensors tells of it, and one that takes small files only.

The library's own writer stands still for it: handed a device that is always full, it would put a
file in the device's place.
"""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError


def no_room(tensors: Any, filename: Any, metadata: Any = None) -> None:
    """In place of ``safetensors.torch.save_file``; leaves the half that went in."""
    Path(filename).write_bytes(b"half")
    raise SafetensorError(
        "Error while serializing: I/O error: No space left on device (os error 28)"
    )


@contextmanager
def small_files_only(size: int) -> Iterator[None]:
    """No file of this process grows beyond ``size`` bytes: a failure of the system's own."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
