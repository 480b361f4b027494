"""Refuses connections to other machines, and notes who tried.

Owns: what is another machine. Does not know: tests, notebooks.
Invariants: an attempt is noted before it raises, so that code which swallows the error is found
too; looking a name up is an attempt already, because without a network it is all that happens.
"""

import ipaddress
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

LOG = "LABKIT_TESTS_NETWORK_LOG"


class NetworkUsed(AssertionError):
    """Something tried to leave this machine."""


def is_local(host: Any) -> bool:
    name = host.decode() if isinstance(host, bytes) else host
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return name in (None, "", "localhost", socket.gethostname())
    return address.is_loopback or address.is_unspecified  # unspecified: a server listens on it


def install(note: Callable[[str], None]) -> Callable[[], None]:
    """From now on attempts are noted and raise; call what comes back to undo it."""
    kept = socket.socket.connect, socket.socket.connect_ex, socket.getaddrinfo

    def check(host: Any) -> None:
        if not is_local(host):
            note(str(host))
            raise NetworkUsed(f"connection to {host}")

    def host_of(address: Any) -> Any:
        return address[0] if isinstance(address, tuple) else None  # else a Unix socket

    def connect(self: socket.socket, address: Any) -> None:
        check(host_of(address))
        kept[0](self, address)

    def connect_ex(self: socket.socket, address: Any) -> int:
        check(host_of(address))
        return kept[1](self, address)

    def getaddrinfo(host: Any, *others: Any, **named: Any) -> Any:
        check(host)
        return kept[2](host, *others, **named)

    def place(functions: tuple[Any, Any, Any]) -> None:
        socket.socket.connect, socket.socket.connect_ex, socket.getaddrinfo = functions

    place((connect, connect_ex, getaddrinfo))
    return lambda: place(kept)


def environment(log: Path) -> dict[str, str]:
    """With these variables every Python that is started refuses too, and writes to ``log``."""
    path = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
    return {"PYTHONPATH": path, LOG: str(log)}


def install_from_environment() -> None:
    log = Path(os.environ[LOG])

    def note(host: str) -> None:
        with log.open("a", encoding="utf-8") as file:
            file.write(f"{host}\n")

    install(note)
