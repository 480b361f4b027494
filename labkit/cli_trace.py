"""``labkit trace``: recorded runs listed, told, exported and recorded.

Owns: the options and what is printed. Does not know: models; only ``record`` loads one.
"""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from labkit.cli_options import AsJson, Device, Dtype, Model, emit
from labkit.errors import BadInput
from labkit.trace_file import writable
from labkit.whole_file import writing

trace = typer.Typer(help="Recorded runs: list, show, export, record.", no_args_is_help=True)
Run = Annotated[str, typer.Argument(help="A run of the gallery by name, or a .json(.gz) file.")]
Folder = Annotated[Path | None, typer.Option(help="A folder of runs; none: the lab's gallery.")]


@trace.command("list")
def list_runs(folder: Folder = None, as_json: AsJson = False) -> None:
    """List recorded runs; other files of the folder are named and left out."""
    from labkit.gallery import gallery
    from labkit.gallery.shelf import no_runs

    entries, left_out = gallery(folder).listing
    lines = [
        f"{e.name:<18} {e.model:<14} {e.method:<8} T={e.temperature:<4g} {e.tokens:>3} tokens  "
        f"{'n/a' if e.mean_accepted_length is None else f'{e.mean_accepted_length:.2f}':>5}  "
        f"{e.title}"
        for e in entries
    ]
    record = {"runs": [entry.to_json() for entry in entries], "left_out": list(left_out)}
    emit(record, as_json=as_json, text="\n".join(lines) or "no recorded runs")
    if left_out and not as_json:
        typer.echo(no_runs(left_out), err=True)


@trace.command()
def show(run: Run, as_json: AsJson = False) -> None:
    """Tell a recorded run: its facts, its text, its rounds."""
    from dataclasses import asdict

    from labkit.gallery.shelf import open_run
    from labkit.lab.report import row
    from labkit.metrics import cost
    from labkit.viz.sentences import round_sentence, run_sentence, timing
    from labkit.viz.states import Story

    found = open_run(run)
    story, spent = Story.of(found), cost(found)
    rounds = [round_sentence(story, i) for i in range(len(found.rounds))]
    seconds = spent.decode + spent.prefill
    numbers: dict[str, Any] = asdict(row([found], seconds=seconds)) if seconds else {}
    record = {"header": found.header, "text": found.text, "sentence": run_sentence(story),
              "sentences": rounds, **numbers}  # fmt: skip
    facts = ", ".join(
        f"{k} {found.header[k]}" for k in _TOLD if found.header.get(k) not in (None, "")
    )
    text = [facts, "", found.text, "", run_sentence(story), timing(found, ar_seconds=None), ""]
    emit(record, as_json=as_json, text="\n".join([*text, *rounds]))


@trace.command()
def chrome(
    run: Run,
    out: Annotated[Path, typer.Argument(help="File for ui.perfetto.dev or chrome://tracing.")],
    as_json: AsJson = False,
) -> None:
    """Export a recorded run for Perfetto: one lane each for draft, target and verify."""
    from labkit.gallery.shelf import open_run

    writable(out, name="output")
    found = open_run(run)
    path = found.to_chrome(out)
    count = len(found.chrome()["traceEvents"])
    told = f"{path}: {count} events. Open it at ui.perfetto.dev or chrome://tracing."
    emit({"path": str(path), "events": count}, as_json=as_json, text=told)


@trace.command()
def record(
    out: Annotated[Path, typer.Option(help="Folder for the runs.")],
    only: Annotated[str, typer.Option(help="Names or methods, comma-separated; none: all.")] = "",
    model: Model = "smollm2-135m",
    dtype: Dtype = "auto",
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Record the gallery again, or on another model; what the model cannot draft is left out."""
    from labkit.gallery.scenes import scenes

    every = scenes()
    wanted = {name.strip() for name in only.split(",") if name.strip()}
    known = {scene.name for scene in every} | {scene.method for scene in every}
    if wanted - known:
        raise BadInput(
            "--only",
            expected="some of " + ", ".join(sorted(known)),
            got=", ".join(sorted(wanted - known)),
            next_step="choose names of runs or methods",
        )
    chosen = [s for s in every if not wanted or {s.name, s.method} & wanted]
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
    from labkit.gallery.recording import record as record_all
    from labkit.lab.session import open_lab
    from labkit.progress import text_bar

    lab = open_lab(model, dtype=dtype, device=device)
    made = list(record_all(lab, chosen, out, progress=text_bar(sys.stderr)))
    rows = [
        {"name": m.name, "path": str(m.path) if m.path else None, "tokens": m.tokens, "why": m.why}
        for m in made
    ]
    told = [f"{m.name}: {m.tokens} tokens" if m.path else f"{m.name}: left out ({m.why})"
            for m in made]  # fmt: skip
    emit({"runs": rows}, as_json=as_json, text="\n".join(told))


@trace.command()
def measure(
    out: Annotated[Path, typer.Option(help="File for the numbers, for instance machine.json.")],
    model: Model = "smollm2-135m",
    dtype: Dtype = "auto",
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Measure this machine for the what-if: forward times by width, and runs of some drafters."""
    from dataclasses import asdict

    from labkit.lab.machine import measure_machine
    from labkit.lab.session import open_lab
    from labkit.progress import text_bar

    writable(out, name="--out")
    lab = open_lab(model, dtype=dtype, device=device)
    found = measure_machine(lab, progress=text_bar(sys.stderr))
    path = found.save(out)
    lines = [f"{n:>4} tokens {1e3 * s:8.1f} ms" for n, s in found.forward]
    lines += [f"{r.name}: {r.drafted} drafted per round, {r.speedup:.2f}x" for r in found.ran]
    emit({"path": str(path), **asdict(found)}, as_json=as_json, text="\n".join(lines))


_TOLD = ("title", "model", "drafter", "dtype", "device", "seed")
