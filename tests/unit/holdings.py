"""What a session holds at a moment: for tests that ask whether something was left behind."""

import gc
from typing import Any

import torch

from labkit.viz.turnover import _open


def holdings(lab: Any) -> dict[str, int]:
    """Hooks, slots, tensors and widgets that are alive after a full collection of garbage."""
    gc.collect()
    alive = [one for one in gc.get_objects() if issubclass(type(one), torch.Tensor)]
    modules = [one for one in gc.get_objects() if issubclass(type(one), torch.nn.Module)]
    targets = (lab.target, *lab._with_states.values())
    return {
        "hooks": sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in modules),
        "modules": len(modules),
        "speculative slots": sum(t.slots_used - t.length for t in targets),
        "tensors": len(alive),
        "bytes": sum(one.nbytes for one in alive),
        "widgets": len(_open()),
    }
