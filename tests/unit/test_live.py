"""The workbench: whatever is done to a text, the caches and the rounds are those of a fresh run."""

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import distorted, prompt_of, tiny
from live_doubles import Words, fresh_logits, fresh_rounds, logits_after, toy_lab

from labkit.drafters.draft_model import DraftModel
from labkit.drafters.eagle import eagle_drafter
from labkit.drafters.on_head import HeadDrafter
from labkit.drafters.shapes import SMALL_TREE
from labkit.errors import BadInput, OutOfMemory
from labkit.heads.eagle import head_config, random_head
from labkit.lab import live
from labkit.lab.live import Workbench
from labkit.lab.session import Lab
from labkit.metrics import acceptance
from labkit.trace import Trace
from labkit.viz import draft_tree, kv_slots, ribbon, still

PROMPT = prompt_of(7)
NEW = 24
MODEL = tiny()


def draft_model(model: Any = MODEL) -> DraftModel:
    return DraftModel(distorted(model), vocab_size=64)


def eagle_tree() -> HeadDrafter:
    return eagle_drafter(random_head(head_config(MODEL, 1), MODEL), name="eagle1", shape=SMALL_TREE)


@pytest.fixture
def lab() -> Lab:
    return toy_lab(MODEL)


def opened(lab: Lab, **options: Any) -> Workbench:
    options = {"drafter": draft_model(), "max_new_tokens": NEW, "draft_length": 3} | options
    return live.open(lab, PROMPT, **options)


def draws(trace: Trace) -> list[float]:
    return [t.u for r in trace.rounds if r.verified for t in r.verified.trials]


def rounds(trace: Trace) -> list[Any]:
    """Everything that does not depend on the clock, nor, when it is greedy, on chance."""
    return [
        (
            r.drafted.tokens, r.drafted.parents, r.drafted.q, r.scored.node_slots, r.scored.p_top,
            [(t.node, t.p, t.accepted) for t in r.verified.trials],
            r.verified.path, r.committed.tokens, r.committed.kept_slots, r.committed.logprobs,
        )
        for r in trace.rounds
        if r.scored and r.verified and r.committed
    ]  # fmt: skip


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("drafter", [draft_model, eagle_tree])
def test_left_alone_it_has_the_rounds_of_a_plain_run(
    lab: Lab, drafter: Callable[[], Any], temperature: float
) -> None:
    bench = opened(lab, drafter=drafter(), temperature=temperature, seed=3)
    bench.run(NEW)
    plain = lab.record(
        PROMPT, drafter=drafter(), temperature=temperature, seed=3, max_new_tokens=NEW,
        draft_length=3, detail="full",
    )  # fmt: skip
    assert rounds(bench.trace) == rounds(plain)
    assert draws(bench.trace) == draws(plain)
    assert bench.ended == "max_new_tokens"
    assert bench.trace.finished == plain.finished
    assert bench.text == plain.text


# --- rewinding and branches -----------------------------------------------------------------------


def target_of(bench: Workbench) -> Any:
    return bench._desk._seats[()].target


@pytest.mark.parametrize("family", ["llama", "qwen3", "qwen3_5"])
def test_after_a_rewind_the_target_is_as_after_a_fresh_prefill(family: str) -> None:
    model = tiny(family)
    bench = live.open(toy_lab(model), PROMPT, drafter=draft_model(model), max_new_tokens=NEW)
    bench.run(5)
    texts = [[*PROMPT, *(t for s in bench.steps[:r] for t in s.tokens)] for r in range(6)]
    for round_ in (3, 1, 4, 0):
        bench.switch("main")
        bench.rewind(round_)
        bench.draft()  # brings the caches there
        target = target_of(bench)
        assert target.slots_used == target.length == len(texts[round_]) - 1
        target._cache.table.check()
        got = logits_after(target, texts[round_])
        torch.testing.assert_close(got, fresh_logits(model, texts[round_]), atol=1e-5, rtol=1e-5)
        bench.drop()


def test_a_rewound_round_comes_out_the_same_to_the_last_bit(lab: Lab) -> None:
    bench = opened(lab)
    bench.run(6)
    first = rounds(bench.trace)
    bench.rewind(2)
    bench.run(4)
    assert bench.here == "branch 2"
    assert rounds(bench.trace) == first


@pytest.mark.parametrize("drafter", [draft_model, eagle_tree])
def test_going_back_to_a_branch_is_as_if_one_had_never_left(
    lab: Lab, drafter: Callable[[], Any]
) -> None:
    bench, stayed = opened(lab, drafter=drafter()), opened(lab, drafter=drafter())
    bench.run(4)
    bench.rewind(1)
    bench.force(9)
    bench.run(3)
    bench.switch("main")
    bench.run(2)
    stayed.run(6)
    assert rounds(bench.trace) == rounds(stayed.trace)
    assert bench.branches == {"main": 6, "branch 2": 5}


def test_nothing_is_lost_by_rewinding(lab: Lab) -> None:
    bench = opened(lab)
    bench.run(4)
    before = bench.trace_of("main")
    bench.rewind(2)
    assert bench.at == 2
    assert bench.branches == {"main": 4}
    assert bench.branch("mine") == "mine"
    bench.step()
    assert rounds(bench.trace_of("main")) == rounds(before)
    assert bench.branches == {"main": 4, "mine": 3}
    with pytest.raises(BadInput, match="a number from 0 to 3, got 9"):
        bench.rewind(9)
    with pytest.raises(BadInput, match="one of main, mine, got 'other'"):
        bench.switch("other")
    with pytest.raises(BadInput, match="a new one, got 'main'"):
        bench.branch("main")


def test_another_drafter_reads_the_text_that_it_has_not_written(lab: Lab) -> None:
    """An EAGLE head that comes in late drafts what it would draft at the head of a fresh run."""
    bench = opened(lab, drafter=eagle_tree(), method="eagle1")
    bench.set(method="ngram")
    bench.run(3)
    bench.set(method="eagle1")
    bench.draft()
    assert bench.pending is not None
    text = [*PROMPT, *bench.tokens]
    fresh = fresh_rounds(lab, text, drafter=eagle_tree(), draft_length=3)
    assert bench.pending.drafted.tokens == fresh[0].drafted.tokens
    assert len(fresh[0].drafted.tokens) > 3


def test_two_branches_are_compared(lab: Lab) -> None:
    bench = opened(lab)
    bench.run(4)
    bench.rewind(2)
    shared = len(bench.tokens)
    bench.force((int(bench.trace_of("main").tokens[shared]) + 1) % 64)
    bench.run(2)
    found = bench.compare("main", "branch 2")
    assert found.shared == shared
    assert found.parted == (
        bench.trace_of("main").tokens[shared],
        bench.trace_of("branch 2").tokens[shared],
    )
    assert (found.left.forced, found.right.forced) == (0, 1)
    assert found.right.acceptance.rounds == 4  # five rounds, the forced one apart
    for way in (found.left, found.right):
        logits = MODEL(torch.tensor([[*PROMPT, *way.tokens]]), use_cache=False).logits[0]
        law = torch.log_softmax(logits[len(PROMPT) - 1 : -1].float(), -1)
        told = law.gather(-1, torch.tensor(way.tokens)[:, None]).sum()
        assert way.logprob == pytest.approx(float(told), abs=1e-3)
    assert "part at `␣w" in found.table.sentence
    assert bench.compare("main", "main").parted is None
    assert "same text" in repr(bench.compare("main", "main"))


# --- drafts ---------------------------------------------------------------------------------------


def test_a_draft_can_be_looked_at_changed_and_judged(lab: Lab) -> None:
    bench = opened(lab)
    right = opened(lab, method="ar", drafter=None)
    right.run(NEW)
    truth = right.tokens
    bench.draft()
    bench.replace(1, truth[0])
    bench.replace(2, (truth[1] + 1) % 64)
    bench.cut(3)
    bench.add(truth[1], after=1)
    assert bench.pending is not None
    assert bench.pending.draft.tree.tokens[1:] == (truth[0], (truth[1] + 1) % 64, truth[1])
    said = bench.verify()
    assert [row[3] for row in said.rows] == ["✓ accepted", "✗ rejected", "✓ accepted"]
    assert bench.tokens == truth[:3]
    step = bench.steps[-1]
    assert (step.how, step.by) == ("edited", "you")
    assert step.drafted.deterministic
    assert bench.trace.header["live"][0]["how"] == "edited"
    assert draft_tree(bench.trace, round=1).svg


def test_words_can_be_typed(lab: Lab) -> None:
    bench = opened(lab)
    bench.add("w5 w9")
    assert bench.pending is not None
    assert bench.pending.draft.tree.tokens[1:] == (5, 9)
    bench.replace(2, "w11 w12")
    assert bench.pending.draft.tree.tokens[1:] == (5, 11, 12)
    assert "You offer 3 guesses: ␣w5 ␣w11 ␣w12" in repr(bench.guesses)


@pytest.mark.parametrize(
    ("mistake", "told"),
    [
        (lambda bench: bench.verify(), "one that waits for its verdict, got none"),
        (lambda bench: bench.cut(1), "one that waits for its verdict"),
        (lambda bench: bench.said, "a round that was judged"),
        (lambda bench: bench.add([]), "got nothing"),
        (lambda bench: bench.add(64), "ids from 0 to 63, or text, got 64"),
        (lambda bench: bench.add([1] * NEW), f"depth at most {NEW - 1}"),
        (lambda bench: bench.force("  "), "at least one character"),
        (lambda bench: bench.forbid("w1 w2"), "one token, got 2"),
        (lambda bench: bench.set(heat=1), "got 'heat'"),
        (lambda bench: bench.set(temperature=-1.0), "temperature: expected 0 or more"),
        (lambda bench: bench.set(method="telepathy"), "got 'telepathy'"),
        (lambda bench: bench.set(method="ngram", shape=SMALL_TREE), "expected chains"),
        (lambda bench: bench.set(method="draft2"), "got 'draft2'"),
    ],
)
def test_mistakes_are_named_and_change_nothing(
    lab: Lab, mistake: Callable[[Workbench], object], told: str
) -> None:
    bench = opened(lab)
    before = repr(bench), bench.settings, bench.pending
    with pytest.raises(BadInput, match=told.replace("(", r"\(")):
        mistake(bench)
    assert (repr(bench), bench.settings, bench.pending) == before


def test_nodes_that_are_not_there(lab: Lab) -> None:
    bench = opened(lab)
    bench.draft()
    for mistake in (lambda: bench.cut(0), lambda: bench.replace(9, 1)):
        with pytest.raises(BadInput, match="node: expected a number from 1 to 3"):
            mistake()
    with pytest.raises(BadInput, match="node: expected a number from 0 to 3"):
        bench.add(1, after=9)


def test_settings_change_between_rounds(lab: Lab) -> None:
    bench = opened(lab)
    bench.step()
    bench.draft()
    assert "temperature 0.7" in bench.set(temperature=0.7, draft_length=5)
    assert bench.pending is None
    bench.step()
    assert [s.config.draft_length for s in bench.steps] == [3, 5]
    assert len(bench.steps[1].drafted.tokens) == 6
    assert bench.trace.header["live"][1]["temperature"] == 0.7
    with pytest.raises(BadInput, match="max_new_tokens: expected more than the"):
        bench.set(max_new_tokens=1)


def test_a_number_that_became_smaller_ends_longer_texts_too(lab: Lab) -> None:
    """It is set where the text is short, and met again where it is long."""
    bench = opened(lab)
    bench.run(3)
    made = len(bench.tokens)
    bench.rewind(0)
    bench.set(max_new_tokens=2)
    assert bench.ended is None
    bench.rewind(3)
    assert bench.ended == "max_new_tokens"
    with pytest.raises(BadInput, match=r"ends here \(max_new_tokens\)"):
        bench.run(5)
    assert len(bench.tokens) == made


# --- forced and forbidden -------------------------------------------------------------------------


def test_a_forced_token_is_flagged_and_counts_for_nobody(lab: Lab) -> None:
    bench = opened(lab)
    bench.run(2)
    before = acceptance(bench.trace)
    rare = int(fresh_logits(MODEL, [*PROMPT, *bench.tokens]).argmin())
    assert "by hand. It is not drawn from the target" in repr(bench.force(rare))
    trace = bench.trace
    assert trace.tokens[-1] == rare
    assert trace.sources[-1] == "forced"
    assert trace.rounds[-1].forced
    assert acceptance(trace) == before
    assert trace.rounds[-1].committed.logprobs[0] < -3
    assert "⚑" in ribbon(trace).svg
    assert "⚑" in kv_slots(trace, round=3).sentence
    assert "forced by hand" in still(trace).sentence
    again = Trace.from_json(trace.to_json())
    assert again.sources == trace.sources
    assert "⚑" not in ribbon(bench.trace_of("main").__class__(trace.events[:-4])).svg


def test_the_text_goes_on_after_a_forced_token_as_a_fresh_run_would(lab: Lab) -> None:
    bench = opened(lab)
    bench.run(2)
    bench.force([5, 6])
    text = [*PROMPT, *bench.tokens]
    bench.run(2)
    fresh = fresh_rounds(lab, text, drafter=draft_model(), draft_length=3)
    assert bench.steps[-2].tokens == fresh[0].committed.tokens
    assert [s.how for s in bench.steps] == ["run", "run", "forced", "forced", "run", "run"]


def test_a_forbidden_token_does_not_come(lab: Lab) -> None:
    bench = opened(lab, max_new_tokens=40)
    bench.run(40)
    banned = max(set(bench.tokens), key=bench.tokens.count)
    bench.rewind(0)
    told = bench.forbid(banned)
    assert "the law of the target without" in told
    assert "not the plain target's law" in repr(bench)
    bench.run(40)
    assert banned not in bench.tokens
    assert bench.trace.header["processors"] == ["Without"]
    assert bench.allow() == bench.law
    assert "the target's own law" in bench.law


# --- interrupts, neighbours, memory ---------------------------------------------------------------


def at_forward(model: Any, number: int, error: type[BaseException]) -> Any:
    """A hook that raises inside forward ``number``, once."""
    left = [number]

    def hook(*_: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise error("enough")

    return model.register_forward_hook(hook)


ACTIONS: dict[str, Callable[[Workbench], object]] = {
    "step": lambda bench: bench.step(),
    "draft": lambda bench: bench.draft(),
    "force": lambda bench: bench.force(3),
    "rewind and go on": lambda bench: (bench.rewind(1), bench.step()),
    "back to a branch": lambda bench: (bench.switch("main"), bench.step()),
}


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("action", ACTIONS.values(), ids=ACTIONS)
def test_an_interrupted_action_leaves_nothing_behind(
    lab: Lab, action: Callable[[Workbench], object], number: int
) -> None:
    bench = opened(lab)
    bench.run(3)
    bench.rewind(1)
    bench.run(1)  # another branch, so that going back has something to read
    known = {name: bench.trace_of(name).tokens for name in bench.branches}
    handle = at_forward(MODEL, number, KeyboardInterrupt)
    try:
        action(bench)
    except KeyboardInterrupt:
        assert {name: bench.trace_of(name).tokens for name in bench.branches} == known
    finally:
        handle.remove()
    bench.switch("main")
    bench.run(2)
    stayed = opened(lab)
    stayed.run(5)
    assert rounds(bench.trace) == rounds(stayed.trace)
    target_of(bench)._cache.table.check()


def test_an_interrupted_verdict_keeps_the_draft(lab: Lab) -> None:
    bench = opened(lab)
    bench.draft()
    handle = at_forward(MODEL, 1, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        bench.verify()
    handle.remove()
    bench.verify()
    bench.run(3)
    stayed = opened(lab)
    stayed.run(4)
    assert bench.tokens == stayed.tokens


def test_neighbours_do_not_disturb_each_other(lab: Lab) -> None:
    """Two workbenches and a recorded run on one lab, turn by turn."""
    one, two = (live.open(lab, PROMPT, method="ngram", max_new_tokens=NEW) for _ in range(2))
    alone = live.open(lab, PROMPT, method="ngram", max_new_tokens=NEW)
    alone.run(5)
    two.force(7)
    for _ in range(5):
        one.step()
        two.step()
        lab.record(PROMPT[:3], method="ngram", max_new_tokens=4)
    assert rounds(one.trace) == rounds(alone.trace)
    assert two.tokens[0] == 7


def test_running_out_of_memory_lets_the_caches_go_and_keeps_the_text(lab: Lab) -> None:
    bench = opened(lab)
    bench.run(2)
    text, cache = bench.tokens, weakref.ref(target_of(bench)._cache)
    handle = at_forward(MODEL, 1, torch.OutOfMemoryError)
    with pytest.raises(OutOfMemory, match="smaller draft") as told:
        bench.step()
    handle.remove()
    assert told.value.__context__ is None
    assert cache() is None
    assert bench.tokens == text
    bench.run(3)
    stayed = opened(lab)
    stayed.run(5)
    assert rounds(bench.trace) == rounds(stayed.trace)


def test_the_text_ends_where_it_ends(lab: Lab) -> None:
    bench = opened(lab, max_new_tokens=5)
    bench.run(9)
    assert bench.ended == "max_new_tokens"
    with pytest.raises(BadInput, match="one that ends here"):
        bench.draft()
    bench.set(max_new_tokens=9)
    bench.run(9)
    assert len(bench.tokens) == 9
    bench.rewind(1)
    assert bench.ended is None
    assert Words().decode(bench.tokens) == bench.text
