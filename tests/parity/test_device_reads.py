"""How often the host waits for the device, and what recording costs in operations.

On the GPU where there is one, else on a device that is not there (`far.py`); what is counted is the
calls that wait for it, or would.
"""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from far import FAR, HERE, Elsewhere, Far, FarAway, Reads, elsewhere
from helpers import branching, greedy_reference, prompt_of, tiny
from torch.utils._python_dispatch import TorchDispatchMode

from labkit import toy
from labkit.config import DecodeConfig
from labkit.decode import speculate
from labkit.drafters.base import Drafter
from labkit.drafters.draft_model import DraftModel
from labkit.drafters.eagle import eagle_drafter
from labkit.drafters.medusa import medusa_drafter
from labkit.drafters.mtp import mtp_drafter
from labkit.drafters.ngram import NGram
from labkit.drafters.shapes import SMALL_TREE, Chain, DynamicTree, Shape
from labkit.events import Committed
from labkit.heads.eagle import head_config, random_head
from labkit.heads.medusa import medusa_config, random_heads
from labkit.heads.mtp import random_mtp
from labkit.target import Target

PROMPT = prompt_of(17)


@pytest.fixture
def there(device: torch.device) -> Elsewhere:
    return elsewhere(device)


def llama(seed: int = 0) -> Any:
    return toy.tiny("llama", seed=seed, layers=1)


@pytest.mark.parametrize(
    ("read", "count"),
    [
        (lambda x: x.tolist(), 1),
        (lambda x: x.sum().item(), 1),
        (lambda x: float(x[0]) + int(x[1]), 2),
        (lambda x: bool((x > 0).all()), 1),
        (lambda x: x.cpu(), 1),
        (lambda x: x.to("cpu"), 1),
        (lambda x: x.to(device="cpu"), 1),
        (lambda x: torch.zeros(3).copy_(x), 1),
        (lambda x: x.nonzero(), 1),
        (lambda x: torch.where(x > 0), 1),
        (lambda x: x[x > 0], 1),
        (lambda x: x.masked_select(x > 0), 1),
        (lambda x: (x + 1)[1:].argmax(), 0),
        (lambda x: x.masked_fill(x > 0, 0).cumsum(0), 0),
        (lambda x: x.index_copy(0, torch.tensor([1]).to(x.device), x[:1]), 0),
    ],
)
def test_the_counter_counts(read: Callable[[Any], Any], count: int, there: Elsewhere) -> None:
    """Negative and positive controls: ways of reading that are counted, and what is not one."""
    with there.counting() as away:
        read(torch.tensor([3.0, -1.0, 2.0], device=there.device))
    assert len(away.reads) == count


def test_devices_do_not_mix() -> None:
    with FarAway(), pytest.raises(AssertionError, match="mixes two devices"):
        torch.tensor([1.0], device=FAR) + torch.tensor([1.0])


def reads_per_round(there: Elsewhere, make: Callable[[], Drafter], **settings: Any) -> list[int]:
    counts, config = [], DecodeConfig(max_new_tokens=9, draft_length=3, **settings)
    with there.counting() as away:
        target = Target(there.move(llama()))
        for event in speculate(target, make(), PROMPT, config=config):
            if isinstance(event, Committed):
                counts.append(len(away.reads))
    return [after - before for before, after in zip([0, *counts], counts, strict=False)]


SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 1.0},
    "all warps": {"temperature": 0.8, "top_k": 9, "top_p": 0.9, "min_p": 0.01},
    "processors": {"repetition_penalty": 1.3},
    "processors, sampled": {"repetition_penalty": 1.3, "temperature": 1.0},
}


@pytest.mark.parametrize("detail", ["timing", "summary"])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_at_most_two_reads_per_round(
    settings: dict[str, Any], detail: str, there: Elsewhere
) -> None:
    """One for the drafted tokens, one for the accept tests and the next token."""
    reads = reads_per_round(
        there,
        lambda: DraftModel(there.move(llama(seed=5)), vocab_size=64),
        detail=detail,
        **settings,
    )
    assert max(reads) == 2


SHAPES: dict[str, Shape] = {
    "chain": Chain(),
    "static": SMALL_TREE,
    "dynamic": DynamicTree(top_k=3, nodes=7),
}


def eagle(model: Any) -> Any:
    config = head_config(model, 3, boundaries=(0, 1), fc_norm=True, norm_output=True)
    return random_head(config, model)


HEADS: dict[str, tuple[Callable[[Any], Any], Callable[..., Drafter]]] = {
    "eagle": (eagle, eagle_drafter),
    "mtp": (lambda model: random_mtp(model, modules=2), mtp_drafter),
    "medusa": (lambda model: random_heads(medusa_config(model, heads=3), model), medusa_drafter),
    "meta": (
        lambda model: random_heads(medusa_config(model, "meta", heads=3), model),
        medusa_drafter,
    ),
}


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("settings", ["greedy", "processors, sampled"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("confidence", [0.0, 1e-9])
def test_a_head_s_draft_is_read_once(
    shape: str, settings: str, confidence: float, kind: str, there: Elsewhere
) -> None:
    """Whole trees too; only a head that asks itself how sure it is reads once more per depth."""
    model = llama()
    make, drafter_of = HEADS[kind]
    head = copy.deepcopy(make(model))  # its embedding or output rows are the model's own
    counts, run = [], DecodeConfig(max_new_tokens=6, draft_length=3, **SETTINGS[settings])
    with there.counting() as away:
        target = Target(there.move(model), needs=head.config.needs)
        drafter = drafter_of(there.move(head), shape=SHAPES[shape], confidence=confidence)
        for event in speculate(target, drafter, PROMPT, config=run):
            if isinstance(event, Committed):
                counts.append(len(away.reads))
    assert counts[0] == (2 if not confidence else 2 + 3)
    reads = [after - before for before, after in zip([0, *counts], counts, strict=False)]
    assert max(reads) == counts[0]


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_one_read_per_round_without_a_draft_model(
    settings: dict[str, Any], there: Elsewhere
) -> None:
    tree = branching(greedy_reference(tiny(), PROMPT, 20), start=len(PROMPT))
    assert set(reads_per_round(there, NGram, **settings)) == {1}
    assert set(reads_per_round(there, lambda: tree, **settings)) == {1}


@pytest.mark.parametrize(("target_far", "draft_far"), [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_target_and_draft_on_two_devices(
    target_far: bool, draft_far: bool, temperature: float, there: Elsewhere
) -> None:
    """The same tokens as with both on one; an operation that mixed devices would have failed."""
    config = DecodeConfig(max_new_tokens=9, temperature=temperature, seed=3, repetition_penalty=1.2)

    def tokens(target: Any, draft: Any) -> list[int]:
        drafter = DraftModel(draft, vocab_size=64)
        events = speculate(Target(target), drafter, PROMPT, config=config)
        return [t for event in events if isinstance(event, Committed) for t in event.tokens]

    plain = tokens(llama(), llama(seed=5))
    with there.counting():
        target = there.move(llama()) if target_far else llama()
        draft = there.move(llama(seed=5)) if draft_far else llama(seed=5)
        assert tokens(target, draft) == plain


# What recording costs.


class Operations(TorchDispatchMode):
    """Counts tensor operations."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def operations(detail: Any, temperature: float, device: torch.device) -> int:
    target = Target(tiny(device=device))
    drafter = DraftModel(tiny(seed=5, device=device), vocab_size=64)
    config = DecodeConfig(max_new_tokens=12, detail=detail, temperature=temperature)
    with Operations() as operations:
        for _ in speculate(target, drafter, PROMPT, config=config):
            pass
    return operations.count


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_only_full_detail_costs_tensor_operations(temperature: float, device: torch.device) -> None:
    timing, summary, full = (
        operations(detail, temperature, device) for detail in ("timing", "summary", "full")
    )
    assert timing == summary < full


def test_far_is_not_here() -> None:
    assert Far(torch.zeros(2)).device == FAR != HERE


def test_both_counters_agree_where_both_see() -> None:
    """`Reads` among far tensors notes what `FarAway` notes, where neither is served from Python."""
    with FarAway() as away, Reads() as reads:
        x = torch.tensor([3.0, -1.0, 2.0], device=FAR)
        x.to("cpu")
        torch.zeros(3).copy_(x)
        torch._C._nn.gelu(x)
        torch.where(x > 0)
    assert away.reads == reads.reads
    assert reads.reads == ["_to_copy", "copy_", "nonzero"]
