"""What the commands share: options, and how a result is printed.

Owns: the options that several commands have, in one wording. Does not know: what commands do.
Invariants: with ``--json`` stdout holds one object and nothing else.
"""

import json
from typing import Annotated, Any

import typer

Model = Annotated[str, typer.Option(help="Preset, local folder, GGUF file or hub id.")]
Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")]
Device = Annotated[str, typer.Option(help="auto, cpu, or a device that torch knows.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


def emit(record: dict[str, Any], *, as_json: bool, text: str) -> None:
    """Print a result: the record as one JSON object, or its text for people."""
    told = json.dumps(record, ensure_ascii=False, default=str) if as_json else text
    # half a character, which no terminal takes, as JSON's own escape for it
    typer.echo(told.encode(errors="backslashreplace").decode())
