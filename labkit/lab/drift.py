"""What a head's own states do as a chain grows longer: their size, and where attention looks.

Owns: the measurement and its groups. Does not know: charts, which head ought to drift.
Invariants: every number is the head's own forward along text that the target wrote: the tokens
are the text's, the states from the second step on are the head's own, as in a chain whose guesses
have all been right so far.

    pairs read     first   prompt . . . . .   reply . . .   own . . .
    state          true    true               true          the head's own, one more each step

Source: Eldenk et al. 2026 (Attention Drift, arXiv 2605.09992), whose quantities these are; the
measurement along known text is that of the training-time test (Li et al. 2025, EAGLE-3).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from labkit.errors import BadInput, require
from labkit.heads.eagle import EagleHead
from labkit.lab.session import Lab
from labkit.metrics import AtDepth
from labkit.target import Target
from labkit.trace import Trace
from labkit.training.data import Row
from labkit.training.features import read_row
from labkit.training.unrolled import unroll


@dataclass(frozen=True, slots=True)
class AtStep:
    """One drafting step, the mean over all places of the reply where a chain may begin.

    Attributes:
        step: 1 reads the target's state, 2 the head's own, and so on.
        size: root mean square of the state that the step hands on.
        first, prompt, reply, own: shares of attention, which sum to 1: on the text's first pair;
            on the rest of the prompt; on the pairs of the reply with true states; on the pairs
            with the head's own states. Means over attention heads.
        acceptance: drafts that were reached, because all before were right, and right ones.
    """

    step: int
    size: float
    first: float
    prompt: float
    reply: float
    own: float
    acceptance: AtDepth


def drift(lab: Lab, head: EagleHead, texts: Sequence[Trace], *, steps: int) -> tuple[AtStep, ...]:
    """Let ``head`` draft ``steps`` deep from every place of texts that its target wrote.

    Args:
        texts: runs of this session's target at temperature 0, by whatever drafter.

    Raises:
        BadInput: no steps, no texts, a drawn text, or one too short for one chain.
    """
    require(steps >= 1, "steps", "1 or more", steps)
    require(len(texts) > 0, "texts", "at least one", 0)
    rows = [_row(text, steps) for text in texts]
    target = Target(lab.model, needs=head.config.needs)
    found = [_along(head, target, row, steps=steps) for row in rows]
    return tuple(_mean(step, [each[step] for each in found]) for step in range(steps))


def _row(text: Trace, steps: int) -> Row:
    drawn = text.header["settings"]["temperature"]
    require(not drawn, "text for drift", "a run at temperature 0", f"temperature {drawn}")
    if len(text.prompt) < 2 or len(text.tokens) <= steps:
        raise BadInput(
            "text for drift",
            expected=f"a prompt of 2 tokens or more, and more than {steps} new ones",
            got=f"{len(text.prompt)} and {len(text.tokens)}",
            next_step="write longer texts (max_new_tokens), or take fewer steps",
        )
    return Row(tuple(text.prompt), tuple(text.tokens))


@dataclass(frozen=True, slots=True)
class _Sums:
    """One step of one text: rows of (size, first, prompt, reply, own), and what was right."""

    rows: Tensor
    reached: int
    right: int


@torch.no_grad()
def _along(head: EagleHead, target: Target, row: Row, *, steps: int) -> list[_Sums]:
    states = read_row(target, row)
    tokens = torch.tensor([row.prompt + row.reply], device=head.device)
    true = [states[name].to(head.device, head.dtype)[None] for name in head.config.needs]
    first, columns = len(row.prompt) - 2, tokens.shape[1] - 2
    with _looking(head) as looked:
        made = unroll(head, tokens, true, steps=steps, first=first)
    places = columns - first - steps + 1  # as many at every step: those that can go all the way
    going = torch.ones(places, dtype=torch.bool, device=head.device)
    found = []
    for s, (step, weights) in enumerate(zip(made, looked, strict=True)):
        shares = weights[0].mean(0)[-(columns - s - first) :][:places]
        groups = _groups(shares, prompt=len(row.prompt) - 1, columns=columns)
        size = step.recycled[0, :places].float().pow(2).mean(-1).sqrt()
        guesses = head.vocab_ids[head.logits(step.normed[0, :places]).argmax(-1)]
        right = going & (guesses == tokens[0, first + 2 + s :][:places])
        sums = torch.cat((size[:, None], groups), 1)
        found.append(_Sums(sums, int(going.sum()), int(right.sum())))
        going = right
    return found


def _groups(shares: Tensor, *, prompt: int, columns: int) -> Tensor:
    """[places, keys] -> [places, 4]: first pair, rest of the prompt, reply, own."""
    ends = ((0, 1), (1, prompt), (prompt, columns), (columns, shares.shape[1]))
    return torch.stack([shares[:, a:b].sum(-1) for a, b in ends], 1).float()


def _mean(step: int, sums: Sequence[_Sums]) -> AtStep:
    size, first, prompt, reply, own = torch.cat([s.rows for s in sums]).mean(0).tolist()
    reached, right = sum(s.reached for s in sums), sum(s.right for s in sums)
    return AtStep(step + 1, size, first, prompt, reply, own, AtDepth(step + 1, reached, right))


@contextmanager
def _looking(head: EagleHead) -> Iterator[list[Tensor]]:
    """Attention weights of the head's first layer, one entry per forward while it lasts."""
    attention: Any = head.layers[0].self_attn
    seen: list[Tensor] = []

    def look(module: Any, given: tuple[Any, ...], out: Tensor) -> None:
        x, rotary, kv, mask = given
        seen.append(module.weights(x, rotary, kv.keys, mask))

    handle = attention.register_forward_hook(look)
    try:
        yield seen
    finally:
        handle.remove()
