"""Slot bookkeeping against a plain list; masks drawn by hand; edge values of the roll-back."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from helpers import tiny
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import labkit
from labkit.cache import SlotCache, SlotTable, check_supported
from labkit.errors import UnsupportedModel
from labkit.target import Target


class Slots(RuleBasedStateMachine):
    """The table beside the obvious model: a list of positions and a set of guests."""

    def __init__(self) -> None:
        super().__init__()
        self.table = SlotTable()
        self.text: list[int] = []  # slot of each committed position
        self.guests: list[int] = []

    @rule(count=st.integers(1, 70))
    def take(self, count: int) -> None:
        taken = self.table.take(count)
        assert not set(taken) & {*self.text, *self.guests}
        assert len(set(taken)) == count
        self.guests += taken

    @precondition(lambda self: self.guests)
    @rule(data=st.data())
    def keep(self, data: st.DataObject) -> None:
        kept = data.draw(st.lists(st.sampled_from(self.guests), unique=True))
        self.table.keep(kept)
        self.text += kept
        self.guests = []

    @rule()
    def forget(self) -> None:
        self.table.forget()
        self.guests = []

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        length = data.draw(st.integers(0, len(self.text)))
        self.table.truncate(length)
        self.text, self.guests = self.text[:length], []

    @invariant()
    def same(self) -> None:
        self.table.check()
        assert self.table.committed == self.text
        assert self.table.speculative == self.guests
        assert self.table.used == len(self.text) + len(self.guests)
        assert self.table.extent == max((*self.text, *self.guests), default=-1) + 1


TestSlots = Slots.TestCase
TestSlots.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)


def test_check_notices_a_lost_slot() -> None:
    """Negative control of the invariant that the machine relies on."""
    table = SlotTable()
    table.take(3)
    table.speculative.pop()
    with pytest.raises(AssertionError):
        table.check()


def test_forgotten_slots_are_the_next_to_be_used() -> None:
    table = SlotTable()
    table.keep(table.take(3))
    assert table.take(4) == [3, 4, 5, 6]
    table.keep([3, 5])
    assert table.committed == [0, 1, 2, 3, 5]
    assert table.take(3) == [4, 6, 7]


def cached(count: int) -> SlotTable:
    table = SlotTable()
    table.keep(table.take(count))
    return table


@pytest.mark.parametrize(("length", "left"), [(3, 3), (2, 2), (0, 0)])
def test_roll_back_to_a_length(length: int, left: int) -> None:
    table = cached(3)
    table.truncate(length)
    assert len(table.committed) == left
    table.check()


@pytest.mark.parametrize("length", [-5, -1, 4])
def test_roll_back_outside_the_text_is_refused_and_changes_nothing(length: int) -> None:
    table = cached(3)
    with pytest.raises(ValueError, match=r"outside 0\.\.3"):
        table.truncate(length)
    assert table.committed == [0, 1, 2]


@pytest.mark.parametrize("kept", [[2], [9], [3, 3]])
def test_only_speculative_slots_can_be_kept_and_only_once(kept: list[int]) -> None:
    table = cached(3)
    table.take(2)
    with pytest.raises(ValueError, match="not speculative, or twice"):
        table.keep(kept)
    table.check()


# Masks. Rows are the new tokens, columns are slots.


def drawn(mask: torch.Tensor, width: int) -> list[str]:
    assert not mask[0, 0, :, width:].any()
    return ["".join("01"[int(seen)] for seen in row[:width]) for row in mask[0, 0]]


def tree_mask() -> torch.Tensor:
    #       0
    #      / \
    #     1   2      and 3 below 1
    return torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]]).bool()


def place(cache: SlotCache, count: int) -> dict[str, torch.Tensor]:
    start = cache.length
    slots, masks = cache.place(
        range(start, start + count), ancestors=torch.ones(count, count).tril().bool()
    )
    cache.keep(slots)
    return masks


def test_mask_of_a_tree_over_the_text() -> None:
    cache = SlotCache(tiny("llama"), device=torch.device("cpu"))
    assert drawn(place(cache, 3)["full_attention"], 3) == ["100", "110", "111"]
    slots, masks = cache.place([3, 4, 4, 5], ancestors=tree_mask())
    assert slots == [3, 4, 5, 6]
    assert drawn(masks["full_attention"], 7) == ["1111000", "1111100", "1111010", "1111101"]
    cache.keep([3, 5])
    _, masks = cache.place([5, 6], ancestors=torch.ones(2, 2).bool().tril())  # forgotten 4, then 6
    assert drawn(masks["full_attention"], 7) == ["1111110", "1111111"]


def test_a_query_that_sees_every_slot_needs_no_mask() -> None:
    cache = SlotCache(tiny("llama"), device=torch.device("cpu"))
    place(cache, 3)
    cache.place([3, 4, 4, 5], ancestors=tree_mask())  # slots 3, 4, 5, 6
    cache.keep([3, 6])
    _, masks = cache.place([5], ancestors=torch.ones(1, 1).bool())  # slot 4; 5 is a hole below 6
    assert drawn(masks["full_attention"], 7) == ["1111101"]
    cache.keep([4])
    _, masks = cache.place([6], ancestors=torch.ones(1, 1).bool())  # fills the hole
    assert masks == {"full_attention": None}
    for other in (tiny("gemma3"), tiny("llama", attention="eager")):  # a window; additive masks
        slots = SlotCache(other, device=torch.device("cpu"))
        _, masks = slots.place([0], ancestors=torch.ones(1, 1).bool())
        assert None not in masks.values()


def test_mask_of_a_window_goes_by_position_not_by_slot() -> None:
    cache = SlotCache(tiny("gemma3"), device=torch.device("cpu"))
    cache.window = 3
    place(cache, 4)
    cache.truncate(2)
    _, masks = cache.place([2, 3, 3, 4], ancestors=tree_mask())
    #                            positions 0 1 2 3 3 4
    assert drawn(masks["full_attention"], 6) == ["111000", "111100", "111010", "111101"]
    assert drawn(masks["sliding_attention"], 6) == ["111000", "011100", "011010", "001101"]


def test_rolled_back_slots_are_not_seen() -> None:
    cache = SlotCache(tiny("llama"), device=torch.device("cpu"))
    place(cache, 6)
    cache.truncate(2)
    _, masks = cache.place([2, 3], ancestors=torch.ones(2, 2).tril().bool())
    assert drawn(masks["full_attention"], 6) == ["111000", "111100"]
    cache.forget()
    _, masks = cache.place([2], ancestors=torch.ones(1, 1).bool())
    assert masks == {"full_attention": None}  # then it sees all of them, so no others may be shown
    for layer in cache._layers:
        keys, _ = layer.update(*torch.zeros(2, 1, 2, 1, 8))
        assert keys.shape[2] == 3


# Refusals, before any forward.

CANNOT_FORGET = {
    "OlmoHybrid": ("linear_attention", {"layer_types": ["full_attention", "linear_attention"]}),
    "Mamba": ("linear_attention", {}),
    "Jamba": ("linear_attention", {}),
    "RecurrentGemma": ("layer 0 of recurrent_gemma", {}),  # called recurrent or linear_attention
    "FalconH1": ("hybrid", {}),
    "Rwkv": ("RwkvForCausalLM", {}),
}


@pytest.mark.parametrize("name", CANNOT_FORGET)
def test_layers_that_cannot_forget_are_refused_by_name(name: str) -> None:
    """On the meta device: were a forward tried, there would be no numbers to run it with."""
    layer, extra = CANNOT_FORGET[name]
    config = getattr(transformers, f"{name}Config")(num_hidden_layers=2, **extra)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    model.forward = lambda *args, **kwargs: pytest.fail("a forward ran")
    with pytest.raises(UnsupportedModel) as caught:
        Target(model)
    assert layer in str(caught.value)


def test_a_model_without_a_cache_is_refused() -> None:
    """GPT-1 swallows an unknown cache without a word, and would then see no context at all."""
    config = transformers.OpenAIGPTConfig(n_embd=8, n_layer=1, n_head=1, vocab_size=9)
    with pytest.raises(UnsupportedModel, match="cache"):
        Target(transformers.OpenAIGPTLMHeadModel(config))


def test_attention_without_masks_is_refused() -> None:
    text = SimpleNamespace(
        model_type="toy", num_hidden_layers=1, _attn_implementation="flash_attention_2"
    )
    config: Any = SimpleNamespace(get_text_config=lambda: text)
    with pytest.raises(UnsupportedModel, match="flash_attention_2"):
        check_supported(SimpleNamespace(config=config, forward=lambda past_key_values: None))


def test_only_the_cache_and_its_states_know_the_cache_classes() -> None:
    """Their layout changed with almost every release of transformers."""
    inside = re.compile(r"cache_utils|past_key_values\s*[\[.]|\.crop\(|key_cache|DynamicCache")
    package = Path(labkit.__file__).parent
    users = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if inside.search(path.read_text(encoding="utf-8"))
    }
    assert users == {"cache.py", "recurrent.py"}


def test_keys_and_values_of_different_width_grow_past_the_first_table() -> None:
    """As in latent attention (DeepSeek): the table is doubled beyond 128 slots."""
    config = transformers.DeepseekV3Config(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=32,
        moe_intermediate_size=16,
        num_hidden_layers=1,
        first_k_dense_replace=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        kv_lora_rank=8,
        q_lora_rank=8,
        qk_rope_head_dim=4,
        qk_nope_head_dim=8,
        v_head_dim=6,
        max_position_embeddings=512,
        attn_implementation="eager",
    )
    torch.manual_seed(0)
    model = transformers.DeepseekV3ForCausalLM(config).eval()
    tokens = torch.randint(32, (200,)).tolist()
    target = Target(model)
    target.prefill(tokens[:100])
    with target.speculation():
        ours = [target.append(torch.tensor([t])) for t in tokens[99:]][-1]
    with torch.inference_mode():
        plain = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1:]
    assert torch.allclose(ours, plain, atol=1e-5)
