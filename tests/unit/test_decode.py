"""The loop: order of events, where a run ends, who wrote what, and refusals before any work."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from helpers import (
    branching,
    greedy_reference,
    knows,
    never_right,
    plain_logits,
    prompt_of,
    run,
    tiny,
)

from labkit.config import DecodeConfig
from labkit.decode import autoregress, near_ties, speculate
from labkit.draft import Draft
from labkit.drafters.draft_model import DraftModel
from labkit.drafters.ngram import NGram
from labkit.drafters.nothing import Nothing
from labkit.drafters.scripted import Scripted
from labkit.errors import BadInput, LabError
from labkit.events import Committed, Event, Finished, Scored
from labkit.metrics import acceptance
from labkit.streaming import TextStream
from labkit.target import Target
from labkit.toy import TableModel
from labkit.trace import Trace
from labkit.tree import DraftTree

PROMPT = prompt_of(17)
START = len(PROMPT)


def text(count: int = 24) -> tuple[int, ...]:
    """What the target writes after PROMPT when it decodes alone."""
    return greedy_reference(tiny(), PROMPT, count)


def target(**options: Any) -> Target:
    return Target(tiny(**options))


def self_draft() -> DraftModel:
    return DraftModel(tiny(), vocab_size=64)


def letters(ids: Any) -> str:
    return "".join(chr(64 + i) for i in ids)


# The order of events and what they say.


def test_events_come_in_their_order() -> None:
    trace = run(target(), self_draft(), PROMPT, max_new_tokens=10, draft_length=4)
    kinds = [event.kind for event in trace.events]
    per_round = ["drafted", "scored", "verified", "committed"]
    assert kinds == ["started", "prefilled", *per_round * 2, "finished"]
    assert [e.round for e in trace.events] == [0, 0, *[1] * 4, *[2] * 4, 2]


def plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(plain, value))
    return (
        value is None or type(value) in (int, float, str, bool) or type(value).__name__ == "Trial"
    )


@pytest.mark.parametrize("detail", ["timing", "summary", "full"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_events_hold_no_tensors(detail: Any, temperature: float) -> None:
    trace = run(target(), self_draft(), PROMPT, detail=detail, temperature=temperature)
    for event in trace.events:
        for name in event.__dataclass_fields__:
            assert plain(getattr(event, name)), (event.kind, name)


def test_detail_adds_fields_and_changes_nothing_else() -> None:
    runs = {
        detail: run(target(), self_draft(), PROMPT, detail=detail, temperature=1.0, seed=3)
        for detail in ("timing", "summary", "full")
    }
    assert len({trace.tokens for trace in runs.values()}) == 1
    first = {detail: trace.rounds[0] for detail, trace in runs.items()}
    assert not first["timing"].verified.trials
    assert first["summary"].verified.trials == first["full"].verified.trials != ()
    assert not first["summary"].drafted.q_top
    assert first["full"].drafted.q[0] is None
    assert len(first["full"].drafted.q_top) == len(first["full"].scored.p_top) == 5
    assert first["full"].verified.residual_top


def test_slots_in_events_follow_the_round() -> None:
    trace = run(target(), branching(text(), start=START), PROMPT, max_new_tokens=12, draft_length=3)
    length = START - 1
    for round_ in trace.rounds:
        nodes = len(round_.drafted.tokens)
        assert round_.scored.context == round_.scored.slots_before == length
        assert round_.scored.slots_after == length + nodes
        kept, freed = round_.committed.kept_slots, round_.committed.freed_slots
        assert sorted(kept + freed) == sorted(round_.scored.node_slots)
        length += len(kept)
        assert round_.committed.slots_after == length


def test_the_draft_of_certain_tokens_is_labelled() -> None:
    sure = run(target(), NGram(), PROMPT, temperature=1.0, detail="full").rounds[0]
    drawn = run(target(), self_draft(), PROMPT, temperature=1.0, detail="full").rounds[0]
    assert sure.drafted.deterministic
    assert all(q == 1.0 for q in sure.drafted.q[1:])
    assert not drawn.drafted.deterministic
    assert all(0 < q < 1 for q in drawn.drafted.q[1:])


# Who wrote what.


def test_target_as_its_own_draft_accepts_everything() -> None:
    trace = run(target(), self_draft(), PROMPT, max_new_tokens=20, draft_length=4)
    assert trace.tokens == text(20)
    assert acceptance(trace).rate == 1.0
    assert acceptance(trace).by_position == (1.0, 1.0, 1.0, 1.0)
    assert trace.sources == ("draft", "draft", "draft", "draft", "target") * 4
    assert [len(r.committed.tokens) for r in trace.rounds] == [5, 5, 5, 5]


def test_a_draft_that_is_wrong_now_and_then_is_not_accepted_everywhere() -> None:
    """Negative control of the check above."""
    drafter = knows(text(), start=START, right=lambda at: at % 5 != 2)
    trace = run(target(), drafter, PROMPT, max_new_tokens=20, draft_length=4)
    assert acceptance(trace).rate < 1
    assert trace.sources[:3] == ("draft", "draft", "target")  # two accepted, then a correction
    assert trace.rounds[0].verified.resampled


def test_logprobs_are_the_targets_own_for_every_kind_of_token() -> None:
    """Accepted, corrected and bonus tokens, against a plain forward over the whole text."""
    drafter = knows(text(), start=START, right=lambda at: at % 5 != 2)
    trace = run(target(), drafter, PROMPT, max_new_tokens=20, draft_length=3, detail="full")
    assert {r.verified.resampled for r in trace.rounds} == {True, False}
    logp = torch.log_softmax(plain_logits(tiny(), (*PROMPT, *trace.tokens)), -1)
    expected = [float(logp[START - 1 + i, token]) for i, token in enumerate(trace.tokens)]
    told = [p for r in trace.rounds for p in r.committed.logprobs]
    assert told == pytest.approx(expected, abs=1e-4)
    assert max(told) < -1e-3  # the known fault reports 0 for all of them


def test_logprob_of_an_impossible_token_is_a_number_that_json_knows() -> None:
    """Only a processor can choose a token of which the model says never."""
    table = torch.zeros(4, 4, dtype=torch.float64)
    table[:, 1] = 1

    def only_two(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return torch.full_like(scores, -torch.inf).index_fill_(1, torch.tensor([2]), 0.0)

    where = Target(TableModel(table))
    trace = run(where, Nothing(), (1,), processors=[only_two], max_new_tokens=2, detail="full")
    assert trace.tokens == (2, 2)
    assert Trace.from_json(json.loads(trace.dumps())).tokens == (2, 2)


# Where a run ends.


@pytest.mark.parametrize("count", range(1, 9))
def test_exactly_max_new_tokens(count: int) -> None:
    trace = run(target(), self_draft(), PROMPT, max_new_tokens=count, draft_length=3)
    assert trace.tokens == text(8)[:count]
    assert trace.finished == Finished(
        round=len(trace.rounds),
        reason="max_new_tokens",
        new_tokens=count,
        slots_before=START + count - 1,
        slots_after=START + count - 1,
    )


def fresh_position() -> int:
    """The first position from the third on whose token was not written before."""
    return next(i for i in range(2, 20) if text()[i] not in text()[:i])


@pytest.mark.parametrize("spelled", [list, tuple, set, torch.tensor], ids=lambda f: f.__name__)
def test_end_token_in_the_middle_of_a_block_ends_there(spelled: Any) -> None:
    at = fresh_position()
    eos = spelled([text()[at], 63 if text()[at] != 63 else 62])
    stream = TextStream(letters)
    trace = run(
        target(), self_draft(), PROMPT, max_new_tokens=20, draft_length=8, eos=eos, text=stream
    )
    assert at < 8  # inside the first block
    assert trace.tokens == text()[: at + 1]
    assert trace.finished.reason == "eos"
    assert trace.text == letters(trace.tokens)
    assert trace.sources[-1] == "draft"


def test_end_token_as_one_number_and_none() -> None:
    at = fresh_position()
    one = run(target(), self_draft(), PROMPT, max_new_tokens=20, eos=text()[at])
    none = run(target(), self_draft(), PROMPT, max_new_tokens=20, eos=None)
    assert one.tokens == text()[: at + 1]
    assert none.tokens == text(20)


@pytest.mark.parametrize("asked", [10, 4, 3])
def test_context_limit_of_the_target_ends_the_run(asked: int) -> None:
    prompt = prompt_of(60)
    model = tiny(context=64)
    trace = run(
        Target(model),
        DraftModel(model, vocab_size=64),
        prompt,
        max_new_tokens=asked,
        draft_length=5,
    )
    assert trace.tokens == greedy_reference(model, prompt, 4)[:asked]
    assert trace.finished.reason == ("context_limit" if asked > 4 else "max_new_tokens")
    assert [r.drafted.limit for r in trace.rounds] == [min(asked, 4) - 1]


def test_context_limit_of_the_drafter_shrinks_the_draft_alone() -> None:
    drafter = DraftModel(tiny(context=START + 8), vocab_size=64)
    trace = run(target(), drafter, PROMPT, max_new_tokens=20, draft_length=5)
    assert trace.tokens == text(20)
    assert [r.drafted.limit for r in trace.rounds][:3] == [5, 3, 0]
    assert trace.rounds[-1].drafted.limit == 0
    assert drafter.length <= START + 8


class Positions:
    """Notes the positions that a model is asked to compute."""

    def __init__(self, model: Any) -> None:
        self.counts: list[int] = []
        self._handle = model.register_forward_pre_hook(self._note, with_kwargs=True)

    def _note(self, _module: Any, _args: Any, kwargs: Any) -> None:
        self.counts.append(kwargs["input_ids"].shape[1])

    def __enter__(self) -> "Positions":
        return self

    def __exit__(self, *_: Any) -> None:
        self._handle.remove()


@pytest.mark.parametrize("length", [1, 17, 200])
def test_nothing_is_computed_twice(length: int) -> None:
    """After the prompt, the target computes K + 1 positions a round, and no more."""
    prompt = prompt_of(length)
    with Positions(tiny()) as seen:
        trace = run(target(), NGram(), prompt, max_new_tokens=30, draft_length=4)
    assert sum(seen.counts) == length - 1 + sum(len(r.drafted.tokens) for r in trace.rounds)
    assert trace.tokens == greedy_reference(tiny(), prompt, 30)


def test_caches_keep_their_distance_to_the_text() -> None:
    """Committed minus cached is the same after every round, for target and draft."""
    where, drafter = target(), DraftModel(tiny(seed=5), vocab_size=64)
    config = DecodeConfig(max_new_tokens=30, draft_length=4)
    length, gaps = START, set()
    for event in speculate(where, drafter, PROMPT, config=config):
        if isinstance(event, Committed):
            length += len(event.tokens)
            gaps.add((length - where.length, length - drafter.length))
    assert gaps <= {(1, 1), (1, 2)}  # 2: every draft was accepted, the last one is still to be read
    assert (1, 1) in gaps


# Stop strings.


def stopping(stop: str, **options: Any) -> Trace:
    return run(
        target(),
        self_draft(),
        PROMPT,
        stop_strings=[stop],
        text=TextStream(letters, stop_strings=[stop]),
        draft_length=8,
        max_new_tokens=20,
        **options,
    )


@pytest.mark.parametrize("width", [1, 2, 3])
def test_stop_string_inside_a_block_over_several_tokens(width: int) -> None:
    whole = letters(text(20))
    stop = whole[3 : 3 + width]
    end = whole.index(stop) + width
    trace = stopping(stop)
    assert trace.text == whole[:end]
    assert trace.tokens == text(20)[:end]
    assert trace.finished.reason == "stop_string"
    assert trace.finished.slots_after == START + end - 1


def test_a_stop_string_that_never_comes_stops_nothing() -> None:
    assert stopping("#never#").tokens == text(20)


@pytest.mark.parametrize(
    "stream", [None, TextStream(letters), TextStream(letters, stop_strings=["b"])]
)
def test_stop_strings_that_nobody_looks_for_are_refused(stream: Any) -> None:
    with pytest.raises(BadInput, match="stop_strings"):
        run(target(), Nothing(), PROMPT, stop_strings=["a"], text=stream)


def test_a_used_text_stream_is_refused() -> None:
    stream = TextStream(letters)
    run(target(), Nothing(), PROMPT, max_new_tokens=2, text=stream)
    with pytest.raises(BadInput, match="a new text stream for each run"):
        run(target(), Nothing(), PROMPT, max_new_tokens=2, text=stream)


def test_text_arrives_once_a_round_and_is_never_taken_back() -> None:
    stream = TextStream(letters)
    config = DecodeConfig(max_new_tokens=20, draft_length=4)
    events = list(speculate(target(), self_draft(), PROMPT, config=config, text=stream))
    told = [e for e in events if isinstance(e, Committed)]
    assert len(told) == 4
    assert [len(e.tokens) for e in told] == [5, 5, 5, 5]
    assert "".join(e.text for e in told) == letters(text(20))
    assert tuple(t for e in told for t in e.tokens) == text(20)


# Refusals before any work.


@pytest.mark.parametrize("prompt", [[], [[1, 2]], [64], [1] * 600])
def test_bad_prompts_are_refused_before_any_work(prompt: Any, monkeypatch: Any) -> None:
    where = target()
    monkeypatch.setattr(where.model, "forward", lambda **_: pytest.fail("a forward ran"))
    with pytest.raises(BadInput, match="prompt"):
        speculate(where, Nothing(), prompt, config=DecodeConfig())


def test_a_drafter_whose_needs_are_not_met_is_refused() -> None:
    drafter = Nothing()
    drafter.needs = ("h2",)
    with pytest.raises(BadInput, match="h2"):
        speculate(target(), drafter, PROMPT, config=DecodeConfig())


@pytest.mark.parametrize(
    ("tree", "named"),
    [
        (DraftTree.chain((1 + PROMPT[-1], 2)), "root"),
        (DraftTree.chain((PROMPT[-1], 1, 2, 3)), "depth 3"),
        (DraftTree.chain((PROMPT[-1], 64)), "token 64"),
    ],
)
def test_drafts_that_cannot_be_scored_are_refused(tree: DraftTree, named: str) -> None:
    where = target()
    drafter = Scripted(lambda tokens, rng, depth: Draft.deterministic(tree))
    with pytest.raises(BadInput, match=named):
        run(where, drafter, PROMPT, draft_length=2)
    assert where.slots_used == START - 1


# Runs side by side on one target.


def steps(events: Iterator[Event], count: int) -> None:
    for _ in range(count):
        next(events)


@pytest.mark.parametrize("first", range(2, 8))
@pytest.mark.parametrize("second", range(2, 8))
def test_an_abandoned_run_notices_and_does_no_harm(first: int, second: int) -> None:
    """Two runs on one target, stopped anywhere: going on with the older one is refused, and
    neither going on with it nor closing it disturbs the newer one."""
    where, drafter = target(), self_draft()
    config = DecodeConfig(max_new_tokens=12, draft_length=2)
    old = speculate(where, drafter, PROMPT, config=config)
    steps(old, first)
    new = speculate(where, drafter, PROMPT[3:], config=config)
    done = [next(new) for _ in range(second)]
    with pytest.raises(LabError, match="another run that started on the same target"):
        steps(old, 20)
    trace = Trace.record([*done, *new])
    assert trace.tokens == greedy_reference(tiny(), PROMPT[3:], 12)


def test_closing_an_abandoned_run_does_no_harm() -> None:
    where = target()
    config = DecodeConfig(max_new_tokens=12, draft_length=2)
    old = speculate(where, self_draft(), PROMPT, config=config)
    steps(old, 4)
    new = speculate(where, self_draft(), PROMPT[3:], config=config)
    done = []
    for event in new:
        done.append(event)
        if isinstance(event, Scored):
            break
    old.close()
    assert Trace.record([*done, *new]).tokens == greedy_reference(tiny(), PROMPT[3:], 12)


@pytest.mark.parametrize("make", [self_draft, NGram, Nothing], ids=lambda make: make.__name__)
@pytest.mark.parametrize("first", range(2, 8))
def test_one_drafter_serves_one_run_at_a_time(make: Any, first: int) -> None:
    """Two runs on two targets with one drafter, the first stopped anywhere: going on with it is
    refused, and neither that nor its end disturbs the second, not even in the middle of a round."""
    drafter, config = make(), DecodeConfig(max_new_tokens=12, draft_length=2, temperature=1.0)
    alone = run(target(), make(), PROMPT[3:], max_new_tokens=12, draft_length=2, temperature=1.0)
    old = speculate(target(), drafter, PROMPT, config=config)
    steps(old, first)
    new = speculate(target(), drafter, PROMPT[3:], config=config)
    done = [next(new) for _ in range(4)]  # suspended with a draft that is scored, not verified
    with pytest.raises(LabError, match="another run that started on the same drafter"):
        steps(old, 1)
    trace = Trace.record([*done, *new])
    assert without_times(trace) == without_times(alone)


def test_runs_one_after_another_may_share_a_drafter() -> None:
    """Negative control of the check above."""
    drafter = self_draft()
    for prompt in (PROMPT, PROMPT[3:], PROMPT):
        trace = run(target(), drafter, prompt, max_new_tokens=6, draft_length=2)
        assert trace.tokens == greedy_reference(tiny(), prompt, 6)


# Seeds.


def sampled(seed: int, where: Target | None = None, drafter: Any = None, **options: Any) -> Trace:
    settings: dict[str, Any] = {"temperature": 1.0, "max_new_tokens": 12} | options
    return run(where or target(), drafter or self_draft(), PROMPT, seed=seed, **settings)


def without_times(trace: Trace) -> list[Any]:
    drop = {"seconds", "forward_seconds"}
    return [{k: v for k, v in e.items() if k not in drop} for e in trace.to_json()["events"]]


def test_one_seed_gives_one_text_and_one_trace() -> None:
    where, drafter = target(), self_draft()
    runs = [sampled(42, where, drafter, detail="full") for _ in range(3)]
    runs += [sampled(42, detail="full") for _ in range(2)]
    assert all(without_times(r) == without_times(runs[0]) for r in runs)


def test_seeds_move_the_text_at_temperature_one_only() -> None:
    flat = TableModel(torch.full((16, 16), 1 / 16))
    drafter = DraftModel(flat, vocab_size=16)
    texts = {
        run(Target(flat), drafter, (1,), seed=s, temperature=1.0, max_new_tokens=8).tokens
        for s in range(10)
    }
    assert len(texts) >= 5
    assert len({sampled(s, temperature=0.0).tokens for s in range(10)}) == 1


def test_temperature_is_obeyed_under_speculation() -> None:
    """Four equally likely first tokens, 400 runs: a right engine puts one of the four counts
    outside 100 +- 45 with probability below 1e-5 (binomial, four times two tails)."""
    table = torch.zeros(6, 6, dtype=torch.float64)
    table[:, :4] = 0.25
    where = Target(TableModel(table))
    counts = [0] * 6
    for seed in range(400):
        trace = run(where, NGram(), (1, 2, 1), seed=seed, temperature=1.0, max_new_tokens=1)
        counts[trace.tokens[0]] += 1
    assert counts[4:] == [0, 0]
    assert all(55 <= count <= 145 for count in counts[:4])


# Logits processors.


def five_or_six() -> TableModel:
    """Logits 5.0 for id 5, 4.0 for id 6, -9 for the rest, whatever came before."""
    logits = torch.full((8, 8), -9.0, dtype=torch.float64)
    logits[:, 5], logits[:, 6] = 5.0, 4.0
    model = TableModel(torch.full((8, 8), 1 / 8))
    model.table.weight.data = logits
    return model


def fives(tokens: tuple[int, ...], rng: Any, depth: int) -> Draft:
    return Draft.deterministic(DraftTree.chain((tokens[-1], *[5] * depth)))


def test_repetition_penalty_acts_on_every_drafted_position() -> None:
    trace = run(
        Target(five_or_six()),
        Scripted(fives),
        (1,),
        repetition_penalty=2.0,
        draft_length=4,
        max_new_tokens=8,
    )
    assert trace.tokens == (5, 6, 5, 5, 5, 5, 5, 5)
    plainly = run(Target(five_or_six()), Scripted(fives), (1,), max_new_tokens=8)
    assert plainly.tokens == (5,) * 8  # negative control: the penalty does something


def test_processors_see_the_text_up_to_each_drafted_token() -> None:
    seen: list[tuple[int, ...]] = []

    def spy(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        seen.append(tuple(ids[0].tolist()))
        return scores

    run(target(), knows(text(), start=START), PROMPT, processors=[spy], max_new_tokens=5)
    assert seen == [(*PROMPT, *text()[:i]) for i in range(5)]  # lengths n, n + 1, ..., n + K


def test_processors_see_each_branch_of_a_tree() -> None:
    seen: list[tuple[int, ...]] = []

    def spy(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        seen.append(tuple(ids[0, START:].tolist()))
        return scores

    tree = DraftTree((PROMPT[-1], 1, 2, 3, 4), (-1, 0, 0, 1, 2))
    drafter = Scripted(lambda tokens, rng, depth: Draft.deterministic(tree))
    config = DecodeConfig(draft_length=2)
    steps(speculate(target(), drafter, PROMPT, config=config, processors=[spy]), 6)
    assert seen[:5] == [(), (1,), (2,), (1, 3), (2, 4)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_penalty_under_speculation_equals_plain_decoding(temperature: float) -> None:
    """At temperature 0 the texts agree; the law at 1 is enumerated in tests/lossless."""
    options = {"repetition_penalty": 1.8, "max_new_tokens": 20, "temperature": temperature}
    plainly = run(target(), Nothing(), PROMPT, **options)
    drafted = run(target(), self_draft(), PROMPT, **options)
    if temperature == 0:
        assert drafted.tokens == plainly.tokens
        assert plainly.tokens != text(20)
    assert acceptance(drafted).rate > 0.9  # the drafter draws under the same penalty


@pytest.mark.parametrize("worst", [float("inf"), float("nan")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("make", [Nothing, NGram, self_draft], ids=lambda make: make.__name__)
def test_an_infinite_score_is_refused_by_the_name_of_the_processor(
    make: Any, temperature: float, worst: float
) -> None:
    def pushes_too_hard(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores.index_fill(1, torch.tensor([5]), worst)

    options: dict[str, Any] = {"processors": [pushes_too_hard], "temperature": temperature}
    where = target()
    with pytest.raises(BadInput, match="logits processor 'pushes_too_hard'"):
        run(where, make(), PROMPT, max_new_tokens=5, **options)
    assert where.slots_used == START - 1  # nothing speculative is left


def test_a_model_without_a_distribution_is_not_blamed_on_its_processors() -> None:
    where = Target(TableModel(torch.full((4, 4), float("nan"), dtype=torch.float64)))
    with pytest.raises(BadInput, match="the target's distribution after node 0"):
        run(where, Nothing(), (1,), processors=[lambda ids, scores: scores])


# Near ties.


def test_near_ties_are_two_steps_of_the_models_own_numbers() -> None:
    logits = torch.tensor([[20.0, 19.75, 0], [20.0, 19.5, 0], [1.0, 0.99, 0]])
    assert near_ties(logits.bfloat16()) == (True, False, True)  # steps 0.125, 0.125, 2 ** -7
    assert near_ties(logits) == (False, False, False)


def test_equal_logits_give_the_lower_id_on_every_path() -> None:
    logits = torch.full((12, 12), -9.0, dtype=torch.float64)
    logits[:, [9, 4]] = 5.0
    model = TableModel(torch.full((12, 12), 1 / 12))
    model.table.weight.data = logits
    for drafter in (Nothing(), NGram(), DraftModel(model, vocab_size=12)):
        assert run(Target(model), drafter, (1, 4, 4), max_new_tokens=6).tokens == (4,) * 6


def test_autoregress_is_speculation_without_a_drafter() -> None:
    config = DecodeConfig(max_new_tokens=12)
    trace = Trace.record(autoregress(target(), PROMPT, config=config))
    assert trace.tokens == text(12)
    assert trace.started.method == "ar"
    assert len(trace.rounds) == 12


def test_a_ruined_drafter_costs_rounds_and_no_tokens() -> None:
    trace = run(target(), never_right(text(), start=START), PROMPT, max_new_tokens=12)
    assert trace.tokens == text(12)
    assert acceptance(trace).rate == 0
    assert len(trace.rounds) == 12


def test_draft_length_zero_is_plain_decoding() -> None:
    trace = run(target(), self_draft(), PROMPT, max_new_tokens=6, draft_length=0)
    assert trace.tokens == text(6)
    assert acceptance(trace).rate is None
