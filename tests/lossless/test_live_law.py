"""Whoever meddles with drafts cannot change the law of the text: enumerated exactly.

An editor sees every draft before its verdict and does with it what suits him, depending on what was
drawn. The expected law is a plain product of table rows (`test_law`).
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from live_doubles import toy_lab
from test_law import EXACT, LENGTH, P, chain_drawn, law_of, markov, tree_drawn

from labkit.draft import Draft
from labkit.drafters.scripted import Scripted
from labkit.lab import edits, live
from labkit.lab.live import Workbench
from labkit.law import distance, exact_law
from labkit.sampling import Flip, Rng
from labkit.toy import TableModel

PROMPT = (0, 1, 2, 0)
Editor = Callable[[Workbench], None]


LAB = toy_lab(TableModel(P))
SHAPES = {"chain": chain_drawn, "tree": tree_drawn}


def law_with(editor: Editor, shape: str = "chain", **options: Any) -> dict[Any, float]:
    """The law of a text during which ``editor`` makes every round."""

    def script(tokens: tuple[int, ...], rng: Rng, depth: int) -> Draft:
        return SHAPES[shape](rng, tokens, depth)

    def outcome(rng: Rng) -> tuple[int, ...]:
        settings = {"temperature": 1.0, "draft_length": 2, "max_new_tokens": 2} | options
        settings |= {"eos": None, "detail": "summary"}
        bench = live.open(LAB, PROMPT, drafter=Scripted(script), rng=rng, **settings)
        while not bench.ended:
            editor(bench)
        return bench.tokens

    return exact_law(outcome)


def sealed(bench: Workbench) -> None:
    """Looks at nothing."""
    bench.step()


def looks(bench: Workbench) -> None:
    """Looks, and lets everything stand."""
    bench.draft()
    bench.verify()


def steers(bench: Workbench) -> None:
    """Wants the text full of 1s: lets a drawn 1 stand, and writes one over everything else."""
    bench.draft()
    tokens = bench.pending.draft.tree.tokens
    if len(tokens) > 1 and tokens[1] != 1:
        bench.replace(1, 1)
    bench.verify()


def cuts(bench: Workbench) -> None:
    """Cuts a guess away only where it is a 2, and adds a 0 elsewhere if there is room."""
    bench.draft()
    tokens = bench.pending.draft.tree.tokens
    if 2 in tokens[1:]:
        bench.cut(tokens.index(2, 1))
    elif len(tokens) > 2:
        bench.add(0, after=1)
    bench.verify()


def insists(bench: Workbench) -> None:
    """Has it drafted again when the first guess is not a 1."""
    bench.draft()
    if bench.pending.draft.tree.tokens[1:2] != (1,):
        bench.drop()
        bench.draft()
    bench.verify()


def changes_settings(bench: Workbench) -> None:
    """Turns K down when a 0 was guessed, and lets the new draft run sealed."""
    bench.draft()
    if bench.pending.draft.tree.tokens[1:2] == (0,):
        bench.set(draft_length=1)
        bench.step()
        bench.set(draft_length=2)
    else:
        bench.verify()


EDITORS = (sealed, looks, steers, insists, changes_settings)


@pytest.mark.parametrize("editor", EDITORS, ids=lambda e: e.__name__)
def test_no_editor_changes_the_law(editor: Editor) -> None:
    assert distance(law_with(editor), law_of(markov(P), 2)) <= EXACT


def test_nor_does_one_who_cuts_and_adds() -> None:
    law = law_with(cuts, max_new_tokens=LENGTH)  # two guesses in a round
    assert distance(law, law_of(markov(P))) <= EXACT


@pytest.mark.parametrize("editor", [looks, steers], ids=lambda e: e.__name__)
def test_nor_of_a_tree(editor: Editor) -> None:
    assert distance(law_with(editor, "tree"), law_of(markov(P), 2)) <= EXACT


@pytest.mark.parametrize("editor", [steers, insists], ids=lambda e: e.__name__)
def test_judging_chosen_tokens_as_drawn_ones_would(
    editor: Editor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant: what an editor let stand keeps the q it was drawn from, and the law is lost."""
    monkeypatch.setattr(edits, "seen", lambda draft: draft)
    assert distance(law_with(editor), law_of(markov(P), 2)) > 1e-2


def test_looking_has_a_price_in_acceptance_alone() -> None:
    """Certain guesses are accepted less often than drawn ones, by the accept rule itself."""

    def accepted(editor: Editor) -> float:
        def outcome(rng: Rng) -> int:
            script = Scripted(lambda tokens, r, depth: chain_drawn(r, tokens, min(depth, 1)))
            options = {"temperature": 1.0, "max_new_tokens": 8, "eos": None, "detail": "summary"}
            bench = live.open(LAB, PROMPT, drafter=script, rng=rng, **options)
            editor(bench)
            return bench.steps[-1].committed.sources.count("draft")

        return exact_law(outcome).get(1, 0.0)

    assert accepted(looks) < accepted(sealed) - 0.05


def test_a_forbidden_token_leaves_the_constrained_target_s_law() -> None:
    def forbids(bench: Workbench) -> None:
        if not bench.settings.forbidden:
            bench.forbid(2)
        steers(bench)

    rest = P.clone()
    rest[:, 2] = 0
    rest /= rest.sum(-1, keepdim=True)
    law = law_with(forbids)
    assert distance(law, law_of(markov(rest), 2)) <= EXACT
    assert distance(law, law_of(markov(P), 2)) > 0.05


def test_after_a_forced_token_the_target_s_law_goes_on() -> None:
    def forces(bench: Workbench) -> None:
        if len(bench.tokens) == 1:
            bench.force(1)
        else:
            bench.step()

    expected = {
        tokens: float(P[PROMPT[-1], tokens[0]] * P[1, tokens[2]])
        for tokens in law_of(markov(P))
        if tokens[1] == 1
    }
    assert distance(law_with(forces, draft_length=0, max_new_tokens=LENGTH), expected) <= EXACT


def test_a_trial_leaves_no_trace() -> None:
    """Another drafter's round, taken back: the law of what follows is the target's still."""

    def tries(bench: Workbench) -> None:
        bench.trial("ngram", draft_length=2, rng=Certain())
        bench.step()

    assert distance(law_with(tries), law_of(markov(P), 2)) <= EXACT


class Certain(Rng):
    """Takes what is likeliest; not part of the enumeration."""

    def flip(self, probability: float) -> Any:
        return Flip(probability >= 0.5, 0.5)

    def pick(self, distribution: torch.Tensor) -> torch.Tensor:
        return distribution.argmax()

    def pick_ahead(self, distributions: Any) -> None:
        return None

    def mark(self) -> Any:
        return lambda: None
