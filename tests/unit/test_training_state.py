"""The file of an interrupted training: whatever is wrong with it is said before a weight moves."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from labkit.errors import BadCheckpoint, BadInput
from labkit.training.data import Row
from labkit.training.state import TrainingState

ORIGIN = {"seed": 3, "recipe": {"depth": 2}}
POINT = {
    "step": 2, "tokens": 8, "minutes": 0.5, "loss": 1.5,
    "first": 0.5, "by_depth": [0.5, 0.25], "mean_accepted_length": 1.75,
}  # fmt: skip


@dataclass(frozen=True)
class Slow:
    learning_rate: float = 0.1
    weight_decay: float = 0.01
    clip_norm: float = 0.5


class Fitting:
    """Two parameters on their way to fit numbers that each step has its own; ``idle`` has no part
    in any loss."""

    def __init__(self, *, width: int = 3) -> None:
        made = torch.arange(2.0 * width).view(2, width)
        self.trained = {"matrix": nn.Parameter(made), "norm": nn.Parameter(torch.ones(width)),
                        "idle": nn.Parameter(torch.ones(2))}  # fmt: skip
        self.state = TrainingState(
            self.trained, Slow(), betas=(0.9, 0.95), epoch=lambda number: [[Row((1,), (2,))]] * 4
        )

    def loss(self) -> Tensor:
        step = self.state.at.step
        made = self.trained["matrix"] * self.trained["norm"]
        return (made - torch.arange(made.numel()).view_as(made) * (step + 1)).square().mean()

    def step(self) -> None:
        self.state.update(self.loss(), warm=1.0, share_done=0.25, tokens=4)

    def facts(self) -> list[Any]:
        """All that a step changes."""
        moments = self.state.optimiser.state
        return [
            self.state.at,
            *(p.tolist() for p in self.trained.values()),
            *((k, v.tolist()) for p in self.trained.values()
              for k, v in moments.get(p, {}).items()),
        ]  # fmt: skip


def after(steps: int) -> Fitting:
    fitting = Fitting()
    for _ in range(steps):
        fitting.step()
    return fitting


def saved(path: Path, steps: int = 5) -> Path:
    fitting = after(steps)
    fitting.state.save(path / "resume", origin=ORIGIN)
    return path / "resume"


def spoil(file: Path, change: Callable[[dict[str, Any], dict[str, Tensor]], Any]) -> None:
    """Rewrite the file after ``change(its, tensors)``, where its["state"] is the state."""
    tensors = load_file(file)
    with safe_open(file, "pt") as opened:
        its = {"state": json.loads(opened.metadata()["state"])}
    change(its, tensors)
    save_file(tensors, file, metadata={"state": json.dumps(its["state"])})


@pytest.mark.parametrize("steps", [0, 1, 4, 5])
def test_what_was_saved_goes_on_to_the_bit(steps: int, tmp_path: Path) -> None:
    straight, resumed = after(steps), Fitting()
    resumed.state.load(saved(tmp_path, steps), origin=ORIGIN)
    for _ in range(3):
        straight.step()
        resumed.step()
    assert resumed.state.at == straight.state.at
    for name, parameter in straight.trained.items():
        assert torch.equal(parameter, resumed.trained[name]), name


def at(**changes: Any) -> Any:
    return lambda its, tensors: its["state"]["at"].update(changes)


def curve(**changes: Any) -> Any:
    return at(curve=[POINT, POINT | changes])


def around(**changes: Any) -> Any:
    return lambda its, tensors: its["state"].update(changes)


def instead(state: Any) -> Any:
    return lambda its, tensors: its.update(state=state)


def put(name: str, value: Tensor) -> Any:
    return lambda its, tensors: tensors.update({name: value})


def drop(name: str) -> Any:
    return lambda its, tensors: tensors.pop(name)


BROKEN: list[tuple[Any, str]] = [
    # the position
    (at(step="4"), "at.step, got '4'"),
    (at(step=-1), "at.step, got -1"),
    (at(step=True), "at.step, got True"),
    (at(step=2.5), "at.step, got 2.5"),
    (at(step=None), "at.step, got none"),
    (at(epoch=-1), "at.epoch"),
    (at(epoch=10**12), "at.epoch 0 to 5"),
    (at(batch=4), "batch 0 to 3 of its epoch, got 4"),
    (at(batch=[0]), "at.batch"),
    (at(tokens="many"), "at.tokens"),
    (at(tokens=-3), "at.tokens"),
    (at(seconds=-1.0), "at.seconds"),
    (at(seconds=float("nan")), "at.seconds"),
    (at(loss="low"), "at.loss"),
    (at(loss=float("inf")), "at.loss"),
    (at(best=float("nan")), "at.best"),
    (at(best=[]), "at.best"),
    (at(curve={}), "at.curve"),
    (at(curve=[1]), r"at\.curve\[0\]"),
    (at(mood="good"), "no such key as at.mood"),
    (lambda its, t: its["state"]["at"].pop("tokens"), "at.tokens, got none"),
    (curve(step=-1), r"at\.curve\[1\]\.step"),
    (curve(loss="x"), r"at\.curve\[1\]\.loss"),
    (curve(by_depth=[0.5, None]), r"at\.curve\[1\]\.by_depth\[1\]"),
    (curve(first=None), r"at\.curve\[1\]\.first"),
    # the state around it
    (instead([1]), "an object with the state"),
    (instead("x"), "an object with the state"),
    (lambda its, t: its["state"].pop("at"), "as at, got none"),
    (around(at=None), "as at, got none"),
    (around(at=[5]), "as at, got"),
    (around(origin=None), "as origin, got none"),
    (around(origin="here"), "as origin"),
    (around(more=1), "no such key as more"),
    # weights and moments
    (put("matrix", torch.zeros(3, 2)), r"float32 \(2, 3\) as matrix, got float32 \(3, 2\)"),
    (put("matrix", torch.zeros(1, 3)), r"as matrix, got float32 \(1, 3\)"),
    (put("matrix", torch.zeros(())), r"as matrix, got float32 \(\)"),
    (put("matrix", torch.zeros(2, 3, dtype=torch.float64)), "as matrix, got float64"),
    (put("norm", torch.ones(3, dtype=torch.int8)), "as norm, got int8"),
    (put("norm", torch.tensor([1.0, torch.nan, 1.0])), "finite numbers in norm"),
    (put("norm#exp_avg", torch.zeros(1)), "as norm#exp_avg, got"),
    (put("norm#exp_avg", torch.tensor([1.0, torch.inf, 1.0])), "finite numbers in norm#exp_avg"),
    (put("norm#exp_avg_sq", torch.zeros(3, dtype=torch.bfloat16)), "as norm#exp_avg_sq, got bfl"),
    (put("norm#exp_avg_sq", torch.tensor([1.0, -1.0, 1.0])), "from 0 on in norm#exp_avg_sq"),
    (put("norm#step", torch.tensor(-1.0)), "in norm#step, got -1"),
    (put("norm#step", torch.tensor(6.0)), "0 to 5 updates as norm#step, got 6"),
    (put("norm#step", torch.tensor(1.5)), "updates as norm#step, got 1.5"),
    (put("norm#step", torch.tensor(torch.nan)), "finite numbers in norm#step"),
    (put("norm#step", torch.tensor(5)), "as norm#step, got int64"),
    (put("norm#step", torch.tensor([5.0])), "as norm#step, got float32"),
    (put("other", torch.ones(1)), "only tensors of the weights in training, got other"),
    (drop("matrix"), "the tensor matrix, got none"),
    (drop("idle#exp_avg"), "the tensor idle#exp_avg, got none"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "message"), BROKEN)
def test_a_file_that_no_run_writes_is_refused_and_changes_nothing(
    change: Any, message: str, tmp_path: Path
) -> None:
    file, live = saved(tmp_path), after(2)
    before = live.facts()
    spoil(file, change)
    with pytest.raises(BadCheckpoint, match=message) as caught:
        live.state.load(file, origin=ORIGIN)
    assert str(file) in str(caught.value)
    assert live.facts() == before


@pytest.mark.parametrize(
    ("origin", "named"),
    [
        ({"seed": 4, "recipe": ORIGIN["recipe"]}, "seed 3 as before, got 4"),
        ({"seed": 3, "recipe": {"depth": 1}}, "recipe"),
        ({"seed": 3}, "recipe"),
        (ORIGIN | {"boundaries": [1]}, "boundaries None as before"),
    ],
)
def test_another_origin_is_refused_whichever_side_knows_more(
    origin: dict[str, Any], named: str, tmp_path: Path
) -> None:
    live = after(2)
    before = live.facts()
    with pytest.raises(BadInput, match=named):
        live.state.load(saved(tmp_path), origin=origin)
    assert live.facts() == before


@pytest.mark.parametrize("state", [None, "", "{", "[" * 100_000, '{"at": 1e400}', "null"])
def test_a_state_that_is_no_json_is_refused(state: Any, tmp_path: Path) -> None:
    file = saved(tmp_path)
    said = None if state is None else {"state": str(state)}
    save_file(load_file(file), file, metadata=said)
    with pytest.raises(BadCheckpoint, match="interrupted training"):
        Fitting().state.load(file, origin=ORIGIN)


def test_a_run_of_another_width_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadCheckpoint, match=r"float32 \(2, 4\) as matrix, got float32 \(2, 3\)"):
        Fitting(width=4).state.load(saved(tmp_path), origin=ORIGIN)


# ------------------------------------------------------------------------------ interruptions


@pytest.mark.parametrize("place", ["clip", "optimiser", "epoch"])
def test_a_step_that_was_interrupted_leaves_no_trace(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    live, other = after(3), after(3)  # the fourth step ends the epoch
    before = live.facts()

    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        owner, name = {
            "clip": (nn.utils, "clip_grad_norm_"),
            "optimiser": (live.state.optimiser, "step"),
            "epoch": (live.state, "_epoch"),
        }[place]
        patch.setattr(owner, name, stop)
        with pytest.raises(KeyboardInterrupt):
            live.step()
    assert live.trained["matrix"].grad is not None, "the interruption came after the gradients"
    assert live.facts() == before
    for fitting in (live, other):
        fitting.step()
    assert live.facts() == other.facts()


def test_loading_forgets_gradients(tmp_path: Path) -> None:
    live = after(2)
    live.loss().backward()
    live.state.load(saved(tmp_path), origin=ORIGIN)
    assert all(parameter.grad is None for parameter in live.trained.values())


def test_gradients_are_averaged_between_the_loss_and_the_step() -> None:
    live, plain = after(1), after(1)

    def nothing(parameters: Any) -> None:
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.zero_()

    live.state.update(live.loss(), warm=1.0, share_done=0.25, tokens=4, average=nothing)
    plain.step()
    assert live.state.at == plain.state.at
    assert not torch.equal(live.trained["matrix"], plain.trained["matrix"])


# ------------------------------------------------------------------------------ divergence


def nan_loss(live: Fitting) -> Tensor:
    return live.loss() * torch.nan


def infinite_loss(live: Fitting) -> Tensor:
    return live.loss() / 0.0


def steep_loss(live: Fitting) -> Tensor:
    """Finite; the slope of a square root at zero is not."""
    return live.loss() + (live.trained["matrix"] * 0.0).sum().sqrt()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (nan_loss, "expected a finite loss .*, got nan at step 4. Next: .*lower learning rate"),
        (infinite_loss, "got inf at step 4"),
        (steep_loss, "got gradients that are not finite at step 4"),
    ],
)
def test_a_loss_that_diverges_changes_neither_weights_nor_the_file(
    make: Callable[[Fitting], Tensor], said: str, tmp_path: Path
) -> None:
    live, other, file = after(3), after(3), tmp_path / "resume"
    live.state.save(file, origin=ORIGIN)
    before, kept = live.facts(), file.read_bytes()
    with pytest.raises(BadInput, match=said):
        live.state.update(make(live), warm=1.0, share_done=0.25, tokens=4)
    assert live.facts() == before
    assert all(parameter.grad is None for parameter in live.trained.values())
    live.state.save(file, origin=ORIGIN)
    assert file.read_bytes() == kept
    for fitting in (live, other):
        fitting.step()
    assert live.facts() == other.facts()


def test_what_a_diverged_step_would_leave_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: were it taken, the file would be lost."""
    live, file = after(3), tmp_path / "resume"
    with monkeypatch.context() as patch:
        patch.setattr("labkit.training.state.math.isfinite", lambda number: True)
        live.state.update(nan_loss(live), warm=1.0, share_done=0.25, tokens=4)
    live.state.save(file, origin=ORIGIN)
    with pytest.raises(BadCheckpoint):
        Fitting().state.load(file, origin=ORIGIN)
