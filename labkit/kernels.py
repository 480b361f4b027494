"""Faster ways to compute the same linear layer.

Owns: ``SkinnyLinear`` and the two switches that put it in and take it out.
Does not know: models by name, caches, decoding.
Invariants: the result equals ``nn.Linear`` to float32 rounding; weights, parameter names, hooks and
training are untouched, because only the module's class is swapped.

Why it exists. Decoding multiplies a large weight by one to sixteen rows, so it is bound by reading
the weight. For a row-major activation, oneDNN and MKL pick kernels that reach a third of the memory
bandwidth on AVX2 machines. The same product written as ``W @ x.T`` is read in W's own order.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labkit.devices import is_gpu

MAX_ROWS = 16


class SkinnyLinear(nn.Linear):
    """``nn.Linear`` that computes ``(W @ x.T).T`` for few rows of float32 on a CPU.

    Anything else (more than 16 rows, other dtypes, gradients) takes the ordinary path.
    """

    def forward(self, input: Tensor) -> Tensor:
        """[..., in_features] -> [..., out_features], as ``nn.Linear``."""
        rows = input.numel() // self.in_features
        if not 0 < rows <= MAX_ROWS or not _applies(input, self.weight):
            return F.linear(input, self.weight, self.bias)
        flat = input.reshape(rows, self.in_features)
        if rows % 2:
            # An odd number of columns ends in a matrix-vector product, which is not threaded.
            flat = torch.cat((flat, flat[:1]))
        # contiguous: what follows (norms, activations) is slow on a transposed view
        product = torch.mm(self.weight, flat.t())[:, :rows].t().contiguous()
        if self.bias is not None:
            product = product + self.bias
        return product.reshape(*input.shape[:-1], self.out_features)


def _applies(input: Tensor, weight: Tensor) -> bool:
    return (
        input.dtype == weight.dtype == torch.float32
        and not (is_gpu(input.device) or is_gpu(weight.device))
        and not (torch.is_grad_enabled() and (input.requires_grad or weight.requires_grad))
    )


def skinny_pays(device: torch.device, dtype: torch.dtype) -> bool:
    """True where ``SkinnyLinear`` was measured to be faster: AVX2 CPUs, float32."""
    slow_without = torch.backends.cpu.get_cpu_capability() == "AVX2"
    return slow_without and dtype == torch.float32 and not is_gpu(device)


def use_skinny_linear(model: nn.Module) -> int:
    """Turn the plain ``nn.Linear`` modules inside ``model`` into ``SkinnyLinear``; how many."""
    return _swap(model, nn.Linear, SkinnyLinear)


def use_plain_linear(model: nn.Module) -> int:
    """Undo ``use_skinny_linear``; how many modules were turned back."""
    return _swap(model, SkinnyLinear, nn.Linear)


@contextmanager
def plain_linear(model: nn.Module) -> Iterator[None]:
    """A scope in which ``model`` has the linear layers that it was loaded with."""
    turned = use_plain_linear(model)
    try:
        yield
    finally:
        if turned:
            use_skinny_linear(model)


def _swap(model: nn.Module, old: type[nn.Module], new: type[nn.Module]) -> int:
    # Exact class: a subclass has a forward of its own that must stay.
    chosen = [module for module in model.modules() if type(module) is old]
    for module in chosen:
        module.__class__ = new
    return len(chosen)
