"""``labkit selfgen`` and ``labkit train``: data and drafters of your own.

Owns: their options and what they print. Does not know: how anything is trained.
Invariants: bad options are refused before a model is loaded; an interrupted command goes on where
it stopped when it is called again.
"""

import hashlib
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from labkit.cli_options import AsJson, Device, Dtype, Model, emit
from labkit.errors import BadInput

Depth = Annotated[
    int | None,
    typer.Option(help="Steps of the training-time test; of parallel heads, how many."),
]
Blocks = Annotated[int | None, typer.Option(help="Medusa: residual blocks of each head.")]

train = typer.Typer(
    help="Train a drafter on text that the target wrote. The method eagle2 drafts with the head of "
    "eagle1.",
    no_args_is_help=True,
)


def selfgen(
    out: Annotated[Path, typer.Option(help="A .jsonl file, new or left by an interrupted call.")],
    tokens: Annotated[
        int | None, typer.Option(help="Reply tokens that the file shall hold.")
    ] = None,
    prompts: Annotated[
        Path | None, typer.Option(help="Instead: answer these, a file as for labkit bench.")
    ] = None,
    model: Model = "smollm2-135m",
    seed: Annotated[int, typer.Option(help="Fixes what is written.")] = 0,
    dtype: Dtype = "auto",
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Let the target write conversations to train drafters on."""
    from labkit.bench.prompts import read_prompts
    from labkit.lab.load import load_model
    from labkit.progress import text_bar
    from labkit.training import selfgen as writing

    if (tokens is None) == (prompts is None):
        raise BadInput(
            "labkit selfgen",
            expected="either --tokens or --prompts",
            got="neither" if tokens is None else "both",
            next_step="give --tokens 200000, say, and the model asks itself",
        )
    writing.check_options(tokens=1 if tokens is None else tokens, out=out, seed=seed)
    turns = [prompt.text for prompt in read_prompts(prompts)] if prompts else []
    try:
        loaded = load_model(model, dtype=dtype, device=device)
        models, bar = (loaded.model, loaded.tokenizer), text_bar(sys.stderr)
        if tokens is None:
            report = writing.answer(*models, turns, out=out, progress=bar)
        else:
            report = writing.selfgen(*models, tokens=tokens, out=out, seed=seed, progress=bar)
    except KeyboardInterrupt:
        typer.echo(_left(writing.kept(out)), err=True)
        raise typer.Exit(130) from None
    emit(
        asdict(report),
        as_json=as_json,
        text=f"{report.out}: {report.rows} conversations, {report.reply_tokens} reply tokens",
    )


def _left(report: Any) -> str:
    """What an interrupted selfgen says, on a line of its own below a bar."""
    start = "\n" if sys.stderr.isatty() else ""
    if not report.rows:
        return f"{start}labkit selfgen: interrupted before any conversation was whole; nothing kept"
    return (
        f"{start}labkit selfgen: interrupted; kept {report.rows} conversations, "
        f"{report.reply_tokens} reply tokens, in {report.out}; the same command goes on from there"
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
    from labkit.training.draft import train_draft
    from labkit.training.run import check_options

    check_options(out=out, minutes=minutes, seed=seed)
    if dtype not in ("auto", "float32"):
        raise BadInput("--dtype", expected="float32", got=dtype, next_step="leave --dtype out")
    _check_data(data)
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
    emit(asdict(report), as_json=as_json, text=_told(report))


def _trains(kind: str, about: str) -> Callable[..., None]:
    """The command ``labkit train <kind>``."""

    def command(
        data: Annotated[Path, typer.Option(help="JSON lines of `labkit selfgen`, also gzipped.")],
        out: Annotated[Path, typer.Option(help="Folder: new, empty, or of an interrupted call.")],
        minutes: Annotated[float | None, typer.Option(help="How long to train.")] = None,
        steps: Annotated[int | None, typer.Option(help="Instead: how many updates.")] = None,
        features: Annotated[
            Path | None,
            typer.Option(
                help="Folder for the target's states, which stays: heads of one target share it. "
                "Delete it when you need the room.",
                show_default="~/.cache/labkit/features/*, or in LABKIT_HOME",
            ),
        ] = None,
        draft_vocab: Annotated[int | None, typer.Option(help="Words of the head.")] = None,
        depth: Depth = None,
        blocks: Blocks = None,
        learning_rate: Annotated[float | None, typer.Option(help="Its peak.")] = None,
        own_output: Annotated[
            bool, typer.Option("--own-output", help="Train the output rows too, and store them.")
        ] = False,
        model: Model = "smollm2-135m",
        seed: Annotated[int, typer.Option(help="Fixes initialisation and order of the data.")] = 0,
        device: Device = "auto",
        as_json: AsJson = False,
    ) -> None:
        given = {
            "draft_vocab_size": draft_vocab,
            "depth": depth,
            "layers": blocks,
            "learning_rate": learning_rate,
            "train_output": own_output or None,
        }
        changes = {name: value for name, value in given.items() if value is not None}
        length = {"minutes": minutes, "steps": steps}
        _train_head(
            kind, data, out, features, length, changes, model, seed, device, as_json=as_json
        )

    command.__doc__ = about
    return command


def _train_head(
    kind: str,
    data: Path,
    out: Path,
    features: Path | None,
    length: dict[str, Any],
    changes: dict[str, Any],
    model: str,
    seed: int,
    device: str,
    *,
    as_json: bool,
) -> None:
    from labkit.lab.load import load_model
    from labkit.lab.store import home_directory
    from labkit.progress import text_bar
    from labkit.training.parallel import announced
    from labkit.training.run import check_options

    check_options(out=out, seed=seed, **length)
    recipe, train_head = _course(kind, changes)
    _check_data(data)
    ranks = announced()
    loaded = load_model(model, dtype="float32", device=ranks.device(device))
    if features is None:
        digest = hashlib.sha256(f"{model} {data.resolve()}".encode()).hexdigest()[:12]
        features = home_directory() / "features" / digest
    if ranks.first:
        told = f"labkit: folder for the target's states: {features} (delete it when you are done)"
        typer.echo(told, err=True)
    report = train_head(
        loaded.model,
        data=data,
        out=out,
        features=features,
        seed=seed,
        recipe=recipe,
        target=loaded.name,
        progress=text_bar(sys.stderr) if ranks.first else None,
        **length,
    )
    if ranks.first:
        emit(asdict(report), as_json=as_json, text=_told(report))


def _course(kind: str, changes: dict[str, Any]) -> tuple[Any, Callable[..., Any]]:
    """The recipe of a kind of head, and what trains it."""
    if kind in ("medusa", "meta"):
        from labkit.training import medusa

        return medusa.recipe_with(kind, **changes), partial(medusa.train_medusa, kind=kind)
    if "layers" in changes:
        raise BadInput(
            "--blocks",
            expected="labkit train medusa",
            got=f"labkit train {kind}",
            next_step="leave --blocks out",
        )
    if kind == "mtp":
        from labkit.training import mtp

        return mtp.recipe_with(**changes), mtp.train_mtp
    from labkit.training import eagle

    return eagle.recipe_with(kind, **changes), partial(eagle.train_eagle, kind=kind)


train.command("eagle1")(_trains("eagle1", "A head that predicts the target's next state."))
train.command("eagle3")(_trains("eagle3", "A head on three depths of the target."))
train.command("eagle31")(_trains("eagle31", "The same, with normed states in and out."))
train.command("mtp")(_trains("mtp", "One module for multi-token prediction, used again and again."))
train.command("medusa")(_trains("medusa", "Parallel heads, each for a depth of its own."))
train.command("meta")(_trains("meta", "Parallel heads on a shared trunk."))


def _check_data(data: Path) -> None:
    from labkit.training.data import check_prompts

    if not data.is_file():
        raise BadInput(
            "--data", expected="a file", got=str(data), next_step="write one with labkit selfgen"
        )
    check_prompts(data)


def _told(report: Any) -> str:
    found = report.acceptance
    depths = ", ".join(f"{share:.0%}" for share in found.by_depth)
    return (
        f"{report.out}: {report.steps} steps, {report.tokens} tokens, "
        f"loss {report.loss:.2f}; on held-out text {found.first:.1%} of next tokens right, "
        f"by depth {depths}, mean accepted length {found.mean_accepted_length:.2f} "
        f"(the target's own token counted)"
    )
