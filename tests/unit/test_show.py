"""What `show` displays is the source that runs, with its place and nothing of the machine."""

import html
import inspect
import re

import pytest

from labkit.cache import SlotTable
from labkit.drafters.ngram import NGram
from labkit.lab.show import show
from labkit.verify import verify


def shown(source):
    """The code as a browser shows it."""
    body = source.html.split("<pre", 1)[1].split(">", 1)[1].split("</pre>")[0]
    return html.unescape(re.sub(r"<[^>]+>", "", body))


@pytest.mark.parametrize("thing", [verify, SlotTable, SlotTable.keep, NGram.propose, show])
def test_the_page_shows_the_very_source(thing):
    source = show(thing)
    lines, start = inspect.getsourcelines(thing)
    assert source.line == start
    assert shown(source) == source.code
    assert [line.strip() for line in source.code.splitlines()] == [line.strip() for line in lines]


def test_place_and_forms():
    source = show(verify)
    assert source.file == "labkit/verify.py"
    assert repr(source).startswith(f"# labkit/verify.py, line {source.line}\ndef verify(")
    bundle = source._repr_mimebundle_()
    assert bundle["text/plain"] == repr(source)
    assert "<script" not in bundle["text/html"]
    assert 'class="lk-keyword">def<' in bundle["text/html"]
    assert 'class="lk-def">verify<' in bundle["text/html"]
    for form in bundle.values():
        assert "/home" not in form
        assert "/root" not in form
        assert "site-packages" not in form


@pytest.mark.parametrize("thing", [3, "text", len, None])
def test_what_has_no_source_is_refused(thing):
    with pytest.raises(ValueError, match="without calling it"):
        show(thing)
