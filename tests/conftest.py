"""What every test may use: no network, the default model once, tiny models in public formats."""

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


@pytest.fixture(scope="session")
def smollm2() -> Any:
    """The default model as users get it; mark the test ``real``."""
    from labkit.lab.load import load_model

    return load_model(dtype="float32", device="cpu")
