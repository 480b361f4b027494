"""What every test may use: no network, the default model once, each device that is there."""

import ipaddress
import socket
from collections.abc import Iterator
from typing import Any

import pytest


class NetworkUsed(AssertionError):
    """A test tried to leave this machine."""


def _is_local(address: Any) -> bool:
    if not isinstance(address, tuple):
        return True  # a Unix socket
    host = address[0]
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@pytest.fixture(scope="session", autouse=True)
def no_network() -> Iterator[None]:
    """Connections to other machines raise, so that no test depends on one."""
    connect, connect_ex = socket.socket.connect, socket.socket.connect_ex

    def guarded(self: socket.socket, address: Any) -> None:
        if not _is_local(address):
            raise NetworkUsed(f"connection to {address}")
        connect(self, address)

    def guarded_ex(self: socket.socket, address: Any) -> int:
        if not _is_local(address):
            raise NetworkUsed(f"connection to {address}")
        return connect_ex(self, address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", guarded)
        patch.setattr(socket.socket, "connect_ex", guarded_ex)
        yield


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
