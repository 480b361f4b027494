"""Several processes that train one model: each takes its share of the batches.

Owns: who this process is, and the three things that processes tell each other.
Does not know: models, data, where the processes come from.
Invariants: with one process nothing is sent and nothing changes; with several, all hold equal
weights after every step, because they start equal and add equal gradients.

``accelerate launch`` and ``torchrun`` both announce processes in the environment (RANK,
WORLD_SIZE, LOCAL_RANK); nothing else of them is needed.
"""

import os
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import distributed, nn

from labkit.devices import available_devices, is_gpu, resolve_device, resolve_dtype

_PATIENCE = timedelta(hours=6)  # the others wait while the first one caches or measures


@dataclass(frozen=True)
class Ranks:
    """This process among ``size`` equal ones; number 0 writes files and speaks."""

    rank: int = 0
    size: int = 1
    local: int = 0

    @property
    def first(self) -> bool:
        return self.rank == 0

    def device(self, name: str) -> torch.device:
        """``auto`` is a GPU of one's own, where each process has one."""
        gpus = [d for d in available_devices() if is_gpu(torch.device(d))]
        if name == "auto" and self.size > 1 and self.local < len(gpus):
            return torch.device(gpus[self.local])
        return resolve_device(name)

    def agree(self, value: float, device: torch.device) -> float:
        """The first process's value, in every process."""
        if self.size == 1:
            return value
        shared = torch.tensor([value], dtype=torch.float64, device=device)
        distributed.broadcast(shared, src=0)
        return float(shared)

    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace each gradient by its mean over the processes."""
        if self.size == 1:
            return
        some = [p for p in parameters if p.requires_grad]
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in some]
        flat = torch.cat([g.flatten() for g in grads])
        distributed.all_reduce(flat)
        flat /= self.size
        for parameter, piece in zip(some, flat.split([g.numel() for g in grads]), strict=True):
            parameter.grad = piece.view_as(parameter)


def join(device: torch.device, *, environ: Mapping[str, str] = os.environ) -> Ranks:
    """Find the other processes, if this one was started with others."""
    ranks = announced(environ)
    if ranks.size > 1 and not distributed.is_initialized():
        backend = "nccl" if is_gpu(device) else "gloo"
        distributed.init_process_group(backend, timeout=_PATIENCE)
    return ranks


def announced(environ: Mapping[str, str] = os.environ) -> Ranks:
    """What the launcher says about this process."""
    return Ranks(
        rank=int(environ.get("RANK", "0")),
        size=int(environ.get("WORLD_SIZE", "1")),
        local=int(environ.get("LOCAL_RANK", "0")),
    )


def half_precision(device: torch.device) -> AbstractContextManager[object]:
    """A scope for forwards: half precision on a GPU, float32 on a CPU."""
    on_gpu = is_gpu(device)
    dtype = resolve_dtype("auto", device) if on_gpu else torch.bfloat16
    # float16 gradients would underflow without a loss scale; such GPUs train in float32
    return torch.autocast(device.type, dtype=dtype, enabled=on_gpu and dtype == torch.bfloat16)
