"""A rehearsal has the rounds of the real run, and asks the target once."""

from typing import Any

import pytest
import torch
from test_broken import PROMPT, Words

from labkit.drafters.base import Drafter
from labkit.drafters.draft_model import DraftModel
from labkit.drafters.eagle import eagle_drafter
from labkit.drafters.shapes import SMALL_TREE, Chain, DynamicTree
from labkit.errors import BadInput
from labkit.heads.eagle import head_config, random_head
from labkit.lab import starved
from labkit.lab.load import LoadedModel
from labkit.lab.rehearse import rehearse
from labkit.lab.session import Lab
from labkit.target import Target
from labkit.toy import tiny
from labkit.trace import Trace

NEW = 24


@pytest.fixture(scope="module")
def lab() -> Lab:
    model = tiny(seed=3, layers=8, vocab_size=12)
    return Lab(LoadedModel(model, Words(), "tiny", torch.float32, torch.device("cpu"), "plain"))


@pytest.fixture(scope="module")
def prompt() -> list[int]:
    return [i % 12 for i in PROMPT]


def drafter_of(lab: Lab, name: str) -> Drafter:
    if name == "target itself":
        return DraftModel(lab.model, vocab_size=12)
    version, shape = {
        "eagle-1 chain": (1, Chain()),
        "eagle-3 tree": (3, SMALL_TREE),
        "eagle-3 dynamic": (3, DynamicTree(top_k=3, nodes=9)),
    }[name]
    return eagle_drafter(random_head(head_config(lab.model, version), lab.model), shape=shape)


def rounds(trace: Trace) -> list[Any]:
    return [
        (r.drafted.tokens, r.drafted.parents, r.verified.path, r.committed.tokens)
        for r in trace.rounds
        if r.verified and r.committed
    ]


@pytest.mark.parametrize(
    "name", ["target itself", "eagle-1 chain", "eagle-3 tree", "eagle-3 dynamic"]
)
def test_the_rounds_are_those_of_the_real_run(lab: Lab, prompt: list[int], name: str) -> None:
    plain = lab.record(prompt, method="ar", max_new_tokens=NEW)
    real = lab.record(prompt, drafter=drafter_of(lab, name), draft_length=4, max_new_tokens=NEW)
    again = rehearse(lab, plain, drafter=drafter_of(lab, name), draft_length=4)
    assert rounds(again) == rounds(real)
    assert again.tokens == plain.tokens
    assert again.header["rehearsed"] is True
    assert any(r.accepted for r in real.rounds), "nothing was accepted, nothing was tested"


def test_a_text_that_ended_early_ends_early(lab: Lab, prompt: list[int]) -> None:
    plain = lab.record(prompt, method="ar", max_new_tokens=NEW)
    end = plain.tokens[9]
    short = lab.record(prompt, method="ar", max_new_tokens=NEW, eos=end)
    assert len(short.tokens) <= 10
    drafter = drafter_of(lab, "eagle-3 tree")
    real = lab.record(prompt, drafter=drafter, draft_length=4, max_new_tokens=NEW, eos=end)
    assert rounds(rehearse(lab, short, drafter=drafter, draft_length=4)) == rounds(real)


def test_another_text_is_judged_by_its_own_words(lab: Lab, prompt: list[int]) -> None:
    """Negative control: the verdicts come from the text, not from the target behind it."""
    plain = lab.record(prompt, method="ar", max_new_tokens=NEW)
    events = [
        event if event.kind != "committed" else type(event)(
            round=event.round, tokens=((event.tokens[0] + 1) % 12,), sources=("target",)
        )
        for event in plain.events
    ]  # fmt: skip
    other = Trace(tuple(events), plain.header)
    target_itself = DraftModel(lab.model, vocab_size=12)
    own = rehearse(lab, plain, drafter=target_itself, draft_length=4)
    strange = rehearse(lab, other, drafter=target_itself, draft_length=4)
    assert strange.tokens == other.tokens
    assert len(strange.rounds) > len(own.rounds)


def test_the_target_reads_the_text_once(lab: Lab, prompt: list[int]) -> None:
    plain = lab.record(prompt, method="ar", max_new_tokens=NEW - 1)
    drafter = drafter_of(lab, "eagle-3 tree")
    target = lab.target_for(drafter)
    before = target.forwards
    first = rehearse(lab, plain, drafter=drafter, draft_length=4)
    assert target.forwards == before + 1
    again = rehearse(lab, plain, drafter=drafter_of(lab, "eagle-3 tree"), draft_length=4)
    assert target.forwards == before + 1
    assert rounds(again) == rounds(first)


def test_other_texts_and_other_states_are_read_for_themselves(lab: Lab, prompt: list[int]) -> None:
    """Negative control: what is remembered is one text's states at the depths of one head."""
    three, one = drafter_of(lab, "eagle-3 tree"), drafter_of(lab, "eagle-1 chain")
    texts = [[*prompt, i % 12, i // 12] for i in range(20)]
    for ids in texts:
        for drafter in (three, one):
            found = lab.states(ids, drafter=drafter)
            fresh = Target(lab.model, needs=drafter.needs).prefill(ids)
            assert found.keys() == fresh.keys()
            assert all(torch.equal(found[name], fresh[name]) for name in fresh)
    target = lab.target_for(three)
    before = target.forwards
    lab.states(texts[-1], drafter=three)
    assert target.forwards == before
    lab.states(texts[0], drafter=three)  # long ago: not kept for ever
    assert target.forwards == before + 1


@pytest.mark.parametrize("settings", [{"temperature": 1.0}, {"repetition_penalty": 1.3}])
def test_a_text_that_was_not_greedy_is_refused(
    lab: Lab, prompt: list[int], settings: dict[str, float]
) -> None:
    drawn = lab.record(prompt, method="ar", max_new_tokens=4, **settings)
    with pytest.raises(BadInput, match="rehearsal: expected a run at temperature 0"):
        rehearse(lab, drawn, method="ar", draft_length=2)


# --- starved heads, which lesson 06 rehearses -----------------------------------------------------


@pytest.fixture(scope="module", params=[1, 3])
def head(lab: Lab, request: pytest.FixtureRequest) -> Any:
    return random_head(head_config(lab.model, request.param), lab.model)


@torch.inference_mode()
def step(head: Any, states: list[torch.Tensor], ids: list[int]) -> torch.Tensor:
    n = len(ids)
    mask = torch.ones(n, n, dtype=torch.bool).tril()
    positions = torch.arange(n)[None]
    fused = head.fuse(states)[None]
    out = head(torch.tensor([ids]), fused, positions=positions, kv=head.cache(), mask=mask)
    return head.logits(out.normed[0])


@torch.inference_mode()
def test_what_is_withheld_has_no_influence_and_the_rest_has(
    lab: Lab, prompt: list[int], head: Any
) -> None:
    rows = [torch.randn(4, head.config.target_hidden_size) for _ in head.config.needs]
    zeros = [torch.zeros_like(row) for row in rows]
    ids, others = [1, 2, 3, 4], [4, 3, 2, 1]
    right = step(head, rows, ids)
    blind, deaf = starved.without_states(head), starved.without_tokens(head)
    assert torch.equal(step(blind, rows, ids), step(head, zeros, ids))
    assert not torch.equal(step(blind, rows, ids), step(blind, rows, others))
    assert torch.equal(step(deaf, rows, ids), step(deaf, rows, others))
    assert not torch.equal(step(deaf, rows, ids), step(deaf, zeros, ids))
    assert torch.equal(step(starved.without_states(head, keep=range(3)), rows, ids), right)
    assert torch.equal(step(head, rows, ids), right), "the head itself was touched"


@torch.inference_mode()
def test_states_of_another_text_come_in_turn(lab: Lab, head: Any) -> None:
    told = "one two three four five"
    fed = starved.with_states_of(lab, head, told)
    target = Target(lab.model, needs=head.config.needs)
    hidden = target.prefill(lab.tokens(told))
    theirs = [torch.cat((hidden[name],) * 3)[:7] for name in head.config.needs]
    mine = [torch.randn(7, head.config.target_hidden_size) for _ in head.config.needs]
    ids = [1, 2, 3, 4, 5, 6, 7]
    assert torch.equal(step(fed, mine, ids), step(head, theirs, ids))


def test_a_starved_head_writes_the_same_text(lab: Lab, prompt: list[int], head: Any) -> None:
    plain = lab.record(prompt, method="ar", max_new_tokens=8)
    for worse in (starved.without_states(head), starved.without_tokens(head)):
        run = lab.record(prompt, drafter=eagle_drafter(worse), draft_length=3, max_new_tokens=8)
        assert run.tokens == plain.tokens
