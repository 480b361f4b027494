"""The replay of chain drafts over known text equals a literal simulation, round by round, and what
training reports is what decoding gets."""

import random
from dataclasses import replace

import pytest
from helpers import run
from test_training_eagle import a_trainer, data, kept, states, target  # noqa: F401 (fixtures)

from labkit.drafters.eagle import eagle_drafter
from labkit.metrics import acceptance_by_depth
from labkit.target import Target
from labkit.training.acceptance import replay_chains


def rounds_by_hand(hits, depth):
    """One list per round: the flags of the drafts that were reached."""
    rounds = []
    position = 0
    while position < len(hits):
        block = list(hits[position : position + depth])
        reached = block[: block.index(False) + 1] if False in block else block
        committed = min(sum(reached) + 1, len(hits) - position)
        rounds.append((reached, committed))
        position += committed
    return rounds


def test_the_example_in_the_docstring():
    got = replay_chains([[True, True, False, False, True, False, True]], depth=2)
    assert got.mean_accepted_length == pytest.approx(7 / 4)
    assert got.by_depth == (3 / 4, 1 / 2)
    assert got.first == pytest.approx(4 / 7)


@pytest.mark.parametrize("depth", [1, 2, 3, 5])
def test_replay_equals_the_literal_simulation(depth):
    rng = random.Random(depth)
    texts = [[rng.random() < 0.6 for _ in range(rng.randint(0, 40))] for _ in range(50)]
    rounds = [r for text in texts for r in rounds_by_hand(text, depth)]
    got = replay_chains(texts, depth=depth)
    assert got.mean_accepted_length == sum(c for _, c in rounds) / len(rounds)
    for i, share in enumerate(got.by_depth):
        reached = [flags[i] for flags, _ in rounds if len(flags) > i]
        assert share == sum(reached) / len(reached)
    # control: counting every true flag, also behind a rejection, would give more
    assert got.mean_accepted_length < 1 + depth * got.first


def test_a_perfect_and_a_useless_draft():
    assert replay_chains([[True] * 40], depth=3).mean_accepted_length == 4.0
    assert replay_chains([[False] * 40], depth=3).mean_accepted_length == 1.0
    assert replay_chains([], depth=3).mean_accepted_length == 0.0


def test_first_guesses_are_right_as_often_as_training_says(target, data, states):  # noqa: F811
    """SpecForge issue #533: 98 % in training, 10 % when decoding. Twenty prompts, a head that is
    right about half the time, to 0.05."""
    trainer = a_trainer(target, data, states, "eagle3", draft_vocab_size=64, shallow=0.0)
    twenty = trainer.rows.train[:20]
    trainer.rows = replace(trainer.rows, train=twenty, held_out=twenty)
    trainer.state.batches = trainer._epoch(0)
    untrained = trainer.measure()
    for step in range(70):
        trainer.step(step / 70)
    measured = trainer.measure()
    head = kept(trainer).eval()
    traces = [
        run(
            Target(target, needs=head.config.needs),
            eagle_drafter(head),
            row.prompt,
            max_new_tokens=len(row.reply),
            draft_length=4,
        )
        for row in twenty
    ]
    assert [trace.tokens for trace in traces] == [row.reply for row in twenty]
    live = acceptance_by_depth(*traces)[0].rate
    assert len(twenty) == 20
    assert 0.3 < live < 0.95
    assert abs(measured.by_depth[0] - live) <= 0.05
    # control: figures of another head would be noticed
    assert abs(untrained.by_depth[0] - live) > 0.05
