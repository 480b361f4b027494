"""The faults that lessons show: each really breaks what it is said to break, and nothing else."""

import pytest
import torch
from helpers import run

from labkit.draft import Draft
from labkit.drafters.draft_model import DraftModel
from labkit.drafters.shapes import DynamicTree
from labkit.lab import broken
from labkit.lab.laws import first_token, largest_gap, real_pair
from labkit.lab.load import LoadedModel
from labkit.lab.measure import forward_seconds, step_block_gap, tree_costs, weight_bytes
from labkit.lab.session import Lab
from labkit.target import Target
from labkit.toy import tiny
from labkit.tree import DraftTree
from labkit.verify import verify

P, Q = (0.6, 0.3, 0.1), (0.2, 0.5, 0.3)
GREEDY = (0.0, 1.0, 0.0)
PROMPT = list(range(3, 20))


class Words:
    """A tokenizer in which every id is a word."""

    chat_template = None
    eos_token_id = None

    def decode(self, ids, **_):
        return "".join(f" w{i}" for i in ids)

    def __call__(self, text):
        return {"input_ids": [5 + len(word) for word in text.split()]}


@pytest.fixture(scope="module")
def lab():
    model = tiny(seed=3)
    loaded = LoadedModel(model, Words(), "tiny", torch.float32, torch.device("cpu"), "plain")
    return Lab(loaded)


@pytest.fixture
def drafter(lab):
    return DraftModel(tiny(seed=4), vocab_size=lab.target.vocab_size)


def test_the_right_rule_has_the_law_of_p():
    for rule in (verify, broken.RIGHT):
        assert largest_gap(first_token(rule, p=P, q=Q), P) < 1e-12


@pytest.mark.parametrize("name", broken.FAULTS)
def test_every_fault_shows_in_the_law(name):
    assert largest_gap(first_token(broken.FAULTS[name], p=P, q=Q), P) > 0.1


def test_laws_worked_out_by_hand():
    # p < q is always refused: green and blue never come, red takes all.
    assert first_token(broken.FAULTS["threshold"], p=P, q=Q) == pytest.approx([1, 0, 0])
    # kept min(p, q) = .2 .3 .1; the other 0.4 are spread like p.
    assert first_token(broken.FAULTS["from_p"], p=P, q=Q) == pytest.approx([0.44, 0.42, 0.14])
    assert first_token(broken.FAULTS["always"], p=P, q=Q) == pytest.approx(Q)


def test_two_faults_hide_from_every_greedy_test():
    hidden = {
        name
        for name, rule in broken.FAULTS.items()
        if largest_gap(first_token(rule, p=GREEDY, q=Q), GREEDY) < 1e-12
    }
    assert hidden == {"threshold", "from_p"}


def test_every_fault_hides_behind_a_perfect_drafter():
    for rule in broken.FAULTS.values():
        assert largest_gap(first_token(rule, p=P, q=P), P) < 1e-12


def test_an_argmax_draft_judged_by_its_softmax():
    """P(x*) = p/q where p < q; numbers by hand: 0.5, then 0.5 of the residual (0, 3, 2, 1, 0)/6."""
    p, q = (0.30, 0.25, 0.20, 0.15, 0.10), (0.60, 0.10, 0.10, 0.10, 0.10)
    law = first_token(verify, p=p, q=q, argmax_draft=True)
    assert law == pytest.approx([0.5, 0.25, 1 / 6, 1 / 12, 0])


def test_impossible_laws_are_refused():
    for p, q in [((0.5, 0.6), (0.5, 0.5)), ((1.0,), (0.5, 0.5)), ((-0.5, 1.5), (0.5, 0.5))]:
        with pytest.raises(ValueError, match="expected"):
            first_token(verify, p=p, q=q)


def test_rules_are_for_drawn_tokens_only():
    draft = Draft.deterministic(DraftTree.chain((0, 1)))
    with pytest.raises(AssertionError):
        broken.RIGHT(draft, torch.tensor([P, P]), None)


def test_a_late_drafter_costs_acceptance_and_nothing_else(lab):
    plain = lab.record(PROMPT, method="ar", max_new_tokens=24)
    itself = DraftModel(lab.model, vocab_size=lab.target.vocab_size)
    good = lab.record(PROMPT, drafter=itself, max_new_tokens=24)
    late = lab.record(PROMPT, drafter=broken.Late(itself), max_new_tokens=24)
    assert good.tokens == late.tokens == plain.tokens
    assert all(r.accepted == len(r.drafted.tokens) - 1 for r in good.rounds)
    assert sum(r.accepted for r in late.rounds) < sum(r.accepted for r in good.rounds) / 2
    # what it offers first is its guess for the token that it overlooked
    offered = [r.drafted.tokens[:2] for r in late.rounds[1:] if len(r.drafted.tokens) > 1]
    assert offered
    assert all(pending == first for pending, first in offered)


def test_a_target_that_never_forgets_writes_another_text(lab, drafter):
    plain = lab.record(PROMPT, method="ar", max_new_tokens=24)
    sick = broken.NeverForgets(broken.fresh(Target, lab.target))
    stale = run(sick, drafter, PROMPT, max_new_tokens=24)
    assert stale.tokens != plain.tokens
    written = sum(len(r.scored.node_slots) for r in stale.rounds)
    assert sick.length == len(PROMPT) - 1 + written
    assert lab.record(PROMPT, method="ar", max_new_tokens=24).tokens == plain.tokens


def test_a_target_that_resets_writes_the_same_text_and_computes_it_again(lab, drafter):
    plain = lab.record(PROMPT, method="ar", max_new_tokens=24)
    sick = broken.Resets(broken.fresh(Target, lab.target))
    fresh = run(sick, drafter, PROMPT, max_new_tokens=24)
    assert fresh.tokens == plain.tokens
    lengths = [r.committed.slots_after for r in fresh.rounds]
    assert sick.recomputed == sum(lengths)


def test_p_and_q_of_a_real_round(lab, drafter):
    settings = {"temperature": 1.0, "top_k": 4, "max_new_tokens": 8, "seed": 2}
    trace = lab.record(PROMPT, drafter=drafter, detail="full", **settings)
    pair = real_pair(trace, number=1)
    first = trace.rounds[0]
    assert sum(pair.p) == pytest.approx(1)
    assert sum(pair.q) == pytest.approx(1)
    drawn = pair.tokens.index(first.drafted.tokens[1])
    assert pair.q[drawn] == pytest.approx(first.drafted.q[1], abs=1e-5)
    assert largest_gap(first_token(verify, p=pair.p, q=pair.q), pair.p) < 1e-12


def test_rounds_without_whole_distributions_are_refused(lab, drafter):
    flat = lab.record(PROMPT, drafter=drafter, temperature=1.0, max_new_tokens=8, detail="full")
    brief = lab.record(PROMPT, drafter=drafter, max_new_tokens=8)
    for trace, number in [(flat, 1), (brief, 1), (brief, 99)]:
        with pytest.raises(ValueError, match="expected"):
            real_pair(trace, number=number)


def test_measuring_leaves_the_text_as_it_was(lab):
    seconds = forward_seconds(lab, (1, 3), repeats=2, context=9)
    assert set(seconds) == {1, 3}
    assert all(s > 0 for s in seconds.values())
    assert lab.target.length == 9
    assert weight_bytes(lab) == 4 * sum(w.numel() for w in lab.model.parameters())
    for counts, repeats in [((), 1), ((0,), 1), ((1,), 0)]:
        with pytest.raises(ValueError, match="expected"):
            forward_seconds(lab, counts, repeats=repeats)


def test_costs_of_this_machine_can_size_a_tree(lab, drafter):
    costs = tree_costs(lab, drafter, (1, 4), repeats=1, new_tokens=6)
    assert [n for n, _ in costs.verify] == [1, 4]
    assert costs.of(1) > 0
    assert costs.draft > 0
    assert 0 <= DynamicTree(nodes=4, costs=costs).size([0.9, 0.5], forwards=1) <= 2
    with pytest.raises(ValueError, match="one that runs a model"):
        tree_costs(lab, lab.drafter("ngram"), (1,), repeats=1, new_tokens=4)


def test_steps_and_blocks_agree_to_rounding(lab):
    assert step_block_gap(lab, count=5) < 1e-4
