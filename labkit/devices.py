"""Where tensors live and how wide their numbers are.

Owns: every literal device name in the package; the meaning of ``auto`` for device and dtype.
Does not know: models, caches, presets.
Invariants: ``auto`` gives float32 on a CPU, where exactness is claimed, and on a GPU bfloat16, or
float16 where bfloat16 would be emulated. A device or dtype that cannot be used raises before any
tensor is made.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from labkit.errors import BadInput

HOST = torch.device("cpu")
_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


@dataclass(frozen=True)
class Memory:
    """Bytes of a device: all of them, and those that are free now."""

    total: int
    available: int


def available_devices() -> tuple[str, ...]:
    """Names that ``resolve_device`` accepts on this machine, the preferred one first."""
    gpus = tuple(f"cuda:{i}" for i in range(torch.cuda.device_count()))
    metal = ("mps",) if torch.backends.mps.is_available() else ()
    return (*gpus, "cpu", *metal)


def resolve_device(name: str | torch.device = "auto") -> torch.device:
    """Turn a device name into a device that is there.

    ``auto`` is the first GPU, else the CPU. Metal has to be named: the exactness tests do not
    run there.

    Raises:
        BadInput: the name is not a device, or the device is not on this machine.
    """
    if name == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else HOST
    there = available_devices()
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is not None:
        if device.type == "cuda":
            device = torch.device("cuda", device.index or 0)
        if device.type == "cpu" or str(device) in there or device.type in there:
            return device
    raise BadInput(
        "device",
        expected=f"auto or one of {', '.join(there)}",
        got=repr(str(name)),
        next_step="leave it at auto, or name a device of this machine",
    )


def resolve_dtype(
    name: str | torch.dtype = "auto", device: str | torch.device = "auto"
) -> torch.dtype:
    """Turn a dtype name into a dtype; ``auto`` is chosen for ``device``.

    Raises:
        BadInput: the name is not float32, bfloat16 or float16 (or fp32, bf16, fp16).
    """
    if isinstance(name, torch.dtype):
        name = dtype_name(name)
    if name == "auto":
        return _native_dtype(resolve_device(device))
    if name not in _DTYPES:
        raise BadInput(
            "dtype",
            expected="auto, float32, bfloat16 or float16",
            got=repr(name),
            next_step="leave it at auto: float32 on a CPU, half precision on a GPU",
        )
    return _DTYPES[name]


def dtype_name(dtype: torch.dtype) -> str:
    """``torch.float32`` -> ``float32``; the name that goes into traces and tables."""
    return str(dtype).removeprefix("torch.")


def is_gpu(device: torch.device) -> bool:
    """True when work on the device runs behind the host's back."""
    return device.type != "cpu"


def device_label(device: torch.device) -> str:
    """A name for people: the GPU's model, or the CPU's instruction set."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "cpu":
        return f"CPU ({torch.backends.cpu.get_cpu_capability()})"
    return device.type


def synchronise(device: torch.device) -> None:
    """Wait for the device, so that a clock read afterwards counts its work. Free on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def memory(device: torch.device) -> Memory | None:
    """Bytes in total and free now; None where the system does not tell."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return Memory(total, free)
    return _host_memory()


def _native_dtype(device: torch.device) -> torch.dtype:
    if device.type == "cpu":
        return torch.float32
    if device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.bfloat16
    return torch.float16


def _host_memory() -> Memory | None:
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None
    available = _meminfo_available() or total
    limit = _container_limit()
    return Memory(min(total, limit or total), min(available, limit or available))


def _meminfo_available() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    kib = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return kib[0] * 1024 if kib else None


def _container_limit() -> int | None:
    # A container sees the host's memory but is killed at its own limit.
    try:
        text = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
