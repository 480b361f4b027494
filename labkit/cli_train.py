"""``labkit selfgen`` and ``labkit train``: data and drafters of your own.

Owns: their options and what they print. Does not know: how anything is trained.
Invariants: bad options are refused before a model is loaded; an interrupted command goes on where
it stopped when it is called again.
"""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from labkit.cli_options import AsJson, Device, Dtype, Model, emit
from labkit.errors import BadInput

train = typer.Typer(help="Train a drafter on text that the target wrote.", no_args_is_help=True)


def selfgen(
    tokens: Annotated[int, typer.Option(help="Reply tokens that the file shall hold.")],
    out: Annotated[Path, typer.Option(help="A .jsonl file, new or left by an interrupted call.")],
    model: Model = "smollm2-135m",
    seed: Annotated[int, typer.Option(help="Fixes what is written.")] = 0,
    dtype: Dtype = "auto",
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Let the target write conversations to train drafters on."""
    from labkit.lab.load import load_model
    from labkit.progress import text_bar
    from labkit.training.selfgen import check_options
    from labkit.training.selfgen import selfgen as write

    check_options(tokens=tokens, out=out, seed=seed)
    loaded = load_model(model, dtype=dtype, device=device)
    report = write(
        loaded.model,
        loaded.tokenizer,
        tokens=tokens,
        out=out,
        seed=seed,
        progress=text_bar(sys.stderr),
    )
    emit(
        asdict(report),
        as_json=as_json,
        text=f"{report.out}: {report.rows} conversations, {report.reply_tokens} reply tokens",
    )


@train.command()
def draft(
    data: Annotated[Path, typer.Option(help="JSON lines of `labkit selfgen`, also gzipped.")],
    minutes: Annotated[float, typer.Option(help="How long to train.")],
    out: Annotated[Path, typer.Option(help="Folder: new, empty, or of an interrupted call.")],
    model: Model = "smollm2-135m",
    seed: Annotated[int, typer.Option(help="Fixes initialisation and order of the data.")] = 0,
    dtype: Annotated[str, typer.Option(help="auto or float32: training is in float32.")] = "auto",
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """A small draft model, distilled from the target."""
    from labkit.lab.load import load_model
    from labkit.progress import text_bar
    from labkit.training.draft import check_options, train_draft

    check_options(out=out, minutes=minutes, seed=seed)
    if dtype not in ("auto", "float32"):
        raise BadInput("--dtype", expected="float32", got=dtype, next_step="leave --dtype out")
    if not data.is_file():
        raise BadInput(
            "--data", expected="a file", got=str(data), next_step="write one with labkit selfgen"
        )

    loaded = load_model(model, dtype="float32", device=device)
    report = train_draft(
        loaded.model,
        data=data,
        out=out,
        minutes=minutes,
        seed=seed,
        target=loaded.name,
        progress=text_bar(sys.stderr),
    )
    found = report.acceptance
    emit(
        asdict(report),
        as_json=as_json,
        text=f"{report.out}: {report.steps} steps, {report.tokens} tokens, "
        f"loss {report.loss:.2f}; on held-out text {found.first:.1%} of next tokens right, "
        f"mean accepted length {found.mean_accepted_length:.2f} "
        f"(the target's own token counted)",
    )
