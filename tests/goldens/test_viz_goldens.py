"""The pictures, byte for byte. A wanted change: regenerate_viz.py, look at the pictures, commit."""

import pytest
from regenerate_viz import FOLDER, PICTURES


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_the_reviewed_ones(name: str) -> None:
    kept = (FOLDER / name).read_text(encoding="utf-8")
    assert PICTURES[name]() + "\n" == kept, "wanted? python tests/goldens/regenerate_viz.py"


def test_no_golden_is_left_over() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(PICTURES)
