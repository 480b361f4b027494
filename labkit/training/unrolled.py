"""The training-time test of EAGLE-3: a head in training reads its own states, as when it drafts.

Owns: how several drafting steps are run for every position of a text at once, and the losses.
Does not know: optimisers, files, where states come from.
Invariants: column j of step s is what the drafter computes s steps after the last true pair j,
if its guesses so far were the text's own tokens.

    text      x0 x1 x2 x3 x4 x5 x6         f: the target's states, f_i after reading x0..x_i

    column        0         1         2         3         4        position
    step 0    (f0,x1)   (f1,x2)   (f2,x3)   (f3,x4)   (f4,x5)     0 1 2 3 4
    guesses       x2        x3        x4        x5        x6
    gives         a0        a1        a2        a3        a4
    step 1    (a0,x2)   (a1,x3)   (a2,x4)   (a3,x5)               1 2 3 4
    guesses       x3        x4        x5        x6
    gives         b0        b1        b2        b3
    step 2    (b0,x3)   (b1,x4)   (b2,x5)                         2 3 4
    guesses       x4        x5        x6

    Column 2 in step 2 has read the true pairs 0 1 2 and its own pairs of steps 1 and 2; it has
    not read any guess of other columns. So its query sees

    keys of       step 0          step 1          step 2
    columns     0 1 2 3 4       0 1 2 3          0 1 2
    seen        # # # . .       . . # .          . . #

Source: Li et al. 2025 (EAGLE-3, arXiv 2503.01840). The text's own tokens are read in every step;
only the states are the head's.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from labkit.heads.eagle import EagleHead, HeadStep
from labkit.heads.layers import StackedKeyValues


def unroll(
    head: EagleHead, tokens: Tensor, states: Sequence[Tensor], *, steps: int, first: int = 0
) -> list[HeadStep]:
    """``steps`` drafting steps from each column at once.

    Args:
        tokens: int64 [B, T], T >= 2 + steps.
        states: the target's, one [B, T, Ht] per entry of ``head.config.needs``.
        first: columns before this one are read but not unrolled: of a prompt, say.

    Returns:
        per step s two [B, T - 2 - s - first, H]: entry c belongs to column first + c, whose guess
        is the token ``tokens[:, first + c + 2 + s]``.
    """
    columns = tokens.shape[1] - 2
    kv = [StackedKeyValues() for _ in head.layers]
    state = head.fuse([f[:, :columns] for f in states])
    found: list[HeadStep] = []
    for s in range(steps):
        start = first if s else 0
        n = columns - s - start
        positions = torch.arange(start + s, columns, device=tokens.device)
        made = head(
            tokens[:, start + 1 + s : columns + 1],
            state[:, :n],
            positions=positions[None],
            kv=kv,
            mask=step_mask(columns, s, first=first, device=tokens.device),
        )
        if s == 0:
            made = HeadStep(made.recycled[:, first:], made.normed[:, first:])
        found.append(made)
        state = made.recycled
    return found


def step_mask(columns: int, step: int, *, first: int, device: torch.device | str) -> Tensor:
    """bool [queries, keys of steps 0..step]: the true pairs so far, then one's own guesses."""
    if step == 0:
        return torch.ones(columns, columns, dtype=torch.bool, device=device).tril_()
    n = columns - step - first
    true = torch.ones(n, columns, dtype=torch.bool, device=device).tril_(first)
    own = [
        torch.eye(n, columns - s - first, dtype=torch.bool, device=device)
        for s in range(1, step + 1)
    ]
    return torch.cat((true, *own), 1)


def soft_cross_entropy(logits: Tensor, probabilities: Tensor) -> Tensor:
    """Mean over rows of -sum p log q; [N, D] each. 0 for no rows."""
    rows = -(probabilities * F.log_softmax(logits.float(), -1)).sum(-1)
    return rows.sum() / max(1, len(rows))
