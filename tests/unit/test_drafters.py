"""Each drafter against something slower, and what it refuses."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers import greedy_reference, plain_logits, prompt_of, run, tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit import toy
from labkit.draft import spread
from labkit.drafters.base import Commit
from labkit.drafters.draft_model import DraftModel, check_same_tokens
from labkit.drafters.ngram import NGram
from labkit.drafters.nothing import Nothing
from labkit.errors import BadInput, UnsupportedModel
from labkit.metrics import acceptance
from labkit.sampling import TorchRng, Warp
from labkit.target import Target
from labkit.toy import TableModel, random_table
from labkit.tree import DraftTree

GREEDY, RNG = Warp(), TorchRng(0)


# Prompt lookup.


def looked_up(text: list[int], *, depth: int, longest: int, shortest: int) -> list[int]:
    """By searching the whole text backwards, every time."""
    for n in range(longest, shortest - 1, -1):
        for end in range(len(text) - 1, n - 1, -1):
            if text[end - n : end] == text[-n:]:
                return text[end : end + depth]
    return []


@settings(deadline=None)
@given(
    text=st.lists(st.integers(0, 3), min_size=1, max_size=30),
    depth=st.integers(0, 5),
    longest=st.integers(1, 4),
    cut=st.integers(1, 30),
)
def test_ngram_finds_what_a_plain_search_finds(
    text: list[int], depth: int, longest: int, cut: int
) -> None:
    drafter = NGram(longest=longest)
    for part in (text[:cut], text):  # its index grows with the text
        tree = drafter.propose(part, RNG, depth=depth, warp=GREEDY).tree
        expected = looked_up(part, depth=depth, longest=longest, shortest=1)
        assert list(tree.tokens) == [part[-1], *expected]


def test_ngram_takes_the_longest_and_the_latest() -> None:
    text = [1, 2, 3, 9, 2, 3, 8, 3, 7, 2, 3]
    assert NGram(longest=3).propose(text, RNG, depth=2, warp=GREEDY).tree.tokens == (3, 8, 3)
    assert NGram(longest=1).propose(text, RNG, depth=2, warp=GREEDY).tree.tokens == (3, 7, 2)


def test_ngram_starts_anew_with_a_new_text() -> None:
    drafter = NGram()
    drafter.propose([1, 2, 1], RNG, depth=1, warp=GREEDY)
    drafter.reset()
    assert drafter.propose([5, 1], RNG, depth=1, warp=GREEDY).tree.tokens == (1,)


@pytest.mark.parametrize(("longest", "shortest"), [(0, 0), (2, 3), (3, 0)])
def test_ngram_lengths_that_make_no_sense(longest: int, shortest: int) -> None:
    with pytest.raises(BadInput, match="shortest <= longest"):
        NGram(longest=longest, shortest=shortest)


def test_nothing_proposes_the_pending_token_alone() -> None:
    assert Nothing().propose([4, 5], RNG, depth=3, warp=GREEDY).tree == DraftTree((5,), (-1,))


# A small model.

PROMPT = prompt_of(9)


def small(seed: int = 5) -> DraftModel:
    return DraftModel(tiny(seed=seed), vocab_size=64)


def test_draft_is_what_the_model_would_write() -> None:
    drafter = small()
    draft = drafter.propose(PROMPT, RNG, depth=4, warp=GREEDY)
    assert draft.tree.tokens == (PROMPT[-1], *greedy_reference(tiny(seed=5), PROMPT, 4))
    assert draft.is_deterministic
    assert draft.forwards == 4


def test_q_is_the_models_own_law_at_each_position() -> None:
    warp = Warp(0.8, top_k=9)
    draft = small().propose(PROMPT, TorchRng(3), depth=4, warp=warp)
    draft.check(vocab_size=64)
    plain = warp(plain_logits(tiny(seed=5), (*PROMPT, *draft.tree.tokens[1:])))
    for node in range(1, 5):
        assert torch.allclose(draft.q[node], plain[len(PROMPT) - 2 + node], atol=1e-5)


@settings(max_examples=25, deadline=None)
@given(lengths=st.lists(st.integers(0, 4), min_size=1, max_size=5), seed=st.integers(0, 3))
def test_it_catches_up_from_any_commit(lengths: list[int], seed: int) -> None:
    """Whatever part of its guesses is kept, then another token: its next guess is the one of a
    drafter that reads the whole text afresh, and its cache is a prefix of the text."""
    drafter, text = small(), [*PROMPT]
    drafter.observe(Commit(tuple(text)))
    for number, kept in enumerate(lengths):
        draft = drafter.propose(text, RNG, depth=3, warp=GREEDY)
        fresh = small().propose(text, RNG, depth=3, warp=GREEDY)
        assert draft.tree == fresh.tree
        new = (*draft.tree.tokens[1 : 1 + kept], (7 * seed + number) % 64)
        text += new
        drafter.observe(Commit(new))
        assert drafter.length < len(text)
        assert drafter._cached == text[: drafter.length]


def test_forget_drops_guesses_and_is_always_safe() -> None:
    drafter = small()
    drafter.forget()
    drafter.observe(Commit(PROMPT))
    drafter.propose(PROMPT, RNG, depth=3, warp=GREEDY)
    assert drafter.length == len(PROMPT) + 2
    drafter.forget()
    drafter.forget()
    assert drafter.length == len(PROMPT) - 1
    drafter.reset()
    assert drafter.length == 0


def test_it_stops_drafting_when_it_is_unsure() -> None:
    """A draft that is 0.9 sure never gets past 0.99, and the volume shows beside the rate."""
    table = torch.full((4, 4), 0.1 / 3, dtype=torch.float64)
    table.fill_diagonal_(0.9)
    model = TableModel(table)
    strict = DraftModel(model, vocab_size=4, confidence=0.99)
    counted = acceptance(run(Target(model), strict, (1,), max_new_tokens=8))
    assert (counted.drafted_per_round, counted.rate) == (0, None)
    loose = DraftModel(model, vocab_size=4, confidence=0.8)  # 0.9, then 0.81, then 0.729
    trace = run(Target(model), loose, (1,), max_new_tokens=9, draft_length=4)
    assert [len(r.drafted.tokens) - 1 for r in trace.rounds] == [2, 2, 2]
    assert acceptance(trace).rate == 1.0


@pytest.mark.parametrize("confidence", [-0.1, 1.0])
def test_impossible_confidence_is_refused(confidence: float) -> None:
    with pytest.raises(BadInput, match="confidence"):
        DraftModel(tiny(), vocab_size=64, confidence=confidence)


def test_a_draft_that_cannot_forget_is_refused() -> None:
    model = TableModel(random_table(4, seed=0))
    model.config.layer_types = ["linear_attention"]
    with pytest.raises(UnsupportedModel, match="linear_attention"):
        DraftModel(model, vocab_size=4)


# Vocabularies.


def words(*names: str) -> Any:
    return SimpleNamespace(get_vocab=lambda: {name: i for i, name in enumerate(names)})


def test_same_tokenizers_pass() -> None:
    check_same_tokens(words("a", "b"), words("a", "b"))


def test_tokenizers_of_two_sizes_are_refused_by_size() -> None:
    with pytest.raises(BadInput) as caught:
        check_same_tokens(words("a", "b", "c"), words("a", "b"))
    assert "3 tokens" in str(caught.value)
    assert "2 tokens" in str(caught.value)


def test_tokenizers_that_differ_are_refused_by_the_first_id() -> None:
    with pytest.raises(BadInput, match="id 1 to be 'b' in both, got 'x'"):
        check_same_tokens(words("a", "b", "c"), words("a", "x", "y"))


def test_another_width_without_tokenizers_is_refused_before_any_forward() -> None:
    with pytest.raises(BadInput, match="64 token ids, got 32 token ids"):
        DraftModel(toy.tiny("llama", vocab_size=32), vocab_size=64)


def test_padded_widths_may_differ_when_the_tokens_agree() -> None:
    """Target width 64, draft width 60, 60 shared words: 60 to 63 are never drafted, but may be
    written, and the draft reads on past them."""
    same = words(*(f"w{i}" for i in range(60)))
    drafter = DraftModel(
        toy.tiny("llama", vocab_size=60, seed=0), vocab_size=64, tokenizers=(same, same)
    )
    target = Target(tiny())
    beyond = (1, 2, 63, 3)
    trace = run(target, drafter, beyond, max_new_tokens=30)
    assert trace.tokens == greedy_reference(tiny(), beyond, 30)
    for temperature in (0.0, 2.0):
        trace = run(target, drafter, beyond, max_new_tokens=30, temperature=temperature)
        assert all(t < 60 for r in trace.rounds for t in r.drafted.tokens[1:])
    assert max(trace.tokens) >= 60


def test_a_wider_draft_never_drafts_what_the_target_lacks() -> None:
    same = words(*(f"w{i}" for i in range(60)))
    drafter = DraftModel(
        toy.tiny("llama", vocab_size=80, seed=3), vocab_size=64, tokenizers=(same, same)
    )
    trace = run(Target(tiny()), drafter, PROMPT, max_new_tokens=20, temperature=2.0)
    assert all(t < 64 for r in trace.rounds for t in r.drafted.tokens)


@pytest.mark.parametrize("ids", [[0, 1, 64], [-1, 2], list(range(65))])
def test_a_vocabulary_map_that_cannot_be_is_refused(ids: list[int]) -> None:
    with pytest.raises(BadInput, match="ids of the draft vocabulary"):
        DraftModel(tiny(), vocab_size=64, ids=torch.tensor(ids))


def test_spread_puts_each_word_in_its_place() -> None:
    q = spread(torch.tensor([[0.25, 0.75]]), torch.tensor([4, 1]), vocab_size=6)
    assert q.tolist() == [[0, 0.75, 0, 0, 0.25, 0]]
