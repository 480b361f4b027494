"""Counting what is read back from a device: from a real one, or from one that is not there.

`Far` tensors say that they live on another device, while their numbers lie in this machine's
memory. `FarAway` lets them be used as on a real accelerator: an operation that mixes devices fails,
and every read back to the host, which on a real one would wait for the device, is noted. On a real
one `Reads` notes the same.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

HERE, FAR = torch.device("cpu"), torch.device("mps", 0)
_FACTORIES = (torch.tensor, torch.as_tensor, torch.zeros, torch.ones, torch.arange, torch.empty)
_READERS = (
    Tensor.tolist,
    Tensor.item,
    Tensor.numpy,
    Tensor.cpu,
    Tensor.__int__,
    Tensor.__float__,
    Tensor.__bool__,
    Tensor.__index__,
)
_SIZED_BY_CONTENT = (Tensor.nonzero, torch.nonzero, Tensor.masked_select, torch.masked_select)
# Indices may lie on the host; copies cross by design (to the host they are reads).
_MAY_MIX = ("index", "index_put_", "copy_", "_to_copy", "to", "_index_put_impl_")


class Far(Tensor):
    """A tensor of the device that is not there."""

    here: Tensor

    @staticmethod
    def __new__(cls, here: Tensor) -> "Far":
        far = Tensor._make_wrapper_subclass(
            cls,
            here.size(),
            strides=here.stride(),
            storage_offset=here.storage_offset(),
            dtype=here.dtype,
            device=FAR,
        )
        far.here = here
        return far

    @classmethod
    def __torch_dispatch__(cls, func: Any, *_: Any) -> Any:
        raise RuntimeError(f"{func} on a far tensor outside of FarAway()")


def _near(value: Any) -> Any:
    return value.here if isinstance(value, Far) else HERE if _is_far_device(value) else value


def _far(value: Any) -> Any:
    return Far(value) if isinstance(value, Tensor) else value


def _is_far_device(value: Any) -> bool:
    return isinstance(value, torch.device) and value.type == FAR.type


class _Operations(TorchDispatchMode):
    """What happens below Python's surface: devices may not mix, results stay where they were."""

    def __init__(self, reads: list[str]) -> None:
        super().__init__()
        self.reads = reads

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = func._schema.name.removeprefix("aten::"), kwargs or {}
        leaves = tree_leaves((args, kwargs))
        comes_from_far = any(isinstance(leaf, Far) for leaf in leaves)
        devices = [leaf for leaf in leaves if isinstance(leaf, torch.device)]
        stays_far = _is_far_device(devices[0]) if devices else comes_from_far
        if func._schema.is_mutable and isinstance(args[0], Tensor):
            stays_far = isinstance(args[0], Far)
        if comes_from_far and name not in _MAY_MIX:
            mixed = [
                x for x in leaves if isinstance(x, Tensor) and not isinstance(x, Far) and x.dim()
            ]
            assert not mixed, f"{name} mixes two devices"
        waits = torch.Tag.data_dependent_output in func.tags
        waits |= torch.Tag.dynamic_output_shape in func.tags
        if comes_from_far and (waits or not stays_far):
            self.reads.append(name)
        out = func(*tree_map(_near, args), **tree_map(_near, kwargs))
        if not stays_far:
            return args[0] if func._schema.is_mutable and out is not None else out
        return return_and_correct_aliasing(func, args, kwargs, tree_map(_far, out))


class FarAway(TorchFunctionMode):
    """A scope in which far tensors can be used. ``reads``: the name of every read to the host."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[str] = []
        self._operations = _Operations(self.reads)

    def __enter__(self) -> "FarAway":
        self._operations.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._operations.__exit__(*error)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _FACTORIES and _is_far_device(kwargs.get("device")):
            return _far(func(*tree_map(_near, args), **kwargs | {"device": HERE}))
        if func is Tensor.to and any(map(_is_far_device, (*args, *kwargs.values()))):
            return _far(func(*tree_map(_near, args), **tree_map(_near, kwargs)))
        if args and isinstance(args[0], Far) and func in _READERS:
            self.reads.append(func.__name__)
            return func(args[0].here, *args[1:], **kwargs)
        if args and isinstance(args[0], Far) and func in _SIZED_BY_CONTENT:
            self.reads.append(func.__name__)
            return tree_map(_far, func(*tree_map(_near, args)))
        if args and isinstance(args[0], Far) and func in (Tensor.__getitem__, Tensor.__setitem__):
            if any(isinstance(i, Far) and i.dtype == torch.bool for i in tree_leaves(args[1])):
                self.reads.append("index with a mask")
            return _far(func(*tree_map(_near, args)))
        return func(*args, **kwargs)


def move_away(model: nn.Module) -> nn.Module:
    """Put the weights of ``model`` on the device that is not there, in place."""
    for module in model.modules():
        for name, weight in module._parameters.items():
            if weight is not None:
                module._parameters[name] = Far(weight.data)  # type: ignore[assignment]
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = Far(buffer)
    return model


class Reads(TorchDispatchMode):
    """The same count on a real device. ``reads``: the name of every operation that waits for it.

    Copies to the host, numbers taken out of tensors, and results whose size depends on contents.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        if all(x.device == HERE for x in tensors):
            return out
        copied = name in ("_to_copy", "copy_") and out.device == HERE
        masks = name == "index" and any(x.dtype == torch.bool for x in tensors[1:])
        sized = torch.Tag.dynamic_output_shape in func.tags and name != "index"
        if copied or masks or sized or torch.Tag.data_dependent_output in func.tags:
            self.reads.append(name)
        return out


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A device to count reads from: how a model gets there, and a scope with ``reads``."""

    device: torch.device
    move: Callable[[nn.Module], nn.Module]
    counting: Callable[[], FarAway | Reads]


def elsewhere(device: torch.device) -> Elsewhere:
    """``device`` itself, or, where that is the host, the device that is not there."""
    if device == HERE:
        return Elsewhere(FAR, move_away, FarAway)
    return Elsewhere(device, lambda model: model.to(device), Reads)
