"""Targets with recurrent layers: their states against transformers' own, one token at a time.

Everything that a verdict, an interrupt or a roll-back can do to a state, for both families; four
broken versions show that the comparisons would notice.
"""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import pytest
import torch
from helpers import (
    advance,
    branching,
    drafters,
    greedy_reference,
    knows,
    plain_logits,
    prompt_of,
    run,
)
from torch import Tensor
from transformers import DynamicCache

from labkit import toy
from labkit.cache import _cache_argument
from labkit.config import DecodeConfig
from labkit.decode import speculate
from labkit.draft import Draft
from labkit.drafters.draft_model import DraftModel
from labkit.drafters.scripted import Scripted
from labkit.errors import BadInput
from labkit.events import Committed, Prefilled, Scored
from labkit.law import distance, exact_law
from labkit.metrics import cost
from labkit.recurrent import States
from labkit.sampling import Rng
from labkit.target import Target
from labkit.trace import Trace
from labkit.tree import DraftTree
from labkit.viz import kv_slots

K, COUNT = 4, 20
PROMPT = prompt_of(9)
CHAIN = (PROMPT[-1], 5, 6, 7, 8)  # the pending token and K drafted ones
families = pytest.mark.parametrize("family", toy.HYBRIDS)
accepted_lengths = pytest.mark.parametrize("accepted", range(K + 1))


@lru_cache
def hybrid(family: str = "qwen3_5", *, attention: str = "sdpa", vocab_size: int = 64) -> Any:
    """Recurrent, attention, recurrent: what the last layer reads depends on both others."""
    return toy.tiny(family, layers=3, attention=attention, vocab_size=vocab_size)


@lru_cache
@torch.inference_mode()
def plain_states(family: str, tokens: tuple[int, ...]) -> tuple[Tensor, ...]:
    """Windows and states after ``tokens``, by transformers' own cache, one token at a time."""
    model = hybrid(family)
    cache = DynamicCache(config=model.config)
    for position, token in enumerate(tokens):
        model(
            input_ids=torch.tensor([[token]]),
            position_ids=torch.tensor([[position]]),
            use_cache=True,
            **{_cache_argument(model): cache},
        )
    layers = [cache.layers[0], cache.layers[2]]
    return tuple(t for x in layers for t in (x.conv_states[0], x.recurrent_states[0]))


def kept_states(target: Target) -> tuple[Tensor, ...]:
    """What is kept for the committed text, in the order of `plain_states`."""
    states = target._cache.states
    return tuple(t for state in states._kept[target.length] for t in state if t is not None)


def gap(family: str, target: Target, tokens: tuple[int, ...]) -> float:
    """Largest difference between the kept states and a plain run's over ``tokens``, in units of
    the largest number of each where that is above 1 (windows hold numbers up to 4 here)."""
    pairs = zip(kept_states(target), plain_states(family, tokens), strict=True)
    return max(float((a - b).abs().max() / b.abs().max().clamp(min=1)) for a, b in pairs)


def filled(family: str = "qwen3_5", **options: Any) -> Target:
    target = Target(hybrid(family), **options)
    target.prefill(PROMPT)
    return target


def commit(target: Target, accepted: int) -> None:
    with target.speculation():
        target.score(DraftTree.chain(CHAIN))
        target.commit(tuple(range(accepted + 1)))


@accepted_lengths
@families
def test_states_after_any_verdict_are_those_of_a_plain_run(family: str, accepted: int) -> None:
    target = filled(family)
    commit(target, accepted)
    text = (*PROMPT[:-1], *CHAIN[: accepted + 1])
    assert gap(family, target, text) < 1e-5
    assert target.replayed == (0 if accepted == K else accepted + 1)
    assert target.forwards == 2  # the prompt and the draft: reading again is not a forward
    with target.speculation():
        logits = target.score(DraftTree.chain((3,))).logits[0]
    assert torch.allclose(logits, plain_logits(hybrid(family), (*text, 3))[-1], atol=1e-3)
    # negative control: one token more or less is another state
    assert gap(family, target, text[:-1]) > 1e-2


@families
def test_blocks_after_a_text_start_from_its_state(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers hands the earlier state to both forms of the rule, that for one token and that
    for blocks; were it dropped, prompts in blocks would show it."""
    monkeypatch.setattr("labkit.target._PREFILL_BLOCK", 3)
    target = filled(family)
    assert target.forwards == 3
    assert gap(family, target, PROMPT[:-1]) < 1e-5


@pytest.mark.parametrize("error", [None, KeyboardInterrupt, RuntimeError, GeneratorExit])
@families
def test_what_was_not_committed_leaves_no_trace(
    family: str, error: type[BaseException] | None
) -> None:
    """Bit for bit, in what is kept and in what the layers start from."""
    target = filled(family)
    before = [t.clone() for t in kept_states(target)]
    first = target.score(DraftTree.chain(CHAIN)).logits
    target.forget()

    def leave() -> None:
        with target.speculation():
            target.score(DraftTree.chain((PROMPT[-1], 1, 2)))
            if error:
                raise error

    if error:
        with pytest.raises(error):
            leave()
    else:
        leave()
    assert target.slots_used == target.length == len(PROMPT) - 1
    assert all(map(torch.equal, kept_states(target), before))
    target._cache.states.restore(target.length)
    layers = target._cache.states.layers.values()
    assert all(map(torch.equal, [t for x in layers for t in x.state if t is not None], before))
    assert torch.equal(target.score(DraftTree.chain(CHAIN)).logits, first)


@contextmanager
def interrupted(target: Target, *, at: int) -> Iterator[None]:
    """The ``at``-th call of a mixer from now on is interrupted, before or after its work."""
    calls = itertools.count(1)

    def stop(*_: Any, **__: Any) -> None:
        if next(calls) == at:
            raise KeyboardInterrupt

    mixers = target._cache.states._mixers
    handles = [mixer.register_forward_hook(stop) for mixer in mixers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_an_interrupt_inside_a_round_leaves_the_last_commit(at: int) -> None:
    """Calls 1 and 2 are those of the forward, 3 and 4 those of reading again."""
    target = filled()
    commit(target, 2)
    before = [t.clone() for t in kept_states(target)]
    length = target.length
    with interrupted(target, at=at), pytest.raises(KeyboardInterrupt):
        commit(target, 1)
    assert target.length == target.slots_used == length
    target._cache.table.check()
    assert all(map(torch.equal, kept_states(target), before))
    commit(target, 1)
    text = (*PROMPT[:-1], *CHAIN[:3], *CHAIN[:2])
    assert gap("qwen3_5", target, text) < 1e-5


@pytest.mark.parametrize("at", range(1, 30, 4))
def test_a_run_that_was_interrupted_can_be_started_again(at: int) -> None:
    model = hybrid()
    text = greedy_reference(model, PROMPT, COUNT)
    target, drafter = Target(model), DraftModel(model, vocab_size=64)
    with interrupted(target, at=at), pytest.raises(KeyboardInterrupt):
        run(target, drafter, PROMPT, max_new_tokens=COUNT, draft_length=3)
    assert target.slots_used == target.length
    assert run(target, drafter, PROMPT, max_new_tokens=COUNT, draft_length=3).tokens == text


# Roll-back to a length.


@pytest.mark.parametrize("length", [0, 3, 8, 10, 11])
@families
def test_truncating_gives_the_state_of_the_shorter_text(family: str, length: int) -> None:
    target = filled(family)
    commit(target, 2)
    text = (*PROMPT[:-1], *CHAIN[:3])
    target.truncate(length)
    assert target.length == target.slots_used == length
    if length:
        assert gap(family, target, text[:length]) < 1e-5
    with target.speculation():
        logits = target.score(DraftTree.chain((3,))).logits[0]
    plain = plain_logits(hybrid(family), (*text[:length], 3))[-1]
    assert torch.allclose(logits, plain, atol=1e-3)


@accepted_lengths
def test_appended_tokens_are_taken_out_again_without_reading(accepted: int) -> None:
    """As a draft model does in every round: the kept states come back bit for bit."""
    target = filled()
    seen = [(target.length, [t.clone() for t in kept_states(target)])]
    for token in CHAIN:
        target.append(torch.tensor([token]))
        seen.append((target.length, [t.clone() for t in kept_states(target)]))
    forwards = target.forwards
    length, states = seen[accepted]
    target.truncate(length)
    assert target.length == length
    assert all(map(torch.equal, kept_states(target), states))
    assert target.forwards == forwards


def test_a_stale_state_is_not_taken_for_the_new_text() -> None:
    target = filled()
    for token in CHAIN:
        target.append(torch.tensor([token]))
    target.truncate(len(PROMPT))
    target.append(torch.tensor([9, 10]))
    target.append(torch.tensor([11]))
    target.truncate(len(PROMPT) + 1)  # between two appends of the new text, inside the old one
    assert gap("qwen3_5", target, (*PROMPT, 9)) < 1e-5


@pytest.mark.parametrize("length", [-1, 12])
def test_truncating_outside_the_text_is_refused(length: int) -> None:
    target = filled()
    commit(target, 2)
    with pytest.raises(ValueError, match=r"outside 0\.\.11"):
        target.truncate(length)
    assert target.length == 11


# Whole runs.


@pytest.mark.parametrize("width", [1, 8])
@pytest.mark.parametrize("kind", ["nothing", "ngram", "draft model", "self-draft", "ruined"])
@families
def test_greedy_text_is_that_of_plain_decoding(family: str, kind: str, width: int) -> None:
    model = hybrid(family)
    text = greedy_reference(model, PROMPT, COUNT)
    assert len(set(text)) > 4
    drafter = drafters(model, text, start=len(PROMPT))[kind]()
    target = Target(model, width=width)
    trace = run(target, drafter, PROMPT, max_new_tokens=COUNT, draft_length=K)
    assert trace.tokens == text
    assert target.length == len(PROMPT) + COUNT - 1
    assert gap(family, target, (*PROMPT, *text)[:-1]) < 1e-5


def every_verdict(text: tuple[int, ...]) -> Scripted:
    """Rounds that accept 0, 1, 2 and all 3 drafted tokens, and then some more."""
    wrong = {0, 2, 5, 14, 16}
    return knows(text, start=len(PROMPT), right=lambda at: at not in wrong)


@families
def test_events_count_what_was_read_again(family: str) -> None:
    model = hybrid(family)
    text = greedy_reference(model, PROMPT, COUNT)
    trace = run(
        Target(model), every_verdict(text), PROMPT, max_new_tokens=COUNT, draft_length=K - 1
    )
    assert trace.tokens == text
    seen = set()
    for r in trace.rounds:
        assert r.committed is not None
        whole = r.accepted == len(r.drafted.tokens) - 1
        seen.add(r.accepted)
        assert r.committed.replayed == (0 if whole else r.accepted + 1)
        assert r.committed.forwards == 0
        assert r.committed.slots_after == r.committed.slots_before - len(r.committed.freed_slots)
        assert 0 <= r.committed.forward_seconds <= r.committed.seconds
    assert {0, 1, 2, 3} <= seen
    assert cost(trace).replayed == sum(r.committed.replayed for r in trace.rounds if r.committed)
    assert Trace.from_json(trace.to_json()).to_json() == trace.to_json()


def test_traces_of_attention_alone_say_nothing_of_it() -> None:
    """So that they stay as they were, byte for byte."""
    model = toy.tiny("llama")
    text = greedy_reference(model, PROMPT, COUNT)
    trace = run(Target(model), every_verdict(text), PROMPT, max_new_tokens=COUNT)
    assert "replayed" not in trace.dumps()
    assert "recurrent" not in trace.dumps()


def test_a_hybrid_draft_model_reads_nothing_twice() -> None:
    """One forward per drafted token, as with attention: nothing is added for its roll-backs."""
    model = hybrid()
    text = greedy_reference(model, PROMPT, COUNT)
    drafter = drafters(model, text, start=len(PROMPT))["draft model"]()
    assert isinstance(drafter, DraftModel)
    trace = run(Target(model), drafter, PROMPT, max_new_tokens=COUNT, draft_length=K)
    assert trace.tokens == text
    drafted = sum(len(r.drafted.tokens) - 1 for r in trace.rounds)
    assert 0 < sum(r.accepted for r in trace.rounds) < drafted  # it was rolled back
    assert drafter._lm.forwards == drafted


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@families
def test_activations_are_those_of_transformers(family: str, attention: str) -> None:
    model = hybrid(family, attention=attention)
    names = ("h0", "h1", "h2", "h3", "final")
    target = Target(model, needs=names)
    hidden = target.prefill(PROMPT)
    with target.speculation():
        scores = target.score(DraftTree.chain(CHAIN))
        target.commit((0, 1))
    with torch.inference_mode():
        ids = torch.tensor([[*PROMPT, *CHAIN[1:]]])
        out = model(input_ids=ids, output_hidden_states=True, use_cache=False)
    theirs = dict(zip(("h0", "h1", "h2", "final"), out.hidden_states, strict=True))
    assert set(scores.hidden) == set(names)
    for name, plain in theirs.items():
        ours = torch.cat((hidden[name], scores.hidden[name]))
        assert torch.allclose(ours, plain[0], atol=1e-4), name


# Chains only.

TREE = DraftTree((PROMPT[-1], 4, 5), (-1, 0, 0))


def test_a_tree_is_refused_before_any_work() -> None:
    target = filled()
    forwards, slots = target.forwards, target.slots_used
    with pytest.raises(BadInput, match=r"expected a chain.*node 2 below node 0"):
        target.score(TREE)
    assert (target.forwards, target.slots_used) == (forwards, slots)
    commit(target, 1)  # and nothing is left in the way


def test_a_run_with_trees_ends_before_the_target_works() -> None:
    model = hybrid()
    text = greedy_reference(model, PROMPT, COUNT)
    target = Target(model)
    events = speculate(target, branching(text, start=len(PROMPT)), PROMPT, config=DecodeConfig())
    with pytest.raises(BadInput, match="chain"):
        advance(events, until=lambda event: isinstance(event, Scored | Committed))
    assert target.slots_used == len(PROMPT) - 1


# The law of one round, exactly: two words, three tokens, drafts of two.

Q = toy.random_table(2, seed=2)


def drawn(tokens: tuple[int, ...], rng: Rng, depth: int) -> Draft:
    ids, q = [tokens[-1]], [None]
    for _ in range(depth):
        q.append(Q[ids[-1]].float())
        ids.append(int(rng.pick(q[-1])))
    return Draft(DraftTree.chain(ids), tuple(q))


def law_under(family: str, states: type[States]) -> dict[tuple[int, ...], float]:
    target = Target(hybrid(family, vocab_size=2))
    target._cache.states.__class__ = states

    def once(rng: Rng) -> tuple[int, ...]:
        settings = {"max_new_tokens": 3, "draft_length": 2, "temperature": 1.0}
        return run(target, Scripted(drawn), (0, 1, 1), rng=rng, **settings).tokens

    return exact_law(once)


def plain_law(family: str) -> dict[tuple[int, ...], float]:
    law = {}
    for tokens in itertools.product(range(2), repeat=3):
        p = torch.softmax(plain_logits(hybrid(family, vocab_size=2), (0, 1, 1, *tokens)), -1)
        law[tokens] = float(torch.stack([p[2 + i, t] for i, t in enumerate(tokens)]).prod())
    return law


@families
def test_the_law_is_the_targets_own(family: str) -> None:
    assert distance(law_under(family, States), plain_law(family)) < 1e-4


# Broken versions.


class NeverRestored(States):
    """Every forward goes on from wherever the last one ended."""

    def restore(self, length: int) -> None:
        if length == 0:
            super().restore(length)


class KeepsTheDraft(States):
    """The state after the whole draft is taken for that after the accepted part."""

    def read_again(self, inputs: Any, count: int, *, start: int, cache: Any) -> None:
        pass


class OneShort(States):
    """The last accepted token is not read again."""

    def read_again(self, inputs: Any, count: int, *, start: int, cache: Any) -> None:
        self.restore(start)
        if count > 1:
            super().read_again(inputs, count - 1, start=start, cache=cache)


class Twice(States):
    """The accepted tokens are read again twice."""

    def read_again(self, inputs: Any, count: int, *, start: int, cache: Any) -> None:
        super().read_again(inputs, count, start=start, cache=cache)
        self._kept |= {start: tuple(layer.state for layer in self.layers.values())}
        super().read_again(inputs, count, start=start, cache=cache)


MUTANTS = (NeverRestored, KeepsTheDraft, OneShort, Twice)


@pytest.mark.parametrize("mutant", MUTANTS)
@families
def test_broken_states_show(family: str, mutant: type[States]) -> None:
    target = filled(family)
    target._cache.states.__class__ = mutant
    commit(target, 1)
    assert gap(family, target, (*PROMPT[:-1], *CHAIN[:2])) > 1e-2
    model = hybrid(family)
    text = greedy_reference(model, PROMPT, COUNT)
    broken = Target(model)
    broken._cache.states.__class__ = mutant
    trace = run(broken, every_verdict(text), PROMPT, max_new_tokens=COUNT, draft_length=K - 1)
    assert trace.tokens != text


@pytest.mark.parametrize("mutant", MUTANTS)
def test_broken_states_have_another_law(mutant: type[States]) -> None:
    assert distance(law_under("qwen3_5", mutant), plain_law("qwen3_5")) > 1e-3


# What a reader is told.


def test_the_picture_of_slots_names_the_layers_without_any() -> None:
    model = hybrid()
    text = greedy_reference(model, PROMPT, COUNT)
    trace = run(
        Target(model), every_verdict(text), PROMPT, max_new_tokens=COUNT, draft_length=K - 1
    )
    assert trace.prefilled == next(e for e in trace.events if isinstance(e, Prefilled))
    assert trace.prefilled.recurrent_layers == 2
    picture = kv_slots(trace)
    assert "attention layers" in picture.svg
    assert "2 recurrent layers have no slots" in str(picture)
    plain = kv_slots(run(Target(toy.tiny("llama")), every_verdict(text), PROMPT))
    assert "recurrent" not in plain.svg + str(plain)
    assert "attention layers" not in plain.svg
