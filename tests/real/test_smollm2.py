"""The default model itself: greedy texts, near ties in bfloat16, and the sampled law.

The reference is transformers' own forward over the whole text, with plain linear layers, one token
at a time and without a cache. Kernels round differently from CPU to CPU and with the number of
rows; `first_difference` judges where texts part, and the float32 texts here stay far from any tie.
"""

import copy
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from helpers import branching, never_right, plain_logits, run
from mutants import in_the_engine
from odds import missed, p_value

from labkit.config import DecodeConfig
from labkit.drafters.base import Drafter
from labkit.drafters.draft_model import DraftModel
from labkit.drafters.ngram import NGram
from labkit.drafters.nothing import Nothing
from labkit.drafters.shapes import Chain, DynamicTree, Shape, StaticTree
from labkit.heads.eagle import random_head
from labkit.heads.medusa import random_heads
from labkit.heads.mtp import random_mtp
from labkit.kernels import use_plain_linear, use_skinny_linear
from labkit.lab.compare import first_difference
from labkit.lab.heads import HEADS as METHODS
from labkit.lab.load import load_model
from labkit.lab.rehearse import rehearse
from labkit.lab.session import Lab
from labkit.law import distance, exact_law
from labkit.metrics import acceptance
from labkit.sampling import Rng, TorchRng, Warp
from labkit.streaming import TextStream
from labkit.tree import DraftTree

pytestmark = pytest.mark.real

STORY = "In the north of the country there is a small town by the sea. "
QUESTION = "What is 17 times 3? Explain each step."


@pytest.fixture(scope="module")
def lab(smollm2: Any) -> Lab:
    return Lab(smollm2)


@contextmanager
def plain_linear(lab: Lab) -> Iterator[Any]:
    """The model as transformers makes it: on some CPUs the lab puts in faster linear layers."""
    swapped = use_plain_linear(lab.model)
    try:
        yield lab.model
    finally:
        if swapped:
            use_skinny_linear(lab.model)


# Greedy texts in float32.

COUNTS = {1: 20, 17: 20, 200: 10}  # prompt length: new tokens, a multiple of GAMMA + 1
GAMMA = 4
ROOM = 0.02  # between the two best logits everywhere below: thousands of float32 steps


@dataclass(frozen=True)
class Reference:
    """A prompt, its continuation, and the logits [count, V] that each token was chosen by."""

    prompt: tuple[int, ...]
    text: tuple[int, ...]
    logits: torch.Tensor


@pytest.fixture(scope="module", params=COUNTS)
def reference(lab: Lab, request: pytest.FixtureRequest) -> Reference:
    """Prompts of 1, 17 and 200 tokens: the beginning of a story, told again and again."""
    prompt = tuple((lab.tokens(STORY, chat=False) * 20)[: request.param])
    text: tuple[int, ...] = ()
    rows = []
    with plain_linear(lab) as model:
        for _ in range(COUNTS[request.param]):
            rows.append(plain_logits(model, (*prompt, *text))[-1])
            text = (*text, int(rows[-1].argmax()))
    return Reference(prompt, text, torch.stack(rows))


def test_the_reference_is_nowhere_near_a_tie(lab: Lab, reference: Reference) -> None:
    """So that the texts below must be the same on every CPU: what kernels and cache change of a
    logit is far less than what would change a choice."""
    best = reference.logits.topk(2, -1).values
    assert float((best[:, 0] - best[:, 1]).min()) > ROOM
    lab.target.prefill(reference.prompt)
    with lab.target.speculation():
        chain = (reference.prompt[-1], *reference.text[:-1])
        ours = lab.target.score(DraftTree.chain(chain)).logits
    assert float((ours - reference.logits).abs().max()) < ROOM / 10


# name: head, shape of the draft
HEADS: dict[str, tuple[str, Shape]] = {
    "eagle1": ("eagle1", Chain()),
    "eagle2": ("eagle1", DynamicTree(top_k=3, nodes=7)),
    "eagle3": ("eagle3", Chain()),
    "eagle3 tree": ("eagle3", DynamicTree(top_k=3, nodes=7)),
    "eagle31": ("eagle31", Chain()),
    "eagle31 tree": ("eagle31", DynamicTree(top_k=3, nodes=7)),
    "eagle31 random": ("eagle31", DynamicTree(top_k=3, nodes=7)),
    "eagle31 ruined": ("eagle31", DynamicTree(top_k=3, nodes=7)),
    **{f"mtp{how}": ("mtp", Chain()) for how in ("", " random", " ruined")},
    "mtp tree": ("mtp", DynamicTree(top_k=3, nodes=7)),
    **{f"medusa{how}": ("medusa", Chain()) for how in ("", " random", " ruined")},
    "medusa tree": ("medusa", DynamicTree(top_k=3, nodes=7)),
}
PARTS = {"medusa": "blocks"}  # what of a head is its own; layers of all others


def made_at_random(lab: Lab, method: str, head: Any) -> Any:
    """A head of the same shape with weights that nobody trained."""
    words = {"seed": 1, "vocab_ids": head.vocab_ids}
    if method == "mtp":
        return random_mtp(lab.model, **words)
    make = random_heads if method == "medusa" else random_head
    return make(head.config, lab.model, **words)


def with_head(lab: Lab, kind: str) -> Drafter:
    """A head that ships, or one of its shape with weights that nobody trained, or its own upside
    down."""
    method, shape = HEADS[kind]
    head = own_head(lab, method)
    if kind.endswith("random"):
        head = made_at_random(lab, method, head)
    if kind.endswith("ruined"):
        head = copy.deepcopy(head)
        for weight in getattr(head, PARTS.get(method, "layers")).parameters():
            weight.data.mul_(-1)
    return METHODS[method].drafter(head, shape=shape)


def own_head(lab: Lab, method: str) -> Any:
    drafter: Any = lab.drafter(method)
    return drafter.head


def made(lab: Lab, kind: str, reference: Reference) -> Drafter:
    start, vocab_size = len(reference.prompt), lab.target.vocab_size
    if kind in HEADS:
        return with_head(lab, kind)
    if kind == "ruined":
        return never_right(reference.text, start=start, vocab_size=vocab_size)
    if kind == "tree":
        return branching(reference.text, start=start, vocab_size=vocab_size)
    if kind == "self":
        return DraftModel(lab.model, vocab_size=vocab_size)
    return {"nothing": Nothing, "ngram": NGram, "draft": lambda: lab.drafter("draft")}[kind]()


@pytest.mark.parametrize("kind", ["nothing", "ngram", "draft", "self", "ruined", "tree", *HEADS])
def test_greedy_text_is_that_of_plain_decoding(lab: Lab, kind: str, reference: Reference) -> None:
    prompt, text = reference.prompt, reference.text
    drafter = made(lab, kind, reference)
    trace = run(
        lab.target_for(drafter),
        drafter,
        prompt,
        max_new_tokens=len(text),
        draft_length=GAMMA,
    )
    found = first_difference(lab.target, prompt, text, trace.tokens)
    assert found is None, str(found)
    if kind == "self":
        assert acceptance(trace).rate == 1.0
        assert trace.sources == (*["draft"] * GAMMA, "target") * (len(text) // (GAMMA + 1))


def test_trained_heads_are_right_more_often_than_others(lab: Lab) -> None:
    """The text cannot tell them apart; acceptance can. Rehearsed, which has the rounds of a real
    run; the tests above have run them."""
    text = lab.record(QUESTION, method="ar", max_new_tokens=40)
    accepted = {}
    for kind in HEADS:
        trace = rehearse(lab, text, drafter=with_head(lab, kind), draft_length=3)
        accepted[kind] = acceptance(trace).accepted
    for method in ("eagle31", "mtp", "medusa"):
        untrained = [accepted.pop(f"{method} {how}") for how in ("random", "ruined")]
        trained = [count for kind, count in accepted.items() if HEADS[kind][0] == method]
        assert max(untrained) < min(trained), (method, untrained, accepted)


def test_an_engine_that_errs_is_no_near_tie(lab: Lab, reference: Reference) -> None:
    """Negative control: one wrong token, the second best there, in the middle."""
    at = len(reference.text) // 2
    second = int(reference.logits[at].topk(2).indices[1])
    wrong = (*reference.text[:at], second, *reference.text[at + 1 :])
    found = first_difference(lab.target, reference.prompt, reference.text, wrong)
    assert found is not None
    assert (found.index, found.verdict) == (at, "fault")


# bfloat16, where ties are common.


@pytest.fixture(scope="module")
def half() -> Lab:
    return Lab(load_model(dtype="bfloat16", device="cpu"))


@pytest.fixture(scope="module")
def half_plain(half: Lab) -> tuple[int, ...]:
    return run(half.target, Nothing(), half.tokens(QUESTION), max_new_tokens=40).tokens


@pytest.mark.parametrize("method", ["ngram", "draft", "eagle2", "eagle31"])
def test_bfloat16_texts_part_only_at_near_ties(
    half: Lab, half_plain: tuple[int, ...], method: str
) -> None:
    """The same text, or at the first difference the two logits lie within two bfloat16 steps."""
    ids, plain = half.tokens(QUESTION), half_plain
    drafter = half.drafter(method)
    drafted = run(half.target_for(drafter), drafter, ids, max_new_tokens=40).tokens
    found = first_difference(half.target, ids, plain, drafted)
    assert found is None or found.verdict == "near tie", str(found)


def test_a_wrong_token_in_bfloat16_is_a_fault(half: Lab) -> None:
    """Negative control: at the clearest choice of a text, the second best token."""
    ids = half.tokens(QUESTION)
    text = run(half.target, Nothing(), ids, max_new_tokens=12).tokens
    best = plain_logits(half.model, (*ids, *text))[len(ids) - 1 : -1].float().topk(2, -1)
    at = int((best.values[:, 0] - best.values[:, 1]).argmax())
    wrong = (*text[:at], int(best.indices[at, 1]), *text[at + 1 :])
    found = first_difference(half.target, ids, text, wrong)
    assert found is not None
    assert (found.index, found.verdict) == (at, "fault")


# Sampling: the law of two tokens after a prompt of one, where three tokens are possible each time.

SAMPLING = {"temperature": 1.3, "top_k": 3}
RUNS, FALSE_ALARM = 300, 1e-6
WRONG = ("always accept", "p and q swapped", "residual replaced by p")
Law = dict[tuple[int, ...], float]


def sampled(lab: Lab, rng: Rng, drafter: Drafter | None = None) -> Any:
    drafter = drafter or lab.drafter("draft")
    return run(
        lab.target_for(drafter),
        drafter,
        one_word(lab),
        rng=rng,
        max_new_tokens=2,
        draft_length=1,
        **SAMPLING,
    )


def one_word(lab: Lab) -> tuple[int, ...]:
    """After it target and draft agree on some tokens and not on others."""
    (word,) = lab.tokens(" based", chat=False)
    return (word,)


@pytest.fixture(scope="module")
def law(lab: Lab) -> Law:
    """Products of transformers' own distributions, warped, of a plain forward for each token."""
    warp = Warp.from_config(DecodeConfig(**SAMPLING))
    found: Law = {}
    with plain_linear(lab) as model:
        first = warp(plain_logits(model, one_word(lab))[-1:])[0]
        for a in first.nonzero()[:, 0].tolist():
            second = warp(plain_logits(model, (*one_word(lab), a))[-1:])[0]
            for b in second.nonzero()[:, 0].tolist():
                found[a, b] = float(first[a]) * float(second[b])
    assert len(found) == 9
    return found


def test_every_course_of_a_run_together_gives_the_law(lab: Lab, law: Law) -> None:
    """Exact: every draw and accept test is tried with its probability, on the real model, with the
    draft model that comes with it; what is left is float32 rounding."""
    assert distance(exact_law(lambda rng: sampled(lab, rng).tokens), law) < 1e-4


@pytest.mark.parametrize("shape", [Chain(), StaticTree(((0,), (1,)))], ids=["chain", "tree"])
@pytest.mark.parametrize("method", ["eagle1", "eagle3", "eagle31", "mtp", "medusa"])
def test_heads_that_ship_keep_the_law(lab: Lab, law: Law, method: str, shape: Shape) -> None:
    """Exact, as above; the tree draws two siblings without replacement."""
    drafter = METHODS[method].drafter(own_head(lab, method), shape=shape)
    assert distance(exact_law(lambda rng: sampled(lab, rng, drafter).tokens), law) < 1e-4


@pytest.mark.parametrize("name", WRONG)
def test_broken_rules_change_the_law(
    lab: Lab, law: Law, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control of the test above, and of the one below: at most one choice of 300 seeds in
    a hundred would let such a rule pass there."""
    monkeypatch.setattr("labkit.decode.verify", in_the_engine(name))
    wrong = exact_law(lambda rng: sampled(lab, rng).tokens)
    assert distance(wrong, law) > 0.05
    assert missed(wrong, law, runs=RUNS, alarm=FALSE_ALARM) < 0.01


def test_sampled_texts_follow_the_law(lab: Lab, law: Law) -> None:
    """300 seeds, drawn ahead for every other one, against nine texts; false alarm 1e-6 over
    choices of seeds, and these are fixed."""
    counts: Counter[tuple[int, ...]] = Counter()
    accepted = 0
    for seed in range(RUNS):
        trace = sampled(lab, TorchRng(seed, ahead=bool(seed % 2)))
        counts[trace.tokens] += 1
        accepted += acceptance(trace).accepted
    assert p_value(counts, law) > FALSE_ALARM
    assert 0 < accepted < RUNS  # both branches of the rule were taken


# Text.


def test_a_reply_is_streamed_in_whole_characters(lab: Lab) -> None:
    """A cat is several tokens of this model; no piece of text may end inside of one."""
    cat = "\N{CAT FACE}"
    assert len(lab.tokens(cat, chat=False)) > 1
    ids = lab.tokens(f"Repeat after me: {cat * 3}")
    for drafter in (Nothing(), lab.drafter("draft")):
        config = {"max_new_tokens": 16, "eos": lab.eos_ids, "draft_length": 3}
        trace = run(lab.target, drafter, ids, text=TextStream(lab.text), **config)
        assert trace.text == lab.text(trace.tokens)
        assert cat in trace.text
        assert "\N{REPLACEMENT CHARACTER}" not in trace.text
