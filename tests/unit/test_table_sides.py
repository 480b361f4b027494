"""Numbers of a table end below each other; words begin below each other."""

import xml.etree.ElementTree as ET

import pytest

from labkit.lab.tables import Table


def sides(*texts: str) -> set[str]:
    """Where the head and the cells of a column of ``texts`` are set."""
    table = Table(("name", "column"), tuple(("row", text) for text in texts), "A sentence.")
    root = ET.fromstring(table.html)
    cells = [*root.iter("td"), list(root.iter("th"))[1]]
    return {cell.attrib["style"].rsplit(":", 1)[1] for cell in cells}


@pytest.mark.parametrize(
    "texts", [("8", "32"), ("1.00", "n/a", "12.50"), ("<0.01", "0.75"), ("1.25×", "0.80×"), ("-1",)]
)
def test_numbers_end_below_each_other(texts: tuple[str, ...]) -> None:
    assert sides(*texts) == {"right"}


@pytest.mark.parametrize("texts", [("8", "as drafted"), ("1 ␣the",), ("",), ("12", "")])
def test_words_begin_below_each_other(texts: tuple[str, ...]) -> None:
    assert sides(*texts) == {"left"}
