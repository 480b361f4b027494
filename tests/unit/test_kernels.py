"""SkinnyLinear is nn.Linear: same numbers, same parameters, in and out at will."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from labkit.kernels import (
    MAX_ROWS,
    SkinnyLinear,
    skinny_pays,
    use_plain_linear,
    use_skinny_linear,
)

TOLERANCE = 1e-5


def layer(*, bias: bool, inner: int = 96, outer: int = 64) -> SkinnyLinear:
    torch.manual_seed(0)
    made = SkinnyLinear(inner, outer, bias=bias).requires_grad_(False)
    return made


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", range(18))
def test_equals_linear_for_any_number_of_rows(rows: int, bias: bool) -> None:
    linear, x = layer(bias=bias), torch.randn(rows, 96)
    y = linear(x)
    assert y.shape == (rows, 64)
    torch.testing.assert_close(
        y, F.linear(x, linear.weight, linear.bias), atol=TOLERANCE, rtol=TOLERANCE
    )


@pytest.mark.parametrize("shape", [(96,), (1, 1, 96), (2, 3, 96), (1, 8, 96), (4, 4, 96)])
def test_keeps_batch_dimensions(shape: tuple[int, ...]) -> None:
    linear, x = layer(bias=True), torch.randn(shape)
    y = linear(x)
    assert y.shape == (*shape[:-1], 64)
    torch.testing.assert_close(
        y, F.linear(x, linear.weight, linear.bias), atol=TOLERANCE, rtol=TOLERANCE
    )


def test_takes_views_that_are_not_contiguous() -> None:
    linear = layer(bias=False)
    columns = torch.randn(96, 5).t()
    every_other = torch.randn(1, 10, 192)[:, ::2, ::2]
    for x in (columns, every_other):
        assert not x.is_contiguous()
        torch.testing.assert_close(
            linear(x), F.linear(x, linear.weight), atol=TOLERANCE, rtol=TOLERANCE
        )


def test_the_tolerance_would_catch_a_wrong_product() -> None:
    linear, x = layer(bias=True), torch.randn(3, 96)
    right = F.linear(x, linear.weight, linear.bias)
    mutants = (
        torch.mm(linear.weight, x.t()).t(),  # bias forgotten
        linear(x).flip(0),  # rows in another order
        torch.mm(linear.weight, x.t()).reshape(3, 64) + linear.bias,  # transpose forgotten
    )
    for wrong in mutants:
        assert (wrong - right).abs().max() > 100 * TOLERANCE


class Counted(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts matrix products whose first factor is the weight itself."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight, self.products = weight, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func is torch.ops.aten.mm.default and args[0].data_ptr() == self.weight.data_ptr():
            self.products += args[0].shape == self.weight.shape
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("x", "grad", "expected"),
    [
        (torch.randn(1, 96), False, 1),
        (torch.randn(MAX_ROWS, 96), False, 1),
        (torch.randn(MAX_ROWS + 1, 96), False, 0),
        (torch.randn(1, 96, requires_grad=True), True, 0),
        (torch.randn(0, 96), False, 0),
    ],
)
def test_the_other_form_is_used_for_few_rows_without_gradients(
    x: torch.Tensor, grad: bool, expected: int
) -> None:
    linear = layer(bias=False)
    with torch.set_grad_enabled(grad), Counted(linear.weight) as counted:
        linear(x)
    assert counted.products == expected


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes_take_the_plain_path_bit_for_bit(dtype: torch.dtype) -> None:
    linear = layer(bias=True).to(dtype)
    x = torch.randn(2, 96, dtype=dtype)
    assert torch.equal(linear(x), F.linear(x, linear.weight, linear.bias))


def test_gradients_are_those_of_linear() -> None:
    linear = layer(bias=True).requires_grad_(True)
    x = torch.randn(2, 96, requires_grad=True)
    linear(x).square().sum().backward()
    ours = [t.grad.clone() for t in (x, linear.weight, linear.bias)]
    for tensor in (x, linear.weight, linear.bias):
        tensor.grad = None
    F.linear(x, linear.weight, linear.bias).square().sum().backward()
    for got, tensor in zip(ours, (x, linear.weight, linear.bias), strict=True):
        assert torch.equal(got, tensor.grad)


class Special(nn.Linear):
    """A subclass with a forward of its own."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) * 2


def test_swapping_is_in_place_idempotent_and_undone() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ModuleList([nn.Linear(8, 4)]), Special(8, 8))
    before = {name: tensor.data_ptr() for name, tensor in model.state_dict().items()}
    assert use_skinny_linear(model) == 2
    assert use_skinny_linear(model) == 0
    assert type(model[0]) is SkinnyLinear
    assert type(model[2]) is Special
    assert {name: t.data_ptr() for name, t in model.state_dict().items()} == before
    assert use_plain_linear(model) == 2
    assert use_plain_linear(model) == 0
    assert [type(module) for module in model.modules() if isinstance(module, nn.Linear)] == [
        nn.Linear, nn.Linear, Special,
    ]  # fmt: skip


def test_auto_is_limited_to_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    assert skinny_pays(cpu, torch.float32)
    assert not skinny_pays(cpu, torch.bfloat16)
    assert not skinny_pays(gpu, torch.float32)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    assert not skinny_pays(cpu, torch.float32)
