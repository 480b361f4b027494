"""A real notebook kernel for tests: run named cells, interrupt one, ask what is still held.

Owns: the kernel's process. Does not know: what the cells do.
Invariants: cells carry names, as a notebook's do; a reply that does not come is an error.
"""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jupyter_client.manager import KernelManager

ANSWERS_WITHIN = 300  # seconds; a busy machine is no failure
UNIT = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Said:
    """What a cell printed, and the name of the error that ended it."""

    text: str
    error: str = ""


@dataclass(frozen=True, slots=True)
class Kernel:
    manager: Any
    client: Any

    def run(self, source: str, *, cell: str = "", interrupt_after: str = "") -> Said:
        """Run one cell; once it prints ``interrupt_after``, interrupt it as the ■ button does."""
        content = {"code": source, "silent": False, "store_history": True, "allow_stdin": False}
        content["stop_on_error"] = False  # or a cell that follows an error at once may be dropped
        message = self.client.session.msg("execute_request", content, metadata={"cellId": cell})
        self.client.shell_channel.send(message)
        text, error, end = "", "", time.monotonic() + ANSWERS_WITHIN
        while time.monotonic() < end:
            heard = self.client.get_iopub_msg(timeout=ANSWERS_WITHIN)
            kind, body = heard["msg_type"], heard["content"]
            if heard["parent_header"].get("msg_id") != message["header"]["msg_id"]:
                continue
            if kind == "stream" and body["name"] == "stdout":
                text += body["text"]
                if interrupt_after and interrupt_after in body["text"]:
                    self.manager.interrupt_kernel()
            elif kind == "error":
                error = body["ename"]
            elif kind == "status" and body["execution_state"] == "idle":
                return Said(text, error)
        raise TimeoutError(source)

    def value(self, expression: str) -> Any:
        """What an expression is, as JSON."""
        said = self.run(f"import json; print(json.dumps({expression}))")
        assert not said.error, said
        return json.loads(said.text)


@contextmanager
def kernel() -> Iterator[Kernel]:
    """A kernel of this Python that finds the tests' own modules."""
    manager = KernelManager(kernel_name="python3")
    path = os.pathsep.join(filter(None, (str(UNIT), os.environ.get("PYTHONPATH"))))
    manager.start_kernel(env={**os.environ, "PYTHONPATH": path}, cwd=str(UNIT))
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=ANSWERS_WITHIN)
        yield Kernel(manager, client)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
