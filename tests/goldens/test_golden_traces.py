"""Events of toy runs, to the last digit: what a run says of itself does not change unnoticed.

After a wanted change: ``python tests/goldens/regenerate_traces.py``, then review the diff.
"""

import pytest
from regenerate_traces import FOLDER, lines
from scenes import SCENES, looked_up, record


@pytest.mark.parametrize("name", SCENES)
def test_events_are_the_golden_ones(name: str) -> None:
    golden = (FOLDER / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    assert lines(SCENES[name]()) == golden


def test_every_golden_file_has_its_scene() -> None:
    assert {path.stem for path in FOLDER.glob("*.jsonl")} == set(SCENES)


def test_another_run_is_not_the_golden_one() -> None:
    """Negative control: one setting changed."""
    golden = (FOLDER / "ngram_greedy.jsonl").read_text(encoding="utf-8").splitlines()
    assert lines(record(looked_up, draft_length=2)) != golden
