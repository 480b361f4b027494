"""Numbers of a table end below each other, words begin there; wide rows are cards on a phone."""

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
    "texts",
    [
        ("8", "32"),
        ("1.00", "n/a", "12.50"),
        ("<0.01", "0.75"),
        ("1.25×", "0.80×"),
        ("-1",),
        ("67%", "–"),
    ],
)
def test_numbers_end_below_each_other(texts: tuple[str, ...]) -> None:
    assert sides(*texts) == {"right"}


@pytest.mark.parametrize("texts", [("8", "as drafted"), ("1 ␣the",), ("",), ("12", ""), ("–",)])
def test_words_begin_below_each_other(texts: tuple[str, ...]) -> None:
    assert sides(*texts) == {"left"}


def test_a_wide_table_becomes_cards_on_a_phone() -> None:
    wide = Table(("key", "what is *wrong*"), (("a", "word " * 12), ("b", "")), "A sentence.")
    root = ET.fromstring(wide.html)
    rule = root.find("style")
    assert rule is not None
    assert "@media (max-width:600px)" in str(rule.text)
    assert [cell.attrib["data-column"] for cell in root.iter("td")] == ["what is wrong"] * 2
    assert [table.attrib["class"] for table in root.iter("table")] == ["labkit-cards"]


def test_a_table_that_fits_a_phone_stays_one() -> None:
    root = ET.fromstring(Table(("", "healthy"), (("tokens", "1.50"),), "A sentence. " * 9).html)
    assert root.find("style") is None
    assert all("class" not in table.attrib for table in root.iter("table"))
