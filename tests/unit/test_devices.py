"""Which device and dtype `auto` means, and what is refused."""

import pytest
import torch

from labkit import devices
from labkit.errors import BadInput


def pretend_gpus(monkeypatch: pytest.MonkeyPatch, count: int, *, native_bf16: bool = True) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    # As on a T4: emulated bfloat16 is reported as supported unless emulation is left out.
    monkeypatch.setattr(
        torch.cuda,
        "is_bf16_supported",
        lambda including_emulation=True: including_emulation or native_bf16,
    )


def test_without_a_gpu_auto_is_the_cpu_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_gpus(monkeypatch, 0)
    assert devices.resolve_device() == torch.device("cpu")
    assert devices.resolve_dtype() == torch.float32


@pytest.mark.parametrize(("native", "expected"), [(True, torch.bfloat16), (False, torch.float16)])
def test_on_a_gpu_auto_is_the_native_half(
    monkeypatch: pytest.MonkeyPatch, native: bool, expected: torch.dtype
) -> None:
    pretend_gpus(monkeypatch, 2, native_bf16=native)
    assert devices.resolve_device() == torch.device("cuda", 0)
    assert devices.resolve_device("cuda") == torch.device("cuda", 0)
    assert devices.resolve_device("cuda:1") == torch.device("cuda", 1)
    assert devices.resolve_dtype("auto", "cuda:1") == expected
    assert devices.resolve_dtype("auto", "cpu") == torch.float32


@pytest.mark.parametrize("name", ["cuda", "cuda:7", "mps", "meta", "banana", ""])
def test_a_device_that_is_not_there_is_named_with_those_that_are(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    pretend_gpus(monkeypatch, 0)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(BadInput, match="auto or one of cpu") as caught:
        devices.resolve_device(name)
    assert repr(name) in str(caught.value)


def test_a_gpu_beyond_the_last_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_gpus(monkeypatch, 2)
    with pytest.raises(BadInput, match="cuda:0, cuda:1, cpu"):
        devices.resolve_device("cuda:2")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("float32", torch.float32),
        ("bf16", torch.bfloat16),
        ("fp16", torch.float16),
        (torch.float16, torch.float16),
    ],
)
def test_dtypes_by_name(name: str | torch.dtype, dtype: torch.dtype) -> None:
    assert devices.resolve_dtype(name, "cpu") == dtype


@pytest.mark.parametrize("name", ["int8", "float64", "half", torch.float64])
def test_other_dtypes_are_refused_by_name(name: str | torch.dtype) -> None:
    with pytest.raises(BadInput, match="float32, bfloat16 or float16"):
        devices.resolve_dtype(name, "cpu")


def test_memory_of_the_host_is_plausible() -> None:
    there = devices.memory(torch.device("cpu"))
    assert there is not None
    assert 0 < there.available <= there.total


@pytest.mark.gpu
def test_a_real_gpu_is_chosen_and_waited_for() -> None:
    device = devices.resolve_device()
    assert devices.is_gpu(device)
    there = devices.memory(device)
    assert there is not None
    assert 0 < there.available <= there.total
    x = torch.ones(1 << 20, device=device)
    total = x.sum()
    devices.synchronise(device)
    assert total.item() == 1 << 20
    assert devices.resolve_dtype("auto", device) in (torch.bfloat16, torch.float16)
