"""A Jupyter server of this environment, with settings of its own, for as long as a test needs it.

Owns: the process and its folders. Does not know: pages, lessons.
Invariants: nothing of the user's Jupyter settings is read or written; the hub is not asked; the
server and its kernels are gone when the scope ends.
"""

import json
import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

STARTS_WITHIN = 180  # seconds; a cold start on a busy machine
UNIT = Path(__file__).parents[1] / "unit"
# Nobody is asked whether news of Jupyter may be fetched; a toast would lie over the page.
QUIET = {"fetchNews": "false", "checkForUpdates": False, "doNotDisturbMode": True}


@dataclass(frozen=True, slots=True)
class Server:
    """Where it listens, and the folder whose notebooks it serves."""

    url: str
    token: str
    folder: Path

    def lab(self, name: str) -> str:
        """The address of a notebook in JupyterLab, in a workspace of its own."""
        space = name.removesuffix(".ipynb")
        return f"{self.url}/lab/workspaces/{space}/tree/{name}?token={self.token}"

    def notebook(self, name: str) -> str:
        """The same notebook in Notebook 7."""
        return f"{self.url}/notebooks/{name}?token={self.token}"


@contextmanager
def serve(folder: Path, home: Path) -> Iterator[Server]:
    """JupyterLab and Notebook on ``folder``; settings and log in ``home``."""
    token, port = secrets.token_hex(16), _free_port()
    log = home / "server.log"
    settings = home / "config" / "lab" / "user-settings" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    (settings / "notification.jupyterlab-settings").write_text(json.dumps(QUIET))
    with log.open("w") as output:
        process = subprocess.Popen(
            _command(folder, port, token), env=_surroundings(home), stdout=output, stderr=output
        )
        try:
            server = Server(f"http://127.0.0.1:{port}", token, folder)
            _wait_for(server, process, log)
            yield server
        finally:
            process.terminate()  # it ends its kernels
            process.wait(timeout=STARTS_WITHIN)


def _command(folder: Path, port: int, token: str) -> list[str]:
    return [
        *(sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1"),
        *(f"--port={port}", "--ServerApp.port_retries=0", f"--IdentityProvider.token={token}"),
        *(f"--ServerApp.root_dir={folder}", "--LabApp.extension_manager=readonly"),
    ]


def _surroundings(home: Path) -> dict[str, str]:
    own = {
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_DATA_DIR": "data",
        "JUPYTER_RUNTIME_DIR": "runtime",
        "IPYTHONDIR": "ipython",
    }
    folders = {name: str(home / folder) for name, folder in own.items()}
    path = os.pathsep.join(filter(None, (str(UNIT), os.environ.get("PYTHONPATH"))))
    return {**os.environ, **folders, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(server: Server, process: "subprocess.Popen[bytes]", log: Path) -> None:
    end = time.monotonic() + STARTS_WITHIN
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{server.url}/api/status?token={server.token}"):
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.2)
    raise RuntimeError(f"JupyterLab: expected an answer, got none. It says:\n{log.read_text()}")
