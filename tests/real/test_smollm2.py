"""The default model itself: greedy texts, the sampled law, and near ties in bfloat16.

References run transformers' own forward over the whole text, one token at a time, without a cache.
"""

import itertools
from collections import Counter
from typing import Any

import pytest
from helpers import branching, greedy_reference, never_right, plain_logits, run
from scipy import stats

from labkit.config import DecodeConfig
from labkit.drafters.base import Drafter
from labkit.drafters.draft_model import DraftModel
from labkit.drafters.ngram import NGram
from labkit.drafters.nothing import Nothing
from labkit.lab.compare import first_difference
from labkit.lab.load import load_model
from labkit.lab.session import Lab
from labkit.metrics import acceptance
from labkit.sampling import TorchRng, Warp
from labkit.streaming import TextStream
from labkit.target import Target

pytestmark = pytest.mark.real

QUESTION = "Write a short list of three things that a cat likes, with an emoji for each."
COUNT = 24


@pytest.fixture(scope="module")
def lab(smollm2: Any) -> Lab:
    return Lab(smollm2)


def prompt(lab: Lab, length: int) -> tuple[int, ...]:
    """1: a single word; 17 and 200: the beginning of real text, repeated."""
    words = lab.tokens("Once upon a time there was a cat who could count to ten. ", chat=False)
    return tuple((words * 20)[:length])


@pytest.mark.parametrize(("length", "count"), [(1, COUNT), (17, COUNT), (200, 8)])
def test_greedy_text_is_that_of_plain_decoding(lab: Lab, length: int, count: int) -> None:
    ids = prompt(lab, length)
    text = greedy_reference(lab.model, ids, count)
    made: dict[str, Drafter] = {
        "nothing": Nothing(),
        "ngram": NGram(),
        "draft": lab.drafter("draft"),
        "self": DraftModel(lab.model, vocab_size=lab.target.vocab_size),
        "ruined": never_right(text, start=length, vocab_size=lab.target.vocab_size),
        "tree": branching(text, start=length, vocab_size=lab.target.vocab_size),
    }
    for name, drafter in made.items():
        trace = run(lab.target, drafter, ids, max_new_tokens=count, draft_length=4)
        assert trace.tokens == text, name
        if name == "self":
            assert acceptance(trace).rate == 1.0
            assert set(trace.sources[4::5]) == {"target"}
            assert trace.sources.count("target") == len(trace.rounds)


def test_chat_reply_streams_its_emoji_whole(lab: Lab) -> None:
    ids = lab.tokens(QUESTION)
    config = {"max_new_tokens": 48, "eos": lab.eos_ids}
    pieces: list[str] = []
    for drafter in (Nothing(), lab.drafter("draft")):
        trace = run(lab.target, drafter, ids, text=TextStream(lab.text), **config)
        pieces.append(trace.text)
        assert trace.text == lab.text(trace.tokens)
    assert pieces[0] == pieces[1]
    assert "\N{REPLACEMENT CHARACTER}" not in pieces[0]


def test_bfloat16_parts_only_at_near_ties() -> None:
    """Blockwise and stepwise forwards round differently there: the same text, or at the first
    difference the two logits lie within two bfloat16 steps."""
    loaded = load_model(dtype="bfloat16", device="cpu")
    lab = Lab(loaded)
    for question in (QUESTION, "What is 17 times 3? Explain each step."):
        ids = lab.tokens(question)
        plain = run(lab.target, Nothing(), ids, max_new_tokens=64).tokens
        drafted = run(lab.target, lab.drafter("draft"), ids, max_new_tokens=64).tokens
        found = first_difference(lab.target, ids, plain, drafted)
        assert found is None or found.verdict == "near tie", str(found)


def test_an_engine_that_errs_is_no_near_tie(lab: Lab) -> None:
    """Negative control: one wrong token in the middle."""
    ids = prompt(lab, 17)
    text = greedy_reference(lab.model, ids, COUNT)
    wrong = (*text[:9], (text[9] + 1) % 1000, *text[10:])
    found = first_difference(lab.target, ids, text, wrong)
    assert (found.index, found.verdict) == (9, "fault")


SAMPLING = {"temperature": 1.3, "top_k": 3}
RUNS = 300


def law_of_two_tokens(lab: Lab, ids: tuple[int, ...]) -> dict[tuple[int, int], float]:
    warp = Warp.from_config(DecodeConfig(**SAMPLING))
    first = warp(plain_logits(lab.model, ids)[-1:])[0]
    law = {}
    for a in first.nonzero()[:, 0].tolist():
        second = warp(plain_logits(lab.model, (*ids, a))[-1:])[0]
        for b in second.nonzero()[:, 0].tolist():
            law[a, b] = float(first[a]) * float(second[b])
    return law


def test_sampled_texts_follow_the_law(lab: Lab) -> None:
    """300 seeds, two tokens, the shipped draft model, drawn ahead for every other seed; Pearson's
    chi-square against transformers' own distribution over the nine likeliest pairs. False alarm
    1e-6 over choices of seeds, and these are fixed."""
    ids = prompt(lab, 9)
    law = law_of_two_tokens(lab, ids)
    counts: Counter[Any] = Counter()
    accepted = 0
    for seed in range(RUNS):
        trace = run(
            lab.target,
            lab.drafter("draft"),
            ids,
            rng=TorchRng(seed, ahead=bool(seed % 2)),
            max_new_tokens=2,
            draft_length=1,
            detail="timing",
            **SAMPLING,
        )
        counts[trace.tokens] += 1
        accepted += acceptance(trace).accepted
    assert set(counts) <= set(law)
    assert 0 < accepted < RUNS  # both branches of the rule were taken
    pooled = pool(law, RUNS)
    observed = [sum(counts[text] for text in group) for group in pooled]
    expected = [RUNS * sum(law[text] for text in group) for group in pooled]
    assert stats.chisquare(observed, expected, sum_check=False).pvalue > 1e-6


def pool(law: dict[Any, float], runs: int) -> list[list[Any]]:
    """Groups of texts of which at least five are expected, as the chi-square test wants it."""
    groups: list[list[Any]] = [[]]
    for text in sorted(law, key=law.__getitem__, reverse=True):
        groups[-1].append(text)
        if runs * sum(law[t] for t in groups[-1]) >= 5:
            groups.append([])
    rest = groups.pop()
    groups[-1] += rest
    return groups


def test_a_width_fixed_for_all_forwards_makes_bfloat16_texts_agree() -> None:
    """Stepwise and blockwise rows then go through kernels of one shape."""
    loaded = load_model(dtype="bfloat16", device="cpu")
    target = Target(loaded.model, width=8)
    lab = Lab(loaded)
    ids = lab.tokens(QUESTION)
    plain = run(target, Nothing(), ids, max_new_tokens=32).tokens
    drafted = run(target, lab.drafter("draft"), ids, max_new_tokens=32, draft_length=4).tokens
    assert first_difference(target, ids, plain, drafted) is None


def test_pairs_of_the_law_are_nine(lab: Lab) -> None:
    law = law_of_two_tokens(lab, prompt(lab, 9))
    assert len(law) == 9
    assert sum(itertools.chain(law.values())) == pytest.approx(1.0, abs=1e-5)
