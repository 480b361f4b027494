"""The table of reported faults names tests that exist; they are looked up, not run."""

import ast
import re
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE = (ROOT / "tests" / "CASES.md").read_text(encoding="utf-8")
ROWS = [line.strip("| ").split(" | ") for line in TABLE.splitlines() if line.startswith("| ")][2:]
REPORT = re.compile(
    r"\[([\w.-]+/[\w.-]+)#(\d+)\]\(https://github\.com/([\w.-]+/[\w.-]+)/(?:issues|pull)/(\d+)\)"
)
NAME = re.compile(r"`([^`]+)`")


@lru_cache
def names_in(path: Path) -> frozenset[str]:
    """``name`` of a function, ``Class::name`` of a method."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            methods = (part for part in node.body if isinstance(part, ast.FunctionDef))
            found |= {f"{node.name}::{method.name}" for method in methods}
    return frozenset(name for name in found if name.rpartition("::")[2].startswith("test_"))


def missing(names: list[str]) -> list[str]:
    def exists(name: str) -> bool:
        path, _, test = name.partition("::")
        return (ROOT / path).is_file() and test in names_in(ROOT / path)

    return [name for name in names if not exists(name)]


def test_every_test_in_the_table_exists() -> None:
    assert len(ROWS) > 50
    assert missing(NAME.findall(TABLE.partition("| ---")[2])) == []


def test_a_name_that_is_not_there_would_be_noticed() -> None:
    here = "tests/unit/test_cases_table.py"
    wrong = [f"{here}::test_nothing", f"{here}::missing", "tests/unit/test_no.py::test_x"]
    right = [
        f"{here}::test_every_test_in_the_table_exists",
        "tests/unit/test_lessons.py::TestStored::test_is_the_source",
    ]
    assert missing([*wrong, *right]) == wrong


def test_every_fault_has_its_report_and_its_tests_in_the_order_of_subjects() -> None:
    for subject, symptom, reports, tests in ROWS:
        assert subject
        assert symptom
        linked = [REPORT.fullmatch(report) for report in reports.split(", ")]
        assert all(m and m.group(1, 2) == m.group(3, 4) for m in linked), reports
        assert all(NAME.fullmatch(name) for name in tests.split(", ")), tests
    subjects = [row[0].lower() for row in ROWS]
    assert subjects == sorted(subjects)
