"""The accept rule. One pure function for chain and tree, greedy and sampled, every drafter.

Source: Leviathan et al. 2023 and Chen et al. 2023 (chain); SpecInfer (Miao et al. 2024) and
Yang et al. 2024 for several candidates at one place.

Owns: the rule. Does not know: models, caches, how p and q came about.
Invariants: the law of the tokens it commits is the target's own, whatever the draft; temperature
0 is p one-hot, a deterministic draft is q one-hot.

    at a node, children in order:   accept x with min(1, p[x] / q[x])
                      rejected:     p <- the positive part of p - q, normalised
                no child is left:   draw the next token from p
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.draft import Draft, check_mass, check_total
from labkit.errors import BadInput
from labkit.events import Trial
from labkit.sampling import Rng


@dataclass(frozen=True, slots=True)
class Verdict:
    """What stays.

    path: accepted nodes from the root on (node 0 first). next_token: the target's own token.
    trials: every accept test, in order. resampled: was any child of the last node rejected?
    last: [V], the distribution that ``next_token`` was drawn from.
    """

    path: tuple[int, ...]
    next_token: int
    trials: tuple[Trial, ...]
    last: Tensor

    @property
    def resampled(self) -> bool:
        return bool(self.trials) and not self.trials[-1].accepted


def verify(draft: Draft, p: Tensor, rng: Rng) -> Verdict:
    """Accept a path of the draft and draw the target's own token after it.

    Args:
        draft: n nodes and the q of each.
        p: [n, V], the target's distribution after each node, warped.
        rng: source of every draw. On a device, one read brings all that is needed.

    Raises:
        BadInput: p at a node of the path is no distribution (NaN, or no token possible), a q is
            none, or a q gives its drafted token no mass; by the node.
    """
    children = draft.tree.children
    totals = draft.totals(vocab_size=p.shape[-1], device=p.device)
    masses = _masses(draft, p, children)
    ahead = rng.pick_ahead(lambda: torch.stack([_rest(draft, p, i) for i in range(len(p))]))
    numbers = [*masses, p.sum(-1).double(), totals]
    if ahead is not None:
        numbers.append(ahead.double())
    read = torch.stack(numbers).tolist()  # the round's one read from the device
    for i, total in enumerate(read[3]):
        check_total(i, total)

    node, path = 0, [0]
    trials: list[Trial] = []
    _check_p(node, read[2][node])
    while (chosen := _try_children(children[node], read, rng, trials)) is not None:
        node = chosen
        path.append(node)
        _check_p(node, read[2][node])
    last = _rest(draft, p, node)
    token = int(rng.pick(last)) if ahead is None else int(read[4][node])
    return Verdict(tuple(path), token, tuple(trials), last)


def _try_children(
    children: tuple[int, ...], read: list[list[float]], rng: Rng, trials: list[Trial]
) -> int | None:
    """The first accepted child, or None. Every test is appended to ``trials``."""
    for child in children:
        p_x, q_x = read[0][child], read[1][child]
        check_mass(child, q_x)
        flip = rng.flip(min(1.0, p_x / q_x))
        trials.append(Trial(child, p_x, q_x, flip.u, flip.accepted))
        if flip.accepted:
            return child
    return None


def _check_p(node: int, mass: float) -> None:
    """Refuse NaN, with which every comparison is False without a word. Only where the walk comes
    by: after a token that the target rules out, no next token need be possible."""
    if not mass > 0:
        raise BadInput(
            f"the target's distribution after node {node}",
            expected="probabilities, some of them above 0",
            got=f"a total of {mass}",
            next_step="check the logits processors; without any, run the model in float32",
        )


def _masses(
    draft: Draft, p: Tensor, children: tuple[tuple[int, ...], ...]
) -> tuple[Tensor, Tensor]:
    """What every accept test can need, computed on the device without waiting for it.

    Returns:
        [n]: the target's mass on node i's token when it is tried, its earlier siblings rejected;
        [n]: the mass it was drawn with. (0 and 1 for the root, which is not tried.)
    """
    tokens = draft.tree.tokens
    p_x = torch.zeros(len(tokens), dtype=torch.float64, device=p.device)
    q_x = torch.ones_like(p_x)
    for node, below in enumerate(children):
        rest = p[node]
        for child in below:
            q = draft.q[child]
            p_x[child] = rest[tokens[child]]
            if q is not None:
                q_x[child] = q[tokens[child]]
            if child != below[-1]:
                rest = residual(rest, q, tokens[child])
    return p_x, q_x


def _rest(draft: Draft, p: Tensor, node: int) -> Tensor:
    """[V], what to draw from when the walk stops at ``node``: p without its rejected children."""
    rest = p[node]
    for child in draft.tree.children[node]:
        rest = residual(rest, draft.q[child], draft.tree.tokens[child])
    return rest


def residual(p: Tensor, q: Tensor | None, token: int) -> Tensor:
    """The positive part of p - q, normalised: what a rejection leaves.

    Args:
        p: [V]; q: [V], or None for one-hot on ``token``.

    Returns:
        [V]. When nothing is left (p never exceeds q: a rejection has probability 0), p itself.
    """
    if q is None:
        rest = p.clone()
        rest[token] = 0
    else:
        rest = (p - q.to(p.device)).clamp_(min=0)
    mass = rest.sum()
    return torch.where(mass > 0, rest / mass.clamp(min=torch.finfo(p.dtype).tiny), p)
