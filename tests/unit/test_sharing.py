"""A run given away as a link and opened again from a file field."""

import base64
import re
from pathlib import Path
from typing import Any

import pytest
import viz_traces

from labkit import viz
from labkit.errors import BadInput
from labkit.trace import Trace
from labkit.viz import sharing


def sent(opener: Any, name: str, data: bytes) -> str:
    """What the browser does, and what the reader is told."""
    opener.file = [name, base64.b64encode(data).decode()]
    return str(opener.told)


def test_the_link_holds_the_very_file(tmp_path: Path) -> None:
    trace = viz_traces.odd_tokens()
    shared = viz.share(trace, "my run")
    page = shared._repr_mimebundle_()["text/html"]
    packed = re.search(r'href="data:application/gzip;base64,([^"]+)"', page)
    assert packed
    path = tmp_path / "got.json.gz"
    path.write_bytes(base64.b64decode(packed.group(1)))
    assert Trace.load(path).dumps() == Trace.from_json(trace.to_json()).dumps()
    assert path.read_bytes() == trace.save(tmp_path / "saved.json.gz").read_bytes()
    assert 'download="my run.json.gz"' in page
    assert f"({max(1, round(len(path.read_bytes()) / 1000))} kB)" in page
    assert "<script" not in page
    assert repr(shared).startswith("my run.json.gz (")


@pytest.mark.parametrize("name", ["../run", "a/b", "", ".hidden", 'x"><script>'])
def test_a_name_that_is_no_file_name_is_refused(name: str) -> None:
    with pytest.raises(BadInput, match="name of a file"):
        viz.share(viz_traces.chain(), name)


def test_a_run_too_large_for_a_link_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "LARGEST", 100)
    with pytest.raises(BadInput, match=r"trace\.save"):
        viz.share(viz_traces.chain())


def test_a_shared_file_opens_plain_and_gzipped() -> None:
    opener, trace = viz.Opener(), viz_traces.tree()
    with pytest.raises(BadInput, match="No file yet"):
        _ = opener.trace
    for name, data in (("a.json.gz", viz.share(trace).data), ("b.json", trace.dumps().encode())):
        assert sent(opener, name, data).startswith(f"✓ {name}: ")
        assert opener.trace.dumps() == trace.dumps()
    assert repr(opener).startswith("Open a recorded run. ✓")


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"<html>", "a web page"),
        (b"{", "ends too early"),
        (viz.share(viz_traces.chain()).data[:-9], "cut off"),
        (b'{"schema": 9000}', "newer version"),
        (b'{"schema": 1, "events": []}', "started event"),
    ],
)
def test_what_is_no_run_is_refused_and_the_last_run_stays(data: bytes, named: str) -> None:
    opener = viz.Opener()
    sent(opener, "good.json.gz", viz.share(viz_traces.chain()).data)
    kept = opener.trace
    told = sent(opener, "bad.json", data)
    assert told.startswith("✗")
    assert named in told
    assert opener.trace is kept
    opener.file = ["bad.json", "?"]
    assert "did not arrive whole" in opener.told


def test_a_cell_without_a_kernel_says_what_it_was() -> None:
    made: Any = viz.Opener()._repr_mimebundle_()
    data = made[0] if isinstance(made, tuple) else made
    assert "Run this cell" in data["text/html"]
    assert data["text/plain"] == "Open a recorded run. No file yet."
