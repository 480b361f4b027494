"""How long this machine takes for one forward, by the number of tokens in it, and for a draft.

Owns: the measurement. Does not know: what the numbers are used for.
Invariants: the model's text is not changed; what was scored is forgotten.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from labkit.drafters.base import Drafter
from labkit.drafters.on_head import HeadDrafter
from labkit.drafters.shapes import Costs
from labkit.errors import BadInput
from labkit.lab.session import Lab
from labkit.metrics import cost
from labkit.tree import DraftTree


def forward_seconds(
    lab: Lab, counts: Sequence[int] = (1, 2, 4, 8, 16), *, repeats: int = 7, context: int = 64
) -> dict[int, float]:
    """Seconds of one target forward over n new tokens, for each n.

    Args:
        counts: the n to measure.
        repeats: the median of so many is taken, after one that is not counted.
        context: tokens already in the cache.

    Raises:
        BadInput: a count below 1, or no repeats.
    """
    if min(counts, default=0) < 1 or repeats < 1:
        raise BadInput(
            "forward_seconds",
            expected="counts and repeats of 1 or more",
            got=f"counts {tuple(counts)}, repeats {repeats}",
            next_step="change counts or repeats",
        )
    ids = lab.tokens("The quick brown fox jumps over the lazy dog.", chat=False)
    text = (ids * (1 + (context + max(counts)) // len(ids)))[: context + max(counts)]
    lab.target.prefill(text[: context + 1])
    taken: dict[int, list[float]] = {n: [] for n in counts}
    # in turn, so that a busy moment of the machine does not fall on one count alone
    for _ in range(repeats + 1):
        for n in counts:
            start = lab.clock()
            with lab.target.speculation():
                lab.target.score(DraftTree.chain(text[context : context + n]))
            taken[n].append(lab.clock() - start)
    return {n: median(seconds[1:]) for n, seconds in taken.items()}


def tree_costs(
    lab: Lab,
    drafter: Drafter,
    counts: Sequence[int] = (1, 2, 4, 8, 16, 32),
    *,
    repeats: int = 5,
    draft_length: int = 3,
    new_tokens: int = 12,
) -> Costs:
    """What verifying and drafting cost here, for `DynamicTree`.

    Args:
        drafter: one whose shape is like that of the tree: its time per forward is taken from a
            short run, all that goes with a forward of it included.
        counts, repeats: as of `forward_seconds`.

    Raises:
        BadInput: a drafter that spent no forward in that run.
    """
    verify = forward_seconds(lab, counts, repeats=repeats)
    run = lab.record(
        "The quick brown fox",
        drafter=drafter,
        chat=False,
        eos=None,
        draft_length=draft_length,
        max_new_tokens=new_tokens,
    )
    spent = cost(run)
    if not spent.draft_forwards:
        raise BadInput(
            "drafter to measure",
            expected="one that runs a model",
            got=f"{drafter.name!r}, which spent no forward",
            next_step="give an EAGLE drafter",
        )
    return Costs(tuple(sorted(verify.items())), draft=spent.draft / spent.draft_forwards)


@dataclass(frozen=True, slots=True)
class StepParts:
    """Seconds of one draft step and what it is made of, beside one single-token target step.

    output: the part of ``draft`` in the head's output layer, of ``words`` words; all_words: what
    the target's own output layer takes, of every word.
    """

    target: float
    draft: float
    words: int
    output: float
    all_words: float


def step_parts(lab: Lab, drafter: HeadDrafter, *, repeats: int = 9) -> StepParts:
    """Where the time of a draft step goes, on this machine: medians, after one that is not counted.

    Args:
        drafter: with an EAGLE head or prediction modules.
    """
    head, rows = drafter.head, lab.model.get_output_embeddings()
    costs = tree_costs(lab, drafter, (1,), repeats=repeats)
    state = torch.ones(1, rows.weight.shape[1], dtype=rows.weight.dtype, device=rows.weight.device)
    taken: dict[Any, list[float]] = {head.logits: [], rows: []}
    with torch.inference_mode():
        for _ in range(repeats + 1):
            for layer, seconds in taken.items():
                start = lab.clock()
                layer(state)
                seconds.append(lab.clock() - start)
    output, every = (median(seconds[1:]) for seconds in taken.values())
    return StepParts(costs.of(1), costs.draft, len(head.vocab_ids), output, every)


def weight_bytes(lab: Lab) -> int:
    """Bytes of weights that one forward reads: every parameter once, tied ones once."""
    return sum(w.numel() * w.element_size() for w in lab.model.parameters())


def step_block_gap(lab: Lab, *, count: int = 8) -> float:
    """The largest difference between logits of ``count`` tokens read one by one and in one block.

    0 means that both ways agree bit for bit. Both follow the same prefilled text.
    """
    ids = lab.tokens("The quick brown fox jumps over the lazy dog.", chat=False)
    text = (ids * (2 + count // len(ids)))[: len(ids) + count]
    start = len(ids)
    lab.target.prefill(text[: start + 1])
    with lab.target.speculation():
        block = lab.target.score(DraftTree.chain(text[start:])).logits
    steps = []
    for token in text[start:]:
        with lab.target.speculation():
            steps.append(lab.target.score(DraftTree.chain([token])).logits[0])
            lab.target.commit((0,))
    return float((torch.stack(steps) - block).abs().max())
