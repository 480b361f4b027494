"""Reported faults of greedy texts, ends and seeds, held for every family of drafters.

What is right comes from transformers' forward without a cache, or is written out by hand. The
vocabulary is small, so that guesses of heads which nobody trained come true now and then.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pytest
import torch
from helpers import distorted, greedy_reference, prompt_of, run

from labkit.drafters.base import Drafter
from labkit.drafters.draft_model import DraftModel
from labkit.drafters.eagle import eagle_drafter
from labkit.drafters.medusa import medusa_drafter
from labkit.drafters.mtp import mtp_drafter
from labkit.drafters.ngram import NGram
from labkit.drafters.nothing import Nothing
from labkit.drafters.on_head import HeadDrafter
from labkit.drafters.shapes import Chain, DynamicTree
from labkit.heads.eagle import head_config, random_head
from labkit.heads.medusa import medusa_config, random_heads
from labkit.heads.mtp import random_mtp
from labkit.target import Target
from labkit.toy import TableModel, tiny
from labkit.trace import Trace

WORDS = 12


@lru_cache
def model() -> Any:
    return tiny("llama", vocab_size=WORDS, seed=3, layers=1)


def eagle(shape: Chain | DynamicTree) -> HeadDrafter:
    head = random_head(head_config(model(), 3, boundaries=(0, 1)), model(), seed=1)
    return eagle_drafter(head, shape=shape)


def medusa() -> HeadDrafter:
    heads = random_heads(medusa_config(model(), heads=5), model(), seed=3)
    return medusa_drafter(heads, shape=DynamicTree(top_k=3, nodes=8))


DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "none": Nothing,
    "prompt lookup": NGram,
    "draft model": lambda: DraftModel(distorted(model()), vocab_size=WORDS),
    "itself": lambda: DraftModel(model(), vocab_size=WORDS),
    "eagle": lambda: eagle(Chain()),
    "eagle tree": lambda: eagle(DynamicTree(top_k=3, nodes=8)),
    "mtp": lambda: mtp_drafter(random_mtp(model(), modules=2, seed=3)),
    "medusa": medusa,
}
every_drafter = pytest.mark.parametrize("kind", DRAFTERS)


def prompt(length: int, seed: int = 6) -> tuple[int, ...]:
    return prompt_of(length, vocab_size=WORDS, seed=seed)


def decode(kind: str, text: tuple[int, ...], **options: Any) -> Trace:
    drafter = DRAFTERS[kind]()
    return run(Target(model(), needs=drafter.needs), drafter, text, **options)


# The text of a greedy run depends on the drafter, after a prompt of one token or of many.


@every_drafter
def test_short_and_long_prompts_are_continued_as_by_plain_decoding(kind: str) -> None:
    accepted = rejected = 0
    for length in (1, 17, 200):
        expected = greedy_reference(model(), prompt(length), 40)
        assert len(set(expected)) > 4  # not stuck at a token or two
        for draft_length in (1, 3, 5):
            trace = decode(kind, prompt(length), max_new_tokens=40, draft_length=draft_length)
            assert trace.tokens == expected, (length, draft_length)
            accepted += sum(r.accepted for r in trace.rounds)
            rejected += sum(r.accepted + 1 < len(r.drafted.tokens) for r in trace.rounds)
    assert (accepted > 0) == (kind != "none")  # kept guesses and roll-backs both
    assert (rejected > 0) == (kind not in ("none", "itself"))


# More tokens than were asked for.


@every_drafter
def test_no_token_too_many(kind: str) -> None:
    whole = greedy_reference(model(), prompt(17), 8)
    for count in range(1, 9):
        trace = decode(kind, prompt(17), max_new_tokens=count, draft_length=3)
        assert trace.tokens == whole[:count]


# A list of end tokens is not honoured; without any, a drafter crashes.

END_TOKENS = {"int": 9, "list": [2, 9], "tensor": torch.tensor([2, 9]), "one": torch.tensor(9)}


def counting() -> TableModel:
    """After i comes i + 1: from 5 on, the fourth token is 9."""
    return TableModel(torch.roll(torch.eye(WORDS, dtype=torch.float64), 1, dims=1))


@pytest.mark.parametrize("spelled", END_TOKENS)
def test_any_of_several_end_tokens_ends_the_text(spelled: str) -> None:
    """In every spelling, wherever in a draft the end token stands."""
    makers = (Nothing, NGram, lambda: DraftModel(counting(), vocab_size=WORDS))
    for make in makers:
        for draft_length in (1, 3, 8):
            options = {"max_new_tokens": 20, "draft_length": draft_length}
            trace = run(Target(counting()), make(), (5,), eos=END_TOKENS[spelled], **options)
            assert trace.tokens == (6, 7, 8, 9)
            assert trace.finished.reason == "eos"
            plain = run(Target(counting()), make(), (5,), eos=None, **options)
            assert len(plain.tokens) == 20


@every_drafter
def test_the_first_of_two_end_tokens_ends_the_text_and_none_leaves_it_at_its_length(
    kind: str,
) -> None:
    whole = greedy_reference(model(), prompt(17), 20)
    first, later = [i for i in range(8, 16) if whole[i] not in whole[:i]][:2]
    ends = [whole[later], whole[first]]
    cut = decode(kind, prompt(17), max_new_tokens=20, draft_length=3, eos=ends)
    assert cut.tokens == whole[: first + 1]
    assert decode(kind, prompt(17), max_new_tokens=20, draft_length=3, eos=None).tokens == whole


# A seed does not fix the text; or it changes a greedy one.


def untimed(trace: Trace) -> list[dict[str, Any]]:
    clocks = ("seconds", "forward_seconds")
    return [{k: v for k, v in e.items() if k not in clocks} for e in trace.to_json()["events"]]


@every_drafter
def test_a_seed_fixes_text_and_trace(kind: str) -> None:
    """Six runs, three with one drafter and three with a new one each."""
    options: dict[str, Any] = {"temperature": 1.0, "seed": 42, "max_new_tokens": 8}
    drafter = DRAFTERS[kind]()
    where = Target(model(), needs=drafter.needs)
    runs = [run(where, drafter, prompt(5), **options) for _ in range(3)]
    runs += [decode(kind, prompt(5), **options) for _ in range(3)]
    assert all(untimed(trace) == untimed(runs[0]) for trace in runs)
    assert runs[0].tokens != decode(kind, prompt(5), **options | {"seed": 43}).tokens


@every_drafter
def test_seeds_are_for_sampled_texts(kind: str) -> None:
    texts: dict[float, set[tuple[int, ...]]] = {0.0: set(), 1.0: set()}
    for temperature, seen in texts.items():
        for seed in range(10):
            options = {"seed": seed, "temperature": temperature, "max_new_tokens": 6}
            seen.add(decode(kind, prompt(5), **options).tokens)
    assert len(texts[0.0]) == 1
    assert len(texts[1.0]) >= 5
