"""How long training lasts, when weights are measured and kept, and what is written beside them.

Owns: the loop around any trainer: clock, checkpoints, the best weights, provenance, the report.
Does not know: models, losses, formats of weights.
Invariants: ``out`` holds the best weights so far, complete at any moment; nothing is written
before every argument has been checked.
"""

import hashlib
import json
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
import transformers

import labkit
from labkit.devices import device_label
from labkit.errors import BadInput, require
from labkit.heads.draft_checkpoint import CONFIG, TENSORS, write_json
from labkit.progress import Progress
from labkit.training.acceptance import Replayed
from labkit.training.data import Split, may_be_made
from labkit.training.parallel import Ranks
from labkit.training.state import Position, TrainingState

RESUME = "resume.safetensors"
PROVENANCE = "provenance.json"


Watch = Callable[[Sequence[Mapping[str, Any]]], None]
"""Told all measurements so far, whenever there is a new one: step, tokens, minutes, loss, first,
by_depth and mean_accepted_length of each."""


class Trainer(Protocol):
    """What the loop needs of a trainer."""

    state: TrainingState
    rows: Split
    device: torch.device
    ranks: Ranks

    def step(self, share_done: float) -> None: ...

    def measure(self) -> Replayed: ...

    def facts(self) -> dict[str, Any]: ...

    def save_weights(self, out: Path) -> None: ...


@dataclass(frozen=True)
class TrainReport:
    """What training did.

    ``acceptance`` is that of the weights in ``out``, on held-out rows; ``loss`` is the running
    training loss at the end, in nats per token.
    """

    out: Path
    steps: int
    tokens: int
    epochs: float
    minutes: float
    loss: float
    acceptance: Replayed


@dataclass(frozen=True)
class Plan:
    """What one call was asked for.

    Attributes:
        kind: the word after ``labkit train``.
        target: the target's name.
        pause: seconds between checkpoints, which are also measurements.
        origin: what must be equal for a run to be taken up again: data, seed, recipe.
    """

    kind: str
    target: str
    data: Path
    out: Path
    minutes: float | None
    steps: int | None
    pause: float
    origin: dict[str, Any]

    @property
    def command(self) -> str:
        # names without folders: provenance travels with the weights
        length = f"--steps {self.steps}" if self.steps else f"--minutes {self.minutes:g}"
        seed = self.origin["seed"]
        return f"labkit train {self.kind} --data {self.data.name} {length} --seed {seed} --out DIR"


def origin_of(data: Path, *, seed: int, recipe: Any) -> dict[str, Any]:
    """What a run came from, as JSON gives it back."""
    return {
        "data_sha256": hashlib.sha256(data.read_bytes()).hexdigest(),
        "seed": seed,
        "recipe": json.loads(json.dumps(asdict(recipe))),
    }


def run(
    trainer: Trainer,
    plan: Plan,
    *,
    progress: Progress | None = None,
    watch: Watch | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> TrainReport:
    """Train, or go on where an interrupted call stopped.

    Raises:
        BadInput: the interrupted run had other data, seed or recipe.
        BadCheckpoint: the interrupted run cannot be read.
    """
    resume = plan.out / RESUME
    if resume.exists():
        trainer.state.load(resume, origin=plan.origin)
        if not all((plan.out / name).exists() for name in (TENSORS, CONFIG, PROVENANCE)):
            # the best weights were taken away: the next that are measured are the best there are
            trainer.state.at = replace(trainer.state.at, best=0.0)
    elif trainer.ranks.first:
        plan.out.mkdir(parents=True, exist_ok=True)
        # from here on the folder can be told from anybody else's
        trainer.state.save(resume, origin=plan.origin)
    return _Run(trainer, plan, progress=progress, watch=watch, clock=clock).to_the_end()


class _Run:
    def __init__(
        self,
        trainer: Trainer,
        plan: Plan,
        *,
        progress: Progress | None,
        watch: Watch | None,
        clock: Callable[[], float],
    ) -> None:
        self._trainer, self._plan = trainer, plan
        self._progress, self._watch, self._clock = progress, watch, clock
        self._offset = trainer.state.at.seconds - clock()
        self._saved_at = self._seconds()
        self._doing = "training the draft model" if plan.kind == "draft" else "training the head"
        self._what = self._doing

    def to_the_end(self) -> TrainReport:
        trainer = self._trainer
        while (share := trainer.ranks.agree(self._share_done(), trainer.device)) < 1:
            trainer.step(share)
            self._tell()
            if self._seconds() - self._saved_at >= self._plan.pause:
                self._checkpoint()
        self._checkpoint()
        trainer.ranks.agree(0.0, trainer.device)  # the others wait for the last file
        if trainer.ranks.first:
            # what is left is a checkpoint like any other
            (self._plan.out / RESUME).unlink()
        return self._report()

    def _seconds(self) -> float:
        """Seconds of training, without the time between an interruption and its resumption."""
        return self._offset + self._clock()

    def _share_done(self) -> float:
        done, total = self._done()
        return done / total

    def _done(self) -> tuple[float, float]:
        plan = self._plan
        if plan.minutes is None:
            return self._trainer.state.at.step, plan.steps or 1
        return self._seconds(), 60 * plan.minutes

    def _tell(self) -> None:
        if self._progress is not None:
            done, total = self._done()
            self._progress(self._what, int(min(done, total)), int(total))

    def _checkpoint(self) -> None:
        """Measure, keep the weights if they are the best, and make the run resumable."""
        trainer, state, out = self._trainer, self._trainer.state, self._plan.out
        self._saved_at = self._seconds()
        if not trainer.ranks.first:
            return
        acceptance = trainer.measure()
        length = acceptance.mean_accepted_length
        is_best = length >= state.at.best
        at = replace(state.at, seconds=self._seconds(), best=max(length, state.at.best))
        state.at = replace(at, curve=(*at.curve, _point(at, acceptance)))
        if self._watch is not None:
            self._watch(state.at.curve)
        if is_best:
            trainer.save_weights(out)
            write_json(out / PROVENANCE, _provenance(trainer, self._plan, acceptance))
        state.save(out / RESUME, origin=self._plan.origin)
        self._saved_at = self._seconds()
        depths = " ".join(f"{share:.0%}" for share in acceptance.by_depth)
        self._what = (
            f"{self._doing}: step {state.at.step}, loss {state.at.loss:.2f}, "
            f"{length:.2f} tokens per round, by depth {depths}"
        )

    def _report(self) -> TrainReport:
        at = self._trainer.state.at
        kept = json.loads((self._plan.out / PROVENANCE).read_text(encoding="utf-8"))["held_out"]
        return TrainReport(
            out=self._plan.out,
            steps=at.step,
            tokens=at.tokens,
            epochs=self._trainer.state.epochs(),
            minutes=at.seconds / 60,
            loss=at.loss,
            acceptance=Replayed(
                first=kept["first"],
                by_depth=tuple(kept["by_depth"]),
                mean_accepted_length=kept["mean_accepted_length"],
            ),
        )


def _point(at: Position, acceptance: Replayed) -> dict[str, Any]:
    """One measurement on the way, for a curve."""
    return {
        "step": at.step,
        "tokens": at.tokens,
        "minutes": round(at.seconds / 60, 2),
        "loss": round(at.loss, 4),
        **json.loads(json.dumps(asdict(acceptance))),
    }


def _provenance(trainer: Trainer, plan: Plan, acceptance: Replayed) -> dict[str, Any]:
    """How these weights came to be, for people and for a repetition."""
    rows, at = trainer.rows, trainer.state.at
    return {
        "command": plan.command,
        "target": plan.target,
        "data": {
            "file": plan.data.name,
            "sha256": plan.origin["data_sha256"],
            "rows": len(rows.train) + len(rows.held_out),
            "reply_tokens_trained_on": sum(len(row.reply) for row in rows.train),
            "reply_tokens_held_out": sum(len(row.reply) for row in rows.held_out),
        },
        "seed": plan.origin["seed"],
        "recipe": plan.origin["recipe"],
        "steps": at.step,
        "tokens": at.tokens,
        "epochs": round(trainer.state.epochs(), 3),
        "minutes": round(at.seconds / 60, 2),
        "training_loss": round(at.loss, 4),
        **trainer.facts(),
        "held_out": asdict(acceptance),
        "curve": list(at.curve),
        "weights_sha256": hashlib.sha256((plan.out / TENSORS).read_bytes()).hexdigest(),
        "machine": f"{platform.machine()}, {device_label(trainer.device)}, "
        f"{torch.get_num_threads()} threads",
        "versions": {
            "labkit": labkit.__version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    }


def check_options(
    *, out: Path, minutes: float | None = None, steps: int | None = None, seed: int = 0
) -> None:
    """What can be refused without a model. Raises BadInput by name."""
    check_length(minutes=minutes, steps=steps)
    require(-(2**63) <= seed < 2**63, "seed", "a whole number of 64 bits", seed)
    check_out(out)


def check_length(*, minutes: float | None, steps: int | None) -> None:
    """Raises BadInput unless exactly one of the two is a sensible number."""
    if (minutes is None) == (steps is None):
        raise BadInput(
            "length of training",
            expected="either minutes or steps",
            got="both" if minutes is not None else "neither",
            next_step="give one of them, such as --minutes 60",
        )
    name, value = ("minutes", minutes) if steps is None else ("steps", steps)
    if value is None or not 0 < value < float("inf"):
        raise BadInput(
            name,
            expected="a number above 0",
            got=str(value),
            next_step=f"set --{name} to how long training may take",
        )


def check_out(out: Path) -> None:
    """Raises BadInput if ``out`` is or holds something else than an interrupted training."""
    if out.exists() and not out.is_dir():
        raise BadInput(
            f"--out {out}",
            expected="a folder, or a new name",
            got="a file",
            next_step="choose another name",
        )
    require(may_be_made(out), "--out", "a place that may be written to", str(out))
    if not out.is_dir() or (out / RESUME).exists():
        return
    # all that a kill can leave without a file to resume from is the beginning of that file
    there = sorted(item.name for item in out.iterdir() if item.name != f"{RESUME}.part")
    if there:
        raise BadInput(
            f"--out {out}",
            expected="a new or empty folder, or one left by an interrupted training",
            got=f"a folder with {', '.join(there[:3])}",
            next_step="choose another name, or delete that folder first",
        )
