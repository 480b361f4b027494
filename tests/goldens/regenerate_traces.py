"""Write the golden event files again: ``python tests/goldens/regenerate_traces.py``.

One event per line, so that a change of behaviour is a readable diff. Review it before committing.
"""

import json
from pathlib import Path

from scenes import SCENES

from labkit.events import to_json
from labkit.trace import Trace

FOLDER = Path(__file__).parent / "traces"


def lines(trace: Trace) -> list[str]:
    return [json.dumps(to_json(event), ensure_ascii=False) for event in trace.events]


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.jsonl"):
        old.unlink()
    for name, scene in SCENES.items():
        (FOLDER / f"{name}.jsonl").write_text("\n".join(lines(scene())) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
