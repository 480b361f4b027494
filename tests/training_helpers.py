"""What the tests of heads in training share: the loss by its definition, and what decoding gets."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from helpers import run
from torch import Tensor

from labkit.drafters.base import Drafter
from labkit.metrics import acceptance
from labkit.target import Target
from labkit.training.acceptance import Replayed
from labkit.training.data import Row


def law_of(target: Any, final: Tensor, ids: Tensor) -> tuple[Tensor, int]:
    """The target's law over ``ids``, and its likeliest token, after the state ``final``."""
    logits = final @ target.get_output_embeddings().weight.T
    return logits[ids].softmax(-1), int(logits.argmax())


def slow_loss(
    trainer: Any, head: Any, target: Any, row: Row, features: Any, *, weights: Sequence[float]
) -> Any:
    """Of a head that reads its own states, by its definition: a drafter at each position, one step
    after the other; the means of the steps weigh ``weights``."""
    text = row.prompt + row.reply
    states = [features.states(row, name).float() for name in head.config.needs]
    final = features.states(row, "final").float()
    terms: list[list[Any]] = [[] for _ in weights]
    for pair in range(len(row.prompt) - 2, len(text) - 2):
        kv = head.cache()
        made = head(
            torch.tensor([text[1 : pair + 2]]),
            head.fuse([f[: pair + 1] for f in states])[None],
            positions=torch.arange(pair + 1)[None],
            kv=kv,
            mask=torch.ones(pair + 1, pair + 1, dtype=torch.bool).tril(),
        )
        recycled, normed = made.recycled[:, -1:], made.normed[:, -1:]
        for step in range(len(weights)):
            at = pair + 1 + step  # the guess is the token after text[at]
            if at + 1 >= len(text):
                break
            law, best = law_of(target, final[at], trainer.vocab_ids)
            if best in trainer.vocab_ids.tolist():
                log_q = head.logits(normed)[0, 0].log_softmax(-1)
                terms[step].append(-(law * log_q).sum())
            if at + 2 < len(text):
                token, where = torch.tensor([[text[at + 1]]]), torch.tensor([[at]])
                made = head(token, recycled, positions=where, kv=kv, mask=None)
                recycled, normed = made.recycled, made.normed
    means = [sum(t) / max(1, len(t)) for t in terms]
    return sum(w * mean for w, mean in zip(weights, means, strict=True)) / sum(weights)


def learn_by_heart(trainer: Any, rows: Sequence[Row], *, steps: int) -> Replayed:
    """What is measured after so many steps on ``rows`` alone, of which all are measured."""
    trainer.rows = replace(trainer.rows, train=rows, held_out=rows)
    trainer.state.batches = trainer._epoch(0)
    for step in range(steps):
        trainer.step(step / steps)
    found: Replayed = trainer.measure()
    return found


def live_acceptance(
    target: Any, make: Callable[[], Drafter], rows: Sequence[Row], *, draft_length: int
) -> float:
    """Of real decodes: greedy chains over the rows' prompts, whose replies come out."""
    traces = []
    for row in rows:
        drafter = make()
        live = Target(target, needs=drafter.needs)
        options = {"max_new_tokens": len(row.reply), "draft_length": draft_length}
        traces.append(run(live, drafter, row.prompt, **options))
        assert traces[-1].tokens == row.reply
    return float(acceptance(*traces).mean_accepted_length)


def check_a_saved_state(make: Callable[[], Any], file: Path, *, saved_at: int, steps: int) -> None:
    """Saving, loading and going on leaves no trace in weights and position; without the moments of
    the optimiser the weights would differ."""
    straight, first, second, without = (make() for _ in range(4))

    def train(trainer: Any, start: int, end: int) -> None:
        for step in range(start, end):
            trainer.step(step / steps)

    train(straight, 0, steps)
    train(first, 0, saved_at)
    first.state.save(file, origin={"seed": 0})
    for resumed in (second, without):
        resumed.state.load(file, origin={"seed": 0})
    without.state.optimiser.state.clear()
    for resumed in (second, without):
        train(resumed, saved_at, steps)
    assert second.state.at == straight.state.at
    for name, parameter in straight.trained.items():
        assert torch.equal(parameter, second.trained[name]), name
    assert any(not torch.equal(p, without.trained[n]) for n, p in straight.trained.items())
