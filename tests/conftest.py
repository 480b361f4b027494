"""What every test may use: no network, the default model once, each device that is there."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent / "offline"))

import network_guard


@pytest.fixture(scope="session")
def attempts() -> Iterator[list[str]]:
    """Connections to other machines raise, and are noted here."""
    noted: list[str] = []
    undo = network_guard.install(noted.append)
    yield noted
    undo()


@pytest.fixture(autouse=True)
def no_network(attempts: list[str]) -> Iterator[None]:
    """No test depends on another machine, nor tries to and swallows the error."""
    attempts.clear()
    yield
    assert not attempts, f"the network was asked for: {attempts}"


# A check that asks for a `device` runs on the CPU and, marked ``gpu``, on the GPU: `pytest -m gpu`.
DEVICES = ("cpu", pytest.param("gpu", marks=pytest.mark.gpu))


@pytest.hookimpl(trylast=True)  # after `-m`: torch is asked only when checks on a GPU are left
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where there is no GPU, checks on one are not collected: they can neither pass nor fail."""
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if on_gpu and not _has_gpu():
        config.hook.pytest_deselected(items=on_gpu)
        items[:] = [item for item in items if item not in on_gpu]


def _has_gpu() -> bool:
    from labkit.devices import available_devices

    return available_devices()[0] != "cpu"


@pytest.fixture(scope="session", params=DEVICES)
def device(request: pytest.FixtureRequest) -> Any:
    """A `torch.device`: the CPU; in a second run of the same check, marked ``gpu``, the GPU."""
    from labkit.devices import available_devices, resolve_device

    return resolve_device("cpu" if request.param == "cpu" else available_devices()[0])


@pytest.fixture(scope="session")
def smollm2() -> Any:
    """The default model as users get it; mark the test ``real``."""
    from labkit.lab.load import load_model

    return load_model(dtype="float32", device="cpu")
