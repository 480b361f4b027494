"""Train a small draft model for a target: ``labkit train draft``.

Owns: how long training lasts, when weights are measured and kept, provenance, the report.
Does not know: losses and optimisers, how the text was made, how the draft is driven in decoding.
Invariants: ``out`` holds the best weights so far, complete at any moment; nothing is written
before every argument has been checked.
"""

import hashlib
import json
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers

import labkit
from labkit.devices import device_label
from labkit.errors import BadInput, require
from labkit.heads.draft_checkpoint import TENSORS, save_draft_checkpoint, write_json
from labkit.progress import Progress
from labkit.training.acceptance import Acceptance
from labkit.training.data import may_be_made, read_rows
from labkit.training.draft_trainer import DraftRecipe, DraftTrainer

RESUME = "resume.safetensors"
PROVENANCE = "provenance.json"


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
    acceptance: Acceptance


@dataclass(frozen=True)
class _Plan:
    """What one call was asked for."""

    target_model: Any
    target: str
    data: Path
    out: Path
    minutes: float | None
    steps: int | None
    origin: dict[str, Any]

    @property
    def command(self) -> str:
        # names without folders: provenance travels with the weights
        length = f"--steps {self.steps}" if self.steps else f"--minutes {self.minutes:g}"
        seed = self.origin["seed"]
        return f"labkit train draft --data {self.data.name} {length} --seed {seed} --out DIR"


def train_draft(
    target_model: Any,
    *,
    data: Path | str,
    out: Path | str,
    minutes: float | None = None,
    steps: int | None = None,
    seed: int = 0,
    recipe: DraftRecipe | None = None,
    target: str = "smollm2-135m",
    progress: Progress | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> TrainReport:
    """Train a draft model for ``target_model``, or go on where an interrupted call stopped.

    Exactly one of ``minutes`` and ``steps`` says how long. ``minutes`` ends on time on a busy
    machine too; ``steps`` is what makes two runs equal.

    Args:
        target_model: HF Llama; training runs on its device, in float32.
        data: rows as ``labkit selfgen`` writes them (see ``read_rows``).
        out: folder for the checkpoint: new, empty, or left by an interrupted call.
        target: the target's name, noted in the checkpoint.
        progress: called after every step with (what, done, total), in seconds or steps.

    Raises:
        BadInput: impossible settings, bad rows, an ``out`` that holds something else, or an
            interrupted run with other data, seed or recipe. Nothing has been written then.
        BadCheckpoint: the interrupted run cannot be read.
        UnsupportedModel: the target is not a Llama.
    """
    recipe, data, out = recipe or DraftRecipe(), Path(data), Path(out)
    check_options(out=out, minutes=minutes, steps=steps, seed=seed)
    _check_recipe(recipe, target_model)
    config = target_model.config
    rows = read_rows(data, vocab_size=config.vocab_size, context=config.max_position_embeddings)
    trainer = DraftTrainer(target_model, rows, recipe=recipe, seed=seed)
    origin = {
        "data_sha256": hashlib.sha256(data.read_bytes()).hexdigest(),
        "seed": seed,
        # through JSON, so that it compares equal to what a file gives back
        "recipe": json.loads(json.dumps(asdict(recipe))),
    }
    if (out / RESUME).exists():
        trainer.load(out / RESUME, origin=origin)
    plan = _Plan(target_model, target, data, out, minutes, steps, origin)
    out.mkdir(parents=True, exist_ok=True)
    if not (out / RESUME).exists():
        # from here on the folder can be told from anybody else's
        trainer.save(out / RESUME, origin=origin)
    return _Run(trainer, plan, progress=progress, clock=clock).to_the_end()


class _Run:
    """The loop around a trainer: the clock, the checkpoints, the best weights."""

    def __init__(
        self,
        trainer: DraftTrainer,
        plan: _Plan,
        *,
        progress: Progress | None,
        clock: Callable[[], float],
    ) -> None:
        self._trainer, self._plan = trainer, plan
        self._progress, self._clock = progress, clock
        self._offset = trainer.at.seconds - clock()
        self._saved_at = self._seconds()
        self._what = "training the draft model"

    def to_the_end(self) -> TrainReport:
        pause = self._trainer.recipe.seconds_between_checkpoints
        while (share := self._share_done()) < 1:
            self._trainer.step(share)
            self._tell()
            if self._seconds() - self._saved_at >= pause:
                self._checkpoint()
        self._checkpoint()
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
            return self._trainer.at.step, plan.steps or 1
        return self._seconds(), 60 * plan.minutes

    def _tell(self) -> None:
        if self._progress is not None:
            done, total = self._done()
            self._progress(self._what, int(min(done, total)), int(total))

    def _checkpoint(self) -> None:
        """Measure, keep the weights if they are the best, and make the run resumable."""
        trainer, out = self._trainer, self._plan.out
        acceptance = trainer.measure()
        length = acceptance.mean_accepted_length
        is_best = length >= trainer.at.best
        trainer.at = replace(trainer.at, seconds=self._seconds(), best=max(length, trainer.at.best))
        if is_best:
            save_draft_checkpoint(
                out,
                trainer.model,
                vocab_ids=trainer.vocab_ids,
                target_model=self._plan.target_model,
                target=self._plan.target,
            )
            write_json(out / PROVENANCE, _provenance(trainer, self._plan, acceptance))
        trainer.save(out / RESUME, origin=self._plan.origin)
        self._saved_at = self._seconds()
        self._what = (
            f"training the draft model: step {trainer.at.step}, loss {trainer.at.loss:.2f}, "
            f"{length:.2f} tokens per round"
        )

    def _report(self) -> TrainReport:
        at = self._trainer.at
        kept = json.loads((self._plan.out / PROVENANCE).read_text(encoding="utf-8"))["held_out"]
        return TrainReport(
            out=self._plan.out,
            steps=at.step,
            tokens=at.tokens,
            epochs=self._trainer.epochs(),
            minutes=at.seconds / 60,
            loss=at.loss,
            acceptance=Acceptance(
                first=kept["first"],
                by_depth=tuple(kept["by_depth"]),
                mean_accepted_length=kept["mean_accepted_length"],
            ),
        )


def _provenance(trainer: DraftTrainer, plan: _Plan, acceptance: Acceptance) -> dict[str, Any]:
    """How these weights came to be, for people and for a repetition."""
    rows = trainer.rows
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
        "steps": trainer.at.step,
        "tokens": trainer.at.tokens,
        "epochs": round(trainer.epochs(), 3),
        "minutes": round(trainer.at.seconds / 60, 2),
        "training_loss": round(trainer.at.loss, 4),
        "held_out": asdict(acceptance),
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
    _check_length(minutes=minutes, steps=steps)
    require(-(2**63) <= seed < 2**63, "seed", "a whole number of 64 bits", seed)
    _check_out(out)


def _check_length(*, minutes: float | None, steps: int | None) -> None:
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


def _check_recipe(recipe: DraftRecipe, target_model: Any) -> None:
    depth = target_model.config.num_hidden_layers
    width = target_model.config.vocab_size
    checks = (
        ("layers", f"one or more layer numbers from 0 to {depth - 1}",
         bool(recipe.layers) and all(0 <= layer < depth for layer in recipe.layers)),
        ("draft_vocab_size", f"1 to {width}", 1 <= recipe.draft_vocab_size <= width),
        ("batch_tokens", "at least 1", recipe.batch_tokens >= 1),
        ("learning_rate", "above 0", recipe.learning_rate > 0),
        ("warmup_steps", "at least 1", recipe.warmup_steps >= 1),
        ("held_out", "above 0 and below 1", 0 < recipe.held_out < 1),
        ("draft_length", "at least 1", recipe.draft_length >= 1),
    )  # fmt: skip
    for name, expected, holds in checks:
        if not holds:
            raise BadInput(
                f"recipe's {name}",
                expected=expected,
                got=str(getattr(recipe, name)),
                next_step=f"change {name}, or leave it at its default",
            )


def _check_out(out: Path) -> None:
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
