"""Open layer ids are settled by what the head's first guesses are worth under each reading."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import greedy_reference, prompt_of

from labkit.heads.checkpoints import (
    HeadCheckpoint,
    build_head,
    checkpoint_of,
    complete,
    read_checkpoint,
    write_checkpoint,
)
from labkit.heads.checkpoints import readings as readings_of
from labkit.heads.eagle import EagleHead, head_config, random_head
from labkit.lab.heads import head_for
from labkit.lab.readings import Measured, measure_readings, settled
from labkit.toy import tiny

CPU = torch.device("cpu")
PROMPTS = [prompt_of(9), prompt_of(5, seed=1)]


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny("llama", layers=8, vocab_size=12)


@pytest.fixture
def open_head(model: Any) -> HeadCheckpoint:
    """Two readings: after 2, 4 and 5 layers, or one layer later each."""
    head = random_head(head_config(model, 3), model)
    made = checkpoint_of(head, target_model=model, target="tiny")
    return replace(made, alternatives=(replace(made.config, boundaries=(3, 5, 6)),))


@torch.inference_mode()
def first_guesses(head: EagleHead, model: Any, prompt: Any, count: int) -> tuple[int, int]:
    """(right, tried) as the engine asks with K = 1: after a right guess the target's own token
    follows unguessed, and nothing is guessed when one token is left. One plain forward."""
    text = [*prompt, *greedy_reference(model, tuple(prompt), count)]
    out = model(input_ids=torch.tensor([text]), output_hidden_states=True, use_cache=False)
    state = head.fuse([out.hidden_states[k][0, :-1] for k in head.config.boundaries])
    n = len(state)
    step = head(
        torch.tensor([text[1:]]),
        state[None],
        positions=torch.arange(n)[None],
        kv=head.cache(),
        mask=torch.ones(n, n, dtype=torch.bool).tril(),
    )
    guesses = head.logits(step.normed[0]).argmax(-1).tolist()  # [i]: of text[i + 2]
    right = tried = 0
    at = len(prompt)  # the next token to be committed
    while at < len(text):
        if len(text) - at == 1:
            break
        hit = guesses[at - 2] == text[at]
        tried, right, at = tried + 1, right + hit, at + 1 + hit
    return right, tried


def test_the_measurement_is_what_plain_forwards_count(model: Any, open_head: Any) -> None:
    prompts = [tuple(t % 12 for t in prompt) for prompt in PROMPTS]
    found = measure_readings(
        open_head, model, prompts, dtype=torch.float32, device=CPU, new_tokens=20
    )
    assert [m.config.boundaries for m in found] == [(2, 4, 5), (3, 5, 6)]
    for measured in found:
        head = build_head(
            open_head, target_model=model, dtype=torch.float32, device=CPU, config=measured.config
        )
        expected = [first_guesses(head, model, prompt, 20) for prompt in prompts]
        assert measured.right == sum(right for right, _ in expected)
        assert measured.tried == sum(tried for _, tried in expected)


@pytest.mark.parametrize(("right", "winner"), [((1, 9), (3, 5, 6)), ((9, 1), (2, 4, 5))])
def test_the_better_guesser_is_taken_and_the_report_says_why(
    open_head: HeadCheckpoint, right: tuple[int, int], winner: tuple[int, ...]
) -> None:
    configs = readings_of(open_head, target_layers=8)
    measured = [Measured(c, r, 10) for c, r in zip(configs, right, strict=True)]
    done = settled(open_head, measured)
    assert done.config.boundaries == winner
    assert readings_of(done, target_layers=8) == [done.config]
    said = done.report.layer_ids_decided_by
    assert said.startswith("measured: ")
    assert "10% with states after" in said
    assert "90% with states after" in said


def test_when_nothing_is_better_the_likeliest_stays_and_the_report_says_so(
    open_head: HeadCheckpoint,
) -> None:
    configs = readings_of(open_head, target_layers=8)
    done = settled(open_head, [Measured(c, 3, 10) for c in configs])
    assert done.config.boundaries == (2, 4, 5)
    assert "undecided" in done.report.layer_ids_decided_by


def test_a_head_with_one_reading_is_not_measured(
    model: Any, open_head: HeadCheckpoint, tmp_path: Path
) -> None:
    write_checkpoint(replace(open_head, alternatives=()), tmp_path / "head")
    assert not read_checkpoint(tmp_path / "head", target_layers=8).alternatives

    def never() -> list[list[int]]:
        raise AssertionError("asked for prompts")

    head = head_for(
        "eagle3",
        model,
        source=str(tmp_path / "head"),
        prompts=never,
        dtype=torch.float32,
        device=CPU,
    )
    assert head.config.boundaries == (2, 4, 5)


def test_a_head_whose_file_is_open_is_measured_before_it_drafts(
    model: Any, open_head: HeadCheckpoint, tmp_path: Path
) -> None:
    """SpecForge counts layer outputs, but a first id of 2 speaks for states after so many layers:
    both readings stay, until the first guesses decide."""
    path = tmp_path / "head"
    whole = complete(replace(open_head, alternatives=()), model)
    write_checkpoint(whole, path, format="specforge")
    facts = json.loads((path / "config.json").read_text())
    del facts["labkit"]
    facts["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [2, 3, 6]
    (path / "config.json").write_text(json.dumps(facts))
    checkpoint = read_checkpoint(path, target_layers=8)
    assert {c.boundaries for c in readings_of(checkpoint, target_layers=8)} == {
        (2, 3, 6),
        (3, 4, 7),
    }
    prompts = [tuple(t % 12 for t in prompt) for prompt in PROMPTS]
    options: dict[str, Any] = {"dtype": torch.float32, "device": CPU}
    measured = measure_readings(checkpoint, model, prompts, **options)
    head = head_for("eagle3", model, source=str(path), prompts=lambda: prompts, **options)
    assert head.config.boundaries == max(measured, key=lambda m: m.rate).config.boundaries
