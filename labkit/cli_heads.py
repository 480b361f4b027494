"""``labkit inspect`` and ``labkit export``: heads as files.

Owns: their options and what they print. Does not know: formats.
Invariants: bad options are refused before a model is loaded; a folder that holds something is
never written into.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from labkit.cli_options import AsJson, emit
from labkit.errors import BadInput, one_of
from labkit.heads import formats
from labkit.lab.head_names import head_folder

if TYPE_CHECKING:
    from labkit.heads.checkpoints import HeadCheckpoint, InspectReport
    from labkit.heads.checkpoints.records import StoredHead


def _or(names: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


Convention = Annotated[
    str | None,
    typer.Option("--layer-ids", help="What layer ids mean: boundary or layer_output."),
]
Depth = Annotated[
    int | None,
    typer.Option("--target-layers", help="The target's number of layers, which may settle them."),
]


def inspect(
    path: Annotated[
        str,
        typer.Argument(help="Folder of a head, or a head of this lab by name, such as eagle31."),
    ],
    layer_ids: Convention = None,
    target_layers: Depth = None,
    model: Annotated[
        str | None, typer.Option(help="The target: settles open layer ids, gives shapes.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what a head's files hold, and what is missing, unused or suspicious.

    Exit code 1 if the head cannot be loaded.
    """
    folder = head_folder(path)
    from labkit.heads.checkpoints import inspect_checkpoint, report_text
    from labkit.heads.checkpoints.medusa import holds_medusa, read_medusa
    from labkit.heads.checkpoints.mtp import holds_mtp

    if holds_medusa(folder):  # such files leave nothing open
        report = read_medusa(folder).report
    elif holds_mtp(folder):
        report = _mtp_report(folder, model)
    else:
        report = inspect_checkpoint(folder, convention=layer_ids, target_layers=target_layers)
        if model is not None and not (report.refused or report.missing or report.misfits):
            report = _measured(folder, layer_ids, model)
    record = {"path": path, **asdict(report)}
    emit(record, as_json=as_json, text=report_text(report))
    if report.refused or report.missing or report.misfits:
        raise typer.Exit(1)


def export(
    head: Annotated[
        str, typer.Option(help="Folder of a head, or a head of this lab by name, such as eagle31.")
    ],
    format: Annotated[
        str,
        typer.Option(
            help=f"EAGLE: {_or(formats.EAGLE)}. Medusa: {_or(formats.MEDUSA)}. Meta's parallel "
            f"heads: {_or(formats.META)}. MTP: {_or(formats.MTP)}, the names of its target's "
            "family."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder to make; nothing is overwritten.")],
    model: Annotated[
        str | None, typer.Option(help="Target, where one is needed; none: the head's own.")
    ] = None,
    layer_ids: Convention = None,
    target_layers: Depth = None,
    as_json: AsJson = False,
) -> None:
    """Write a head in another format."""
    folder = head_folder(head)
    one_of(formats.EVERY, format, name="--format", next_step="choose one of these")
    from labkit.heads.checkpoints.medusa import holds_medusa
    from labkit.heads.checkpoints.mtp import holds_mtp
    from labkit.heads.checkpoints.write import check_new

    check_new(out)
    if holds_medusa(folder):
        report = _export_medusa(folder, format, out, model)
    elif holds_mtp(folder):
        report = _export_mtp(folder, format, out, model)
    else:
        report = _export_eagle(folder, format, out, model, layer_ids, target_layers)
    record = {
        "head": head,
        "format": format,
        "out": str(out),
        "tensors": report.tensors,
        "bytes": report.bytes,
        "unused": list(report.unused),
        "suspicious": list(report.suspicious),
    }
    text = f"{out}: {report.name} in format {format}, {report.tensors} tensors"
    for name in report.unused:
        text += f"\nnot written, for no head has it: {name}"
    for doubt in report.suspicious:
        text += f"\nsuspicious: {doubt}"
    emit(record, as_json=as_json, text=text)


def _export_eagle(
    folder: Path,
    format: str,
    out: Path,
    model: str | None,
    layer_ids: str | None,
    target_layers: int | None,
) -> "InspectReport":
    from labkit.heads.checkpoints import complete, read_checkpoint, write_checkpoint
    from labkit.heads.checkpoints.layouts import layout_of

    layout = layout_of(format)
    checkpoint = _as_engines_read(
        read_checkpoint(folder, convention=layer_ids, target_layers=target_layers)
    )
    if layout.needs_lm_head and checkpoint.config.version == 3 and _lacks_output(checkpoint):
        checkpoint = complete(checkpoint, _target_of(checkpoint, model))
    write_checkpoint(checkpoint, out, format=format)
    return checkpoint.report


def _export_medusa(folder: Path, format: str, out: Path, model: str | None) -> "InspectReport":
    from labkit.heads.checkpoints.medusa import read_medusa
    from labkit.heads.checkpoints.medusa_write import check_layout, complete_medusa, write_medusa

    checkpoint = read_medusa(folder)
    if format == "vllm" and checkpoint.config.kind == "medusa" and checkpoint.borrowed:
        checkpoint = complete_medusa(checkpoint, _target_of(checkpoint, model))
    check_layout(checkpoint, format)
    write_medusa(checkpoint, out, format=format)
    return checkpoint.report


def _export_mtp(folder: Path, format: str, out: Path, model: str | None) -> "InspectReport":
    """Engines find such a head among the weights of its target, by the names of the family."""
    from labkit.heads.checkpoints.mtp import read_mtp, stated_type, target_of_mtp
    from labkit.heads.checkpoints.mtp_write import as_native, write_native
    from labkit.lab.load import load_model

    if format != "native":
        raise BadInput(
            f"format {format} for multi-token prediction",
            expected="native: vLLM, SGLang and transformers read such a head from its target's own "
            "folder, under the names of its family",
            got=repr(format),
            next_step="choose --format native, and put the file it writes beside the target's "
            "weights and into their index",
        )
    target = load_model(model or target_of_mtp(folder))
    checkpoint = read_mtp(folder, target_model=target.model)
    stated = stated_type(target.path) if target.path else None
    kind = stated or target.model.config.get_text_config().model_type
    write_native(as_native(checkpoint, model_type=kind), out, model_type=kind)
    return checkpoint.report


def _lacks_output(checkpoint: "StoredHead") -> bool:
    return "lm_head.weight" in checkpoint.borrowed


def _mtp_report(folder: Path, model: str | None) -> "InspectReport":
    """Such a head's layer is of its target's kind, so its target is loaded to judge it."""
    from labkit.heads.checkpoints.mtp import read_mtp, target_of_mtp
    from labkit.lab.load import load_model

    target = load_model(model or target_of_mtp(folder)).model
    return read_mtp(folder, target_model=target).report


def _measured(folder: Path, layer_ids: str | None, model: str) -> "InspectReport":
    """The report with the target at hand: whatever is still open is measured."""
    from labkit.lab.readings import QUESTIONS, read_settled
    from labkit.lab.session import open_lab

    lab = open_lab(model)
    checkpoint = read_settled(
        folder,
        lab.model,
        prompts=lambda: [lab.tokens(question) for question in QUESTIONS],
        dtype=lab.loaded.dtype,
        device=lab.loaded.device,
        convention=layer_ids,
    )
    return checkpoint.report


def _as_engines_read(checkpoint: "HeadCheckpoint") -> "HeadCheckpoint":
    """Open questions that every engine answers alike are answered so; layer ids are not such."""
    from labkit.heads.checkpoints import settle

    configs = (checkpoint.config, *checkpoint.alternatives)
    if len(configs) > 1 and len({config.boundaries for config in configs}) == 1:
        why = checkpoint.report.layer_ids_decided_by
        return settle(checkpoint, checkpoint.config, why=why)
    return checkpoint


def _target_of(checkpoint: "StoredHead", model: str | None) -> Any:
    """The model whose output rows a head uses."""
    from labkit.devices import HOST
    from labkit.lab.load import load_model

    name = model or (checkpoint.target.name if checkpoint.target else None)
    if name is None:
        raise BadInput(
            "--model",
            expected="the target whose output layer this head uses",
            got="none, and the head does not name it",
            next_step="name it with --model",
        )
    return load_model(name, dtype="float32", device=HOST).model
