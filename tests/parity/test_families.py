"""Every supported kind of model, past its sliding windows, with both attention kernels."""

import itertools

import pytest
import torch
from helpers import (
    CPU,
    FAMILIES,
    WINDOW,
    branching,
    drafters,
    greedy_reference,
    plain_logits,
    prompt_of,
    run,
    tiny,
)

from labkit import toy
from labkit.cache import SlotCache
from labkit.drafters.ngram import NGram
from labkit.target import Target
from labkit.tree import DraftTree

COUNT = 24
LENGTHS = (1, 17, 200)
ATTENTION = ("sdpa", "eager")
WINDOWED = ("qwen2", "qwen3", "mistral", "phi3", "gemma3")
families = pytest.mark.parametrize("family", FAMILIES)
attentions = pytest.mark.parametrize("attention", ATTENTION)


def reference(family: str, length: int, device: torch.device) -> tuple[int, ...]:
    return greedy_reference(tiny(family, device=device), prompt_of(length), COUNT)


# Not every draft length with every drafter: tests/lossless/test_greedy.py does that for Llama.
WAYS = [
    ("ngram", 5),
    ("draft model", 3),
    ("self-draft", 5),
    ("ruined", 1),
    ("tree", 3),
    ("tree", 5),
]
# Any three of these, family and kernel and drafter, or family and kernel and prompt length, meet;
# a drafter and a prompt length meet in every kernel and in two of three families.
CASES = [
    (family, attention, *way, LENGTHS[(f + a + w) % len(LENGTHS)])
    for f, family in enumerate(FAMILIES)
    for a, attention in enumerate(ATTENTION)
    for w, way in enumerate(WAYS)
]


@pytest.mark.parametrize(("family", "attention", "kind", "draft_length", "length"), CASES)
def test_greedy_text_is_that_of_plain_decoding(
    family: str, attention: str, kind: str, draft_length: int, length: int, device: torch.device
) -> None:
    model = tiny(family, attention=attention, device=device)
    prompt, text = prompt_of(length), reference(family, length, device)
    assert len(set(text)) > 4  # not stuck at a token or two
    drafter = drafters(model, text, start=length)[kind]()
    trace = run(Target(model), drafter, prompt, max_new_tokens=COUNT, draft_length=draft_length)
    assert trace.tokens == text


# Hybrid targets read chains only.
CHAINS = [way for way in WAYS if way[0] != "tree"]
HYBRID_CASES = [
    (family, attention, *way, LENGTHS[(f + a + w) % len(LENGTHS)])
    for f, family in enumerate(toy.HYBRIDS)
    for a, attention in enumerate(ATTENTION)
    for w, way in enumerate(CHAINS)
]


@pytest.mark.parametrize(("family", "attention", "kind", "draft_length", "length"), HYBRID_CASES)
def test_greedy_text_of_hybrid_targets_is_that_of_plain_decoding(
    family: str, attention: str, kind: str, draft_length: int, length: int, device: torch.device
) -> None:
    """Prompts of 200 tokens are three chunks of the recurrent rule's block form, which are 64."""
    model = tiny(family, attention=attention, device=device)
    prompt, text = prompt_of(length), reference(family, length, device)
    assert len(set(text)) > 4
    drafter, target = drafters(model, text, start=length)[kind](), Target(model)
    trace = run(target, drafter, prompt, max_new_tokens=COUNT, draft_length=draft_length)
    assert trace.tokens == text
    rejected = any(r.accepted < len(r.drafted.tokens) - 1 for r in trace.rounds)
    assert (target.replayed > 0) == rejected


def test_every_family_meets_every_prompt_length_in_both_kernels() -> None:
    met = {(family, attention, length) for family, attention, _, _, length in CASES}
    assert met == set(itertools.product(FAMILIES, ATTENTION, LENGTHS))
    drafted = {(attention, kind, depth, length) for _, attention, kind, depth, length in CASES}
    assert drafted == {(a, *way, n) for a, way, n in itertools.product(ATTENTION, WAYS, LENGTHS)}


def test_windows_are_shorter_than_the_texts() -> None:
    """Otherwise the families with windows would show nothing about them."""
    windowed = {family: SlotCache(tiny(family), device=CPU) for family in FAMILIES}
    with_window = {f for f, cache in windowed.items() if "sliding_attention" in cache.kinds}
    assert with_window == set(WINDOWED)
    assert all(windowed[family].window == WINDOW < COUNT for family in with_window)
    mixed = {f for f, cache in windowed.items() if len(set(cache.kinds)) == 2}
    assert mixed == {"qwen2", "qwen3", "gemma3"}


@pytest.mark.parametrize("family", WINDOWED)
def test_a_window_that_is_ignored_gives_another_text(family: str, device: torch.device) -> None:
    """Negative control: the text depends on the window, and on the tree's own mask."""
    target, prompt = Target(tiny(family, device=device)), prompt_of(17)
    target._cache.window = 10_000
    text = reference(family, 17, device)
    drafter = branching(text, start=17)
    assert run(target, drafter, prompt, max_new_tokens=COUNT).tokens != text


@attentions
@families
def test_tree_scores_are_those_of_one_forward_per_path(
    family: str, attention: str, device: torch.device
) -> None:
    """Logits at each node against transformers' forward over its path, beyond the window."""
    model, prompt = tiny(family, attention=attention, device=device), prompt_of(17)
    tree = DraftTree((prompt[-1], 1, 2, 3, 4, 5), (-1, 0, 0, 1, 1, 2))
    target = Target(model)
    target.prefill(prompt)
    with target.speculation():
        logits = target.score(tree).logits
    for node in range(len(tree)):
        path = [tree.tokens[i] for i in tree.path(node)]
        plain = plain_logits(tiny(family, device=device), (*prompt[:-1], *path))[-1]
        assert torch.allclose(logits[node], plain, atol=1e-5), node


@families
def test_scrambled_slots_trees_and_reuse_match_a_plain_forward(
    family: str, device: torch.device
) -> None:
    """The physical order of slots does not matter: text committed in tree order, rolled back and
    written again into forgotten slots, every step against a plain forward, to 1e-6 of the logits'
    own size (1e-5 on a GPU, which adds up in another order for each shape)."""
    model, prompt = tiny(family, device=device), prompt_of(12)
    target, text = Target(model), list(prompt)
    target.prefill(prompt)
    rounding = 1e-6 if device == CPU else 1e-5
    generator = torch.Generator().manual_seed(1)
    for step in range(8):
        ids = torch.randint(64, (5,), generator=generator).tolist()
        tree = DraftTree((text[-1], *ids), (-1, 0, 0, 2, 1, 3))
        path = tree.path([4, 5, 1, 3][step % 4])
        with target.speculation():
            logits = target.score(tree).logits
            target.commit(path)
        text += [tree.tokens[i] for i in path[1:]]
        plain = plain_logits(model, text)[-1]
        size = float(plain.abs().max())
        assert torch.allclose(logits[path[-1]], plain, atol=rounding * max(size, 1.0)), step
        text.append((text[-1] + 1) % 64)
        if step == 4:
            target.truncate(9)
            text = text[:10]
    slots = target.committed_slots
    assert list(slots) != sorted(slots)  # they did get scrambled


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("pads", [0, 1, 4])
def test_a_prompt_without_padding_equals_a_padded_one_with_the_right_positions(
    family: str, pads: int, device: torch.device
) -> None:
    """The lab never pads: ids go in as they are, at positions 0, 1, 2, ... A padded batch row
    whose positions are derived from its mask gives the same logits and the same text, one whose
    positions are not does not."""
    model, prompt = tiny(family, device=device), prompt_of(5)
    target = Target(model)
    target.prefill(prompt)
    with target.speculation():
        ours = target.score(DraftTree.chain(prompt[-1:])).logits[0]
    text = run(target, NGram(), prompt, max_new_tokens=20).tokens

    @torch.inference_mode()
    def padded(*written: int, shift: int = 0) -> torch.Tensor:
        ids = torch.tensor([[0] * pads + [*prompt, *written]], device=device)
        mask = torch.ones_like(ids)
        mask[:, :pads] = 0
        positions = (mask.cumsum(-1) - 1).clamp(min=0) + shift
        return model(input_ids=ids, attention_mask=mask, position_ids=positions).logits[0, -1]

    assert text == tuple(int(padded(*text[:i]).argmax()) for i in range(20))
    right, wrong = padded(), padded(shift=4)
    assert torch.allclose(ours, right, atol=1e-4)
    if family == "gpt2":  # Llama's rotary positions are relative: a shift of all changes nothing
        assert not torch.allclose(ours, wrong, atol=1e-4)
