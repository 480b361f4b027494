"""Faults that users of other speculative decoders have reported, each as a small check.

Every test names the kind of fault. It drives the whole engine, and what is right comes from
outside of it: from transformers' forward without a cache, from exact enumeration, or by hand.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from helpers import WINDOW, distorted, greedy_reference, prompt_of, run, tiny
from torch import Tensor

from labkit.config import DecodeConfig
from labkit.decode import speculate
from labkit.draft import Draft
from labkit.drafters.base import Drafter
from labkit.drafters.draft_model import DraftModel
from labkit.drafters.medusa import medusa_drafter
from labkit.drafters.mtp import mtp_drafter
from labkit.drafters.ngram import NGram
from labkit.drafters.scripted import Scripted
from labkit.drafters.shapes import DynamicTree
from labkit.events import Committed
from labkit.heads.medusa import MedusaHeads, medusa_config, random_heads
from labkit.heads.mtp import GENERIC, random_mtp
from labkit.law import exact_law
from labkit.sampling import Flip, Rng
from labkit.streaming import TextStream
from labkit.target import Target
from labkit.toy import TableModel
from labkit.trace import Trace
from labkit.tree import DraftTree


def target_model(context: int = 512) -> Any:
    return tiny("llama", attention="eager", seed=0, context=context)


def draft_model() -> Any:
    return tiny("llama", attention="eager", seed=1)


def drafting(model: Any) -> DraftModel:
    return DraftModel(model, vocab_size=64)


def parallel(model: Any) -> MedusaHeads:
    return random_heads(medusa_config(model, "medusa", heads=4), model)


def same_everywhere(*row: float) -> TableModel:
    """A model whose next token has the distribution ``row``, whatever came before."""
    return TableModel(torch.tensor(row, dtype=torch.float64).expand(len(row), -1).clone())


def certain(tokens: Sequence[int]) -> Scripted:
    """Drafts these tokens as siblings, in order, as certain guesses."""

    def script(text: tuple[int, ...], _rng: Rng, depth: int) -> Draft:
        siblings = tokens if depth else ()
        tree = DraftTree((text[-1], *siblings), (-1, *[0] * len(siblings)))
        return Draft.deterministic(tree)

    return Scripted(script)


# One checkpoint as target and as draft.


def test_a_model_that_drafts_for_itself_is_never_wrong() -> None:
    where, prompt = Target(target_model()), prompt_of(17)
    trace = run(where, drafting(target_model()), prompt, max_new_tokens=20, draft_length=4)
    assert trace.tokens == greedy_reference(target_model(), prompt, 20)
    assert [(len(r.drafted.tokens) - 1, r.accepted) for r in trace.rounds] == [(4, 4)] * 4
    assert [len(r.committed.tokens) for r in trace.rounds] == [5] * 4


# A draft that takes its argmax is judged as if it had been drawn.


def first_token(drafter: Drafter, **options: Any) -> Callable[[Rng], tuple[int, bool]]:
    """The first token of a run, and whether the draft supplied it."""

    def procedure(rng: Rng) -> tuple[int, bool]:
        settings: dict[str, Any] = {"max_new_tokens": 2, "draft_length": 1, "temperature": 1.0}
        where = Target(same_everywhere(*options["p"]))
        events = speculate(where, drafter, (0,), config=DecodeConfig(**settings), rng=rng)
        first = next(event for event in events if isinstance(event, Committed))
        return first.tokens[0], first.sources[0] == "draft"

    return procedure


def of_token(law: dict[tuple[int, bool], float], token: int) -> float:
    return law.get((token, True), 0.0) + law.get((token, False), 0.0)


def test_a_drawn_draft_leaves_the_targets_law() -> None:
    drafter = DraftModel(same_everywhere(0.8, 0.2), vocab_size=2)
    law = exact_law(first_token(drafter, p=(0.6, 0.4)))
    assert of_token(law, 0) == pytest.approx(0.6, abs=1e-12)
    assert law[0, True] + law[1, True] == pytest.approx(0.8, abs=1e-12)  # acceptance


def test_an_argmax_draft_with_the_q_of_a_drawn_one_would_be_noticed() -> None:
    """The reported fault itself: 0.75 in place of 0.6."""

    def script(text: tuple[int, ...], _rng: Rng, _depth: int) -> Draft:
        q = torch.tensor([0.8, 0.2], dtype=torch.float64)
        return Draft(DraftTree.chain((text[-1], 0)), (None, q))

    law = exact_law(first_token(Scripted(script), p=(0.6, 0.4)))
    assert of_token(law, 0) == pytest.approx(0.75, abs=1e-12)


# The accepted prefix is counted from the accept flags.


class Flags(Rng):
    """Answers the accept tests as told and picks the likeliest token."""

    def __init__(self, flags: Sequence[bool]) -> None:
        self.left = list(flags)

    def flip(self, probability: float) -> Flip:
        return Flip(self.left.pop(0), 0.5)

    def pick(self, distribution: Tensor) -> Tensor:
        return distribution.argmax()

    def pick_ahead(self, distributions: Callable[[], Tensor]) -> Tensor | None:
        return None

    def mark(self) -> Callable[[], None]:
        left = [*self.left]
        return lambda: self.left.__setitem__(slice(None), left)


@pytest.mark.parametrize(
    ("flags", "accepted", "committed"),
    [
        ((True, False, True, True), 1, (1, 2)),  # the correction: likeliest after 1 but for 2 is 2
        ((True, True, True, True), 4, (1, 2, 3, 4, 5)),  # and a bonus after the fourth
    ],
)
def test_what_follows_a_rejection_is_not_accepted(
    flags: tuple[bool, ...], accepted: int, committed: tuple[int, ...]
) -> None:
    following = torch.roll(torch.eye(8, dtype=torch.float64), 1, dims=1)  # after i comes i + 1
    table = 0.9 * following + 0.1 / 8
    drafted = (1, 2, 3, 4) if all(flags) else (1, 7, 3, 4)

    def script(text: tuple[int, ...], _rng: Rng, _depth: int) -> Draft:
        return Draft.deterministic(DraftTree.chain((text[-1], *drafted)))

    config = DecodeConfig(max_new_tokens=9, draft_length=4, temperature=1.0)
    events = speculate(
        Target(TableModel(table)), Scripted(script), (0,), config=config, rng=Flags(flags)
    )
    first = next(event for event in events if isinstance(event, Committed))
    assert first.sources.count("draft") == accepted
    assert first.tokens == committed


# Is a draft probability of 1 right for certain candidates of a tree?


def test_certain_candidates_in_order_leave_the_targets_law_and_are_labelled() -> None:
    law = exact_law(first_token(certain([0, 1]), p=(0.5, 0.3, 0.2)))
    told = [of_token(law, token) for token in range(3)]
    assert told == pytest.approx([0.5, 0.3, 0.2], abs=1e-12)
    options: dict[str, Any] = {"temperature": 1.0, "detail": "full", "max_new_tokens": 2}
    trace = run(Target(same_everywhere(0.5, 0.3, 0.2)), certain([0, 1]), (0,), **options)
    assert trace.rounds[0].drafted.deterministic
    assert trace.rounds[0].drafted.q == (None, 1.0, 1.0)


# A penalty has no effect under speculation.


def test_a_penalty_acts_at_every_drafted_position() -> None:
    logits = torch.full((8, 8), -9.0, dtype=torch.float64)
    logits[:, 5], logits[:, 6] = 5.0, 4.0
    seen: list[int] = []

    def spy(ids: Tensor, scores: Tensor) -> Tensor:
        seen.append(ids.shape[1])
        return scores

    def script(text: tuple[int, ...], _rng: Rng, depth: int) -> Draft:
        return Draft.deterministic(DraftTree.chain((text[-1], *[5] * depth)))

    where = Target(TableModel(torch.softmax(logits, -1)))
    where.model.table.weight.data = logits
    options: dict[str, Any] = {"max_new_tokens": 8, "draft_length": 4, "processors": [spy]}
    trace = run(where, Scripted(script), (1, 2, 3), repetition_penalty=2.0, **options)
    assert trace.tokens == (5, 6, 5, 5, 5, 5, 5, 5)
    assert seen[:5] == [3, 4, 5, 6, 7]  # n, n + 1, ..., n + K
    assert run(where, Scripted(script), (1, 2, 3), **options).tokens == (5,) * 8


# An option is dropped without a word.


def test_temperature_is_obeyed() -> None:
    """4000 tokens, four equally likely: a right engine puts one of the four counts outside
    1000 +- 120 with probability below 1e-4 (binomial, sd 27.4: beyond four of them)."""
    where, counts = Target(same_everywhere(*[0.25] * 4)), [0] * 4
    for seed in range(40):
        trace = run(where, NGram(), (0, 1, 2), temperature=1.0, seed=seed, max_new_tokens=100)
        for token in trace.tokens:
            counts[token] += 1
    assert sum(counts) == 4000
    assert all(abs(count - 1000) <= 120 for count in counts)


@pytest.mark.parametrize("name", ["frequency_penalty", "typical_p", "num_beams"])
def test_an_option_that_is_not_supported_is_refused_by_name(name: str) -> None:
    with pytest.raises(TypeError, match=name):
        DecodeConfig(**{name: 1})


# An end token inside an accepted block.


def test_an_accepted_end_token_ends_text_and_stream() -> None:
    prompt, text = next(
        (prompt, text)
        for prompt in (prompt_of(17, seed=seed) for seed in range(50))
        for text in [greedy_reference(target_model(), prompt, 3)]
        if text[2] not in text[:2]
    )
    stream = TextStream(lambda ids: "".join(chr(64 + i) for i in ids))
    options: dict[str, Any] = {"eos": text[2], "draft_length": 8, "max_new_tokens": 20}
    trace = run(Target(target_model()), drafting(target_model()), prompt, text=stream, **options)
    assert trace.tokens == text
    assert trace.text == "".join(chr(64 + i) for i in text)
    assert trace.finished.reason == "eos"


# Drafting past the context limit.


def test_the_context_limit_shortens_the_draft_and_ends_the_text() -> None:
    model, prompt = target_model(context=64), prompt_of(60)
    trace = run(Target(model), drafting(model), prompt, max_new_tokens=10, draft_length=5)
    assert trace.tokens == greedy_reference(model, prompt, 4)
    assert trace.finished.reason == "context_limit"
    assert [r.drafted.limit for r in trace.rounds] == [3]  # not 5


# The edges of rolling a cache back.


def test_rolling_back_to_nothing_leaves_nothing() -> None:
    where = Target(target_model())
    where.prefill(prompt_of(4))
    assert where.length == 3
    with pytest.raises(ValueError, match="-2"):
        where.truncate(3 - 5)
    assert where.length == 3
    where.truncate(0)
    assert (where.length, where.slots_used) == (0, 0)


# A sliding window is reached while drafts are rolled back.

ON_WINDOWS: dict[str, Callable[[Any], Drafter]] = {
    "ngram": lambda model: NGram(),
    "draft": lambda model: drafting(distorted(model)),
    "mtp": lambda model: mtp_drafter(random_mtp(model, GENERIC)),
    "medusa": lambda model: medusa_drafter(parallel(model), shape=DynamicTree(top_k=3)),
}
windows = pytest.mark.parametrize("family", ["mistral", "gemma3"])  # in all layers, in some


def past_the_window(family: str, decoder: str, *, window: int = WINDOW) -> tuple[Trace, bool]:
    """A run from 6 tokens to 36, and whether it wrote what transformers' forward says."""
    model, prompt = tiny(family, attention="eager"), prompt_of(6)
    drafter = ON_WINDOWS[decoder](model)
    where = Target(model, needs=drafter.needs)
    assert where._cache.window == WINDOW == 8
    where._cache.window = window
    trace = run(where, drafter, prompt, max_new_tokens=30, draft_length=4)
    return trace, trace.tokens == greedy_reference(model, prompt, 30)


@windows
@pytest.mark.parametrize("decoder", ON_WINDOWS)
def test_text_goes_on_unchanged_beyond_a_sliding_window(family: str, decoder: str) -> None:
    trace, right = past_the_window(family, decoder)
    assert right
    assert any(r.accepted < len(r.drafted.tokens) - 1 for r in trace.rounds[8:])  # rolled back


@windows
@pytest.mark.parametrize("decoder", ON_WINDOWS)
def test_a_mask_that_ignores_the_window_would_be_noticed(family: str, decoder: str) -> None:
    """Negative control: keys beyond the window stay in sight."""
    assert not past_the_window(family, decoder, window=1_000)[1]


# Caches that are wrong or slow on long prompts.


@pytest.mark.parametrize("length", [1, 17, 200])
def test_the_cache_changes_nothing_but_the_work(length: int) -> None:
    prompt, positions = prompt_of(length), []
    where, drafter = Target(target_model()), drafting(draft_model())
    hook = where.model.register_forward_pre_hook(
        lambda _model, _args, kwargs: positions.append(kwargs["input_ids"].shape[1]),
        with_kwargs=True,
    )
    config = DecodeConfig(max_new_tokens=20, draft_length=3)
    committed, gaps, drafted, tokens = length, set(), [], []
    try:
        for event in speculate(where, drafter, prompt, config=config):
            if event.kind == "drafted":
                drafted.append(len(event.tokens) - 1)
            if isinstance(event, Committed):
                tokens += event.tokens
                committed += len(event.tokens)
                # the draft has one token yet to read, two when all of its own were accepted; more
                # when the end of the run left it no room to draft
                unread = 2 if event.sources.count("draft") == 3 else 1
                behind = committed - drafter.length - unread if drafted[-1] == 3 else 0
                gaps.add((committed - where.length, behind))
    finally:
        hook.remove()
    assert tuple(tokens) == greedy_reference(target_model(), prompt, 20)
    assert gaps == {(1, 0)}
    assert sum(positions) == length - 1 + sum(drafted) + len(
        drafted
    )  # the prompt once, then K + 1 a round
