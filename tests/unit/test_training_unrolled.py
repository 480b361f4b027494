"""Unrolling a head for training equals driving it step by step, as a drafter does.

The reference reads the true pairs one by one into an ordinary cache, then its own states and the
text's tokens, and forgets; nothing in it knows about columns or masks.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from labkit.heads.eagle import EagleConfig, EagleHead, HeadStep
from labkit.training import unrolled
from labkit.training.unrolled import soft_cross_entropy, step_mask, unroll

V, H, HT = 23, 16, 24
VERSIONS: dict[str, dict[str, Any]] = {
    "eagle1": {"version": 1, "target_hidden_size": H},
    "eagle3": {"version": 3, "boundaries": (2, 4, 5)},
    "eagle31": {"version": 3, "boundaries": (2, 4, 5), "fc_norm": True, "norm_output": True},
    "two layers": {"version": 3, "boundaries": (2, 4, 5), "layers": 2},
    "normed residual": {"version": 3, "boundaries": (1, 3), "norm_before_residual": True},
}


def a_head(**settings: Any) -> EagleHead:
    config = EagleConfig(
        **{
            "hidden_size": H,
            "intermediate_size": 32,
            "heads": 4,
            "kv_heads": 2,
            "head_dim": 4,
            "vocab_size": V,
            "draft_vocab_size": V,
            "target_hidden_size": HT,
            **settings,
        }
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        head = EagleHead(config)
        for parameter in head.parameters():
            # wide enough for attention to choose, and norm weights that are not all one
            torch.nn.init.normal_(parameter, mean=float(parameter.ndim == 1), std=0.4)
    return head.double().eval()


def a_text(head: EagleHead, *, rows: int = 2, length: int = 9) -> tuple[Any, list[Any]]:
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(V, (rows, length), generator=generator)
    wide = head.config.target_hidden_size
    states = [
        torch.randn(rows, length, wide, generator=generator, dtype=torch.float64)
        for _ in head.config.needs
    ]
    return tokens, states


@torch.no_grad()
def one_by_one(head: EagleHead, tokens: Any, states: list[Any], column: int, steps: int) -> Any:
    """Steps from ``column`` of one text, by the drafter's own way: [steps] of HeadStep [H]."""
    kv = head.cache()

    def read(token: int, state: Any, position: int) -> HeadStep:
        return head(
            torch.tensor([[token]]),
            state.view(1, 1, -1),
            positions=torch.tensor([[position]]),
            kv=kv,
            mask=None,
        )

    for pair in range(column + 1):
        fused = head.fuse([f[pair] for f in states])
        made = read(int(tokens[pair + 1]), fused, pair)
    found = [HeadStep(made.recycled[0, 0], made.normed[0, 0])]
    for step in range(1, steps):
        made = read(int(tokens[column + 1 + step]), made.recycled, column + step)
        found.append(HeadStep(made.recycled[0, 0], made.normed[0, 0]))
    return found


def worst_error(head: EagleHead, *, steps: int, first: int, run: Callable[..., Any]) -> float:
    """Largest difference between ``run`` and the reference, over texts, columns and steps."""
    tokens, states = a_text(head)
    with torch.no_grad():
        made = run(head, tokens, states, steps=steps, first=first)
    assert [m.normed.shape[1] for m in made] == [9 - 2 - s - first for s in range(steps)]
    worst = 0.0
    for row in range(len(tokens)):
        for column in range(first, 9 - 2):
            there = min(steps, 9 - 2 - column)
            text = tokens[row], [f[row] for f in states]
            for s, slow in enumerate(one_by_one(head, *text, column, there)):
                for fast, right in zip(made[s], slow, strict=True):
                    error = (fast[row, column - first] - right).abs().max()
                    worst = max(worst, float(error))
    return worst


@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize("name", VERSIONS)
def test_every_column_and_step_equals_a_drafter_that_goes_one_by_one(name: str, first: int) -> None:
    head = a_head(**VERSIONS[name])
    assert worst_error(head, steps=4, first=first, run=unroll) < 1e-10


def test_gradients_reach_the_first_step_through_the_recycled_states() -> None:
    head = a_head(**VERSIONS["eagle31"])
    tokens, states = a_text(head)
    made = unroll(head, tokens, states, steps=3)
    made[2].normed.sum().backward()
    assert all(
        p.grad is not None and bool(p.grad.abs().sum() > 0)
        for name, p in head.named_parameters()
        if not name.startswith(("embed_tokens", "lm_head"))
    )


def causal_everywhere(columns: int, step: int, *, first: int, device: Any) -> Any:
    """Mutant: later steps see the guesses of earlier columns too."""
    mask = step_mask(columns, step, first=first, device=device)
    if step == 0:
        return mask
    n = columns - step - first
    blocks = [torch.ones(n, columns - s - first).tril() for s in range(1, step + 1)]
    return torch.cat((mask[:, :columns], torch.cat(blocks, 1).bool()), 1)


def without_oneself(columns: int, step: int, *, first: int, device: Any) -> Any:
    """Mutant: the diagonal of earlier guesses is shifted by one."""
    mask = step_mask(columns, step, first=first, device=device).clone()
    if step > 1:
        mask[:, columns : columns + columns - 1 - first] = torch.roll(
            mask[:, columns : columns + columns - 1 - first], 1, 1
        )
    return mask


def all_true_pairs(columns: int, step: int, *, first: int, device: Any) -> Any:
    """Mutant: later steps see true pairs that a drafter does not have yet."""
    mask = step_mask(columns, step, first=first, device=device).clone()
    if step:
        n = columns - step - first
        mask[:, :columns] = torch.ones(n, columns).tril(first + step).bool()
    return mask


@pytest.mark.parametrize("mutant", [causal_everywhere, without_oneself, all_true_pairs])
def test_a_wrong_mask_is_noticed(mutant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unrolled, "step_mask", mutant)
    assert worst_error(a_head(**VERSIONS["eagle3"]), steps=4, first=0, run=unroll) > 1e-3


def altered(alter: Callable[..., Any]) -> Callable[..., Any]:
    """`unroll` on a head whose forward goes through ``alter``."""

    def run(head: EagleHead, tokens: Any, states: Any, **options: Any) -> Any:
        plain, calls = head.forward, [0]

        def forward(ids: Any, state: Any, **rest: Any) -> Any:
            calls[0] += 1
            return alter(plain, calls[0] - 1, ids, state, rest)

        head.forward = forward  # type: ignore[method-assign]
        try:
            return unroll(head, tokens, states, **options)
        finally:
            head.forward = plain  # type: ignore[method-assign]

    return run


def unshifted_positions(plain: Any, step: int, ids: Any, state: Any, rest: Any) -> Any:
    return plain(ids, state, **rest | {"positions": rest["positions"] - step})


def swapped_norms(plain: Any, step: int, ids: Any, state: Any, rest: Any) -> Any:
    made = plain(ids, state, **rest)
    return HeadStep(made.normed, made.normed)


@pytest.mark.parametrize("mutant", [unshifted_positions, swapped_norms])
def test_a_wrong_position_or_norm_is_noticed(mutant: Any) -> None:
    head = a_head(**VERSIONS["eagle3"])
    assert worst_error(head, steps=4, first=0, run=altered(mutant)) > 1e-3


def test_tokens_shifted_by_one_too_few_are_noticed() -> None:
    def run(head: EagleHead, tokens: Any, states: Any, **options: Any) -> Any:
        return unroll(head, torch.roll(tokens, 1, 1), states, **options)

    assert worst_error(a_head(**VERSIONS["eagle3"]), steps=2, first=0, run=run) > 1e-3


def test_the_mask_as_a_picture() -> None:
    # columns 0..3, step 2, unrolled from column 1 on: one query (column 1), keys of three steps
    assert step_mask(4, 2, first=1, device="cpu").int().tolist() == [
        [1, 1, 0, 0, 1, 0, 1],
    ]
    assert step_mask(4, 1, first=0, device="cpu").int().tolist() == [
        [1, 0, 0, 0, 1, 0, 0],
        [1, 1, 0, 0, 0, 1, 0],
        [1, 1, 1, 0, 0, 0, 1],
    ]


def test_cross_entropy_by_hand() -> None:
    # log q = log(1/4, 3/4): -(1/2 ln 1/4 + 1/2 ln 3/4) = 0.836988...; q = p = (1, 0) gives 0
    logits = torch.tensor([[1.0, 3.0]]).log()
    assert soft_cross_entropy(logits, torch.tensor([[0.5, 0.5]])).item() == pytest.approx(0.8369882)
    sure = torch.tensor([[100.0, 0.0]])
    assert soft_cross_entropy(sure, torch.tensor([[1.0, 0.0]])).item() == 0.0
    assert soft_cross_entropy(logits[:0], logits[:0]).item() == 0.0
