"""The law of the committed tokens, enumerated exactly, equals the target's own.

Every draft and every accept, reject and draw is tried with its probability (`labkit.law`); the
expected law is a plain product of table rows. Nothing is sampled, so nothing can fail by chance.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import transformers
from helpers import run
from mutants import MUTANTS, RIGHT
from torch import Tensor

from labkit.draft import Draft, spread
from labkit.drafters.draft_model import DraftModel
from labkit.drafters.ngram import NGram
from labkit.drafters.scripted import Scripted
from labkit.law import distance, exact_law
from labkit.sampling import Rng
from labkit.target import Target
from labkit.toy import TableModel, random_table
from labkit.tree import DraftTree
from labkit.verify import verify

V, ROOT, LENGTH = 3, 0, 3
P = random_table(V, seed=1, sharpness=1.5)
Q = random_table(V, seed=2, sharpness=1.5)
GREEDY_P = torch.nn.functional.one_hot(P.argmax(-1), V).double()
EXACT = 1e-12
Shape = Callable[[Rng], Draft]


def law_of(
    step: Callable[[tuple[int, ...]], Tensor], length: int = LENGTH
) -> dict[tuple[int, ...], float]:
    """The law of ``length`` tokens when each is drawn from ``step(tokens before it)``."""
    law = {}
    for tokens in itertools.product(range(len(step(()))), repeat=length):
        rows = [float(step(tokens[:i])[token]) for i, token in enumerate(tokens)]
        law[tokens] = float(torch.tensor(rows, dtype=torch.float64).prod())
    return law


def markov(table: Tensor, start: int = ROOT) -> Callable[[tuple[int, ...]], Tensor]:
    return lambda before: table[before[-1] if before else start]


# The shapes of a draft: how the tree grows and where each token comes from.


def chain_drawn(rng: Rng, tokens: Sequence[int] = (ROOT,), depth: int = 2) -> Draft:
    ids, q = [tokens[-1]], [None]
    for _ in range(depth):
        q.append(Q[ids[-1]])
        ids.append(int(rng.pick(Q[ids[-1]])))
    return Draft(DraftTree.chain(ids), tuple(q))


def chain_deterministic(rng: Rng, tokens: Sequence[int] = (ROOT,), depth: int = 2) -> Draft:
    ids = [tokens[-1]]
    for _ in range(depth):
        ids.append(int(Q[ids[-1]].argmax()))
    logits = (None, *(Q[i].log() for i in ids[:-1]))
    return Draft(DraftTree.chain(ids), (None,) * len(ids), logits=logits)


def tree_drawn(rng: Rng, tokens: Sequence[int] = (ROOT,), depth: int = 2) -> Draft:
    """Two siblings without replacement, the second from q given the first, and a child each."""
    root = tokens[-1]
    first = int(rng.pick(Q[root]))
    rest = Q[root].clone()
    rest[first] = 0
    rest = rest / rest.sum()
    second = int(rng.pick(rest))
    ids, parents, q = [root, first, second], [-1, 0, 0], [None, Q[root], rest]
    if depth > 1:
        ids += [int(rng.pick(Q[first])), int(rng.pick(Q[second]))]
        parents += [1, 2]
        q += [Q[first], Q[second]]
    return Draft(DraftTree(tuple(ids), tuple(parents)), tuple(q)) if depth else nothing(root)


def tree_deterministic(rng: Rng, tokens: Sequence[int] = (ROOT,), depth: int = 2) -> Draft:
    """The two likeliest children at each of two levels, as EAGLE's trees have them."""
    ids, parents, logits, level = [tokens[-1]], [-1], [None], [0]
    for _ in range(depth):
        below = []
        for node in level:
            for token in Q[ids[node]].topk(2).indices.tolist():
                below.append(len(ids))
                logits.append(Q[ids[node]].log())
                ids.append(token)
                parents.append(node)
        level = below
    return Draft(DraftTree(tuple(ids), tuple(parents)), (None,) * len(ids), logits=tuple(logits))


def tree_mixed(rng: Rng, tokens: Sequence[int] = (ROOT,), depth: int = 2) -> Draft:
    """A certain guess, then a drawn sibling (the same token even, at times)."""
    root = tokens[-1]
    ids = (root, int(Q[root].argmax()), int(rng.pick(Q[root])))
    return Draft(DraftTree(ids, (-1, 0, 0)), (None, None, Q[root])) if depth else nothing(root)


def chain_of_few_words(rng: Rng, tokens: Sequence[int] = (ROOT,), depth: int = 2) -> Draft:
    """A draft vocabulary of two words, spread over the target's three."""
    ids, q = [tokens[-1]], [None]
    for _ in range(depth):
        few = Q[ids[-1], :2] / Q[ids[-1], :2].sum()
        q.append(spread(few, torch.tensor([2, 0]), vocab_size=V))
        ids.append(int(rng.pick(q[-1])))
    return Draft(DraftTree.chain(ids), tuple(q))


def nothing(root: int) -> Draft:
    return Draft.deterministic(DraftTree((root,), (-1,)))


SHAPES = {
    shape.__name__: shape
    for shape in (
        chain_drawn,
        chain_deterministic,
        tree_drawn,
        tree_deterministic,
        tree_mixed,
        chain_of_few_words,
    )
}


def by_verify(draft: Draft, p: Tensor, rng: Rng) -> list[int]:
    verdict = verify(draft, p, rng)
    return [*(draft.tree.tokens[i] for i in verdict.path[1:]), verdict.next_token]


def error(judge: Any, shape: Shape, table: Tensor) -> float:
    """Largest difference between the target's law of three tokens and that of one round of
    ``judge``, continued by the target where the round gave fewer."""

    def outcome(rng: Rng) -> tuple[int, ...]:
        draft = shape(rng)
        out = judge(draft, torch.stack([table[t] for t in draft.tree.tokens]), rng)
        while len(out) < LENGTH:
            out.append(int(rng.pick(table[out[-1]])))
        return tuple(out[:LENGTH])

    return distance(exact_law(outcome), law_of(markov(table)))


@pytest.mark.parametrize("table", [P, GREEDY_P], ids=["sampled", "greedy"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("judge", [by_verify, RIGHT], ids=["verify", "by the book"])
def test_one_round_keeps_the_law(judge: Any, shape: Shape, table: Tensor) -> None:
    assert error(judge, shape, table) <= EXACT


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_broken_rules_change_the_law(mutant: Any) -> None:
    """The mutants fail the very test above, by nine orders of magnitude."""
    errors = [
        error(mutant, shape, table)
        for table in (P, GREEDY_P)
        for shape in (chain_drawn, chain_deterministic, tree_drawn, tree_deterministic)
    ]
    assert max(errors) > 1e-3


# The same through the whole engine: target, cache, drafters, warps and stop conditions.


def engine_law(make: Callable[[], Any], prompt: Sequence[int], **options: Any) -> dict[Any, float]:
    target = Target(TableModel(P))

    def outcome(rng: Rng) -> tuple[int, ...]:
        settings = {"temperature": 1.0, "draft_length": 2, "max_new_tokens": LENGTH} | options
        return run(target, make(), prompt, rng=rng, **settings).tokens

    return exact_law(outcome)


def draft_model(**options: Any) -> DraftModel:
    return DraftModel(TableModel(Q), vocab_size=V, **options)


ENGINES: dict[str, Callable[[], Any]] = {
    "ngram": NGram,
    "draft model": draft_model,
    "draft model that stops when unsure": lambda: draft_model(confidence=0.5),
    "draft model of few words": lambda: draft_model(ids=torch.tensor([2, 0])),
    "drawn tree": lambda: Scripted(lambda tokens, rng, depth: tree_drawn(rng, tokens, depth)),
    "certain tree": lambda: Scripted(
        lambda tokens, rng, depth: tree_deterministic(rng, tokens, depth)
    ),
}


@pytest.mark.parametrize("make", ENGINES.values(), ids=ENGINES)
def test_decoding_keeps_the_law(make: Callable[[], Any]) -> None:
    law = engine_law(make, (0, 1, 2, 0))
    assert distance(law, law_of(markov(P))) <= EXACT


def test_decoding_at_temperature_zero_is_one_text() -> None:
    for make in ENGINES.values():
        law = engine_law(make, (0, 1, 2, 0), temperature=0.0)
        assert distance(law, law_of(markov(GREEDY_P))) <= EXACT


def warped(before: tuple[int, ...]) -> Tensor:
    """transformers' own processors, one token at a time."""
    ids = torch.tensor([[0, 1, 2, 0, *before]])
    scores = P[before[-1] if before else 0].log()[None]
    for step in (
        transformers.RepetitionPenaltyLogitsProcessor(1.5),
        transformers.TemperatureLogitsWarper(0.7),
        transformers.TopKLogitsWarper(2),
        transformers.MinPLogitsWarper(0.05),
    ):
        scores = step(ids, scores)
    return torch.softmax(scores[0], -1)


@pytest.mark.parametrize("name", ["draft model", "certain tree"])
def test_decoding_keeps_a_warped_law(name: str) -> None:
    law = engine_law(
        ENGINES[name], (0, 1, 2, 0), temperature=0.7, top_k=2, min_p=0.05, repetition_penalty=1.5
    )
    assert distance(law, law_of(warped)) <= EXACT
    assert distance(law, law_of(markov(P))) > 0.1  # the warps do something


def only_the_word_it_lacks(ids: Tensor, scores: Tensor) -> Tensor:
    """Allows id 1 after an even number of tokens, anything after an odd one."""
    if ids.shape[1] % 2:
        return scores
    return scores.masked_fill(torch.tensor([[True, False, True]]), -torch.inf)


def constrained(before: tuple[int, ...]) -> Tensor:
    ids = torch.tensor([[0, 1, 2, 0, *before]])
    return torch.softmax(only_the_word_it_lacks(ids, P[ids[0, -1]].log()[None])[0], -1)


def test_a_draft_without_the_only_allowed_word_keeps_the_law() -> None:
    """Its q would be 0/0: then it must guess something that is judged honestly."""
    law = engine_law(
        ENGINES["draft model of few words"], (0, 1, 2, 0), processors=[only_the_word_it_lacks]
    )
    assert distance(law, law_of(constrained)) <= EXACT
