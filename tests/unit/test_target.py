"""The target's forwards and its cache: refusals, roll-back, activations, fixed width."""

from typing import Any

import numpy as np
import pytest
import torch
from helpers import plain_logits, prompt_of, tiny

from labkit.errors import BadInput, LabError
from labkit.target import Target
from labkit.toy import TableModel, random_table
from labkit.tree import DraftTree

PROMPT = prompt_of(9)
TREE = DraftTree((PROMPT[-1], 4, 5, 6), (-1, 0, 0, 1))


def filled(**options: Any) -> Target:
    target = Target(tiny("llama"), **options)
    target.prefill(PROMPT)
    return target


def test_prefill_leaves_the_last_token_pending() -> None:
    target = filled()
    assert target.length == len(PROMPT) - 1
    assert target.slots_used == len(PROMPT) - 1
    assert target.forwards == 1


def test_a_prompt_of_one_token_needs_no_forward() -> None:
    target = Target(tiny("llama"))
    target.prefill([3])
    assert (target.length, target.forwards) == (0, 0)


def test_long_prompts_are_filled_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labkit.target._PREFILL_BLOCK", 4)
    target = filled(needs=("h1",))
    assert target.forwards == 2
    tree = DraftTree.chain(PROMPT[-1:])
    with target.speculation():
        assert torch.allclose(
            target.score(tree).logits[0], plain_logits(tiny("llama"), PROMPT)[-1], atol=1e-5
        )


def test_scores_of_a_tree_are_those_of_its_paths() -> None:
    target = filled()
    with target.speculation():
        logits = target.score(TREE).logits
    for node in range(len(TREE)):
        path = [TREE.tokens[i] for i in TREE.path(node)]
        plain = plain_logits(tiny("llama"), [*PROMPT[:-1], *path])[-1]
        assert torch.allclose(logits[node], plain, atol=1e-5)
    # negative control: the sibling branches differ, so mixing them up would show
    assert not torch.allclose(logits[1], logits[2], atol=1e-2)


def test_commit_keeps_the_path_and_forgets_the_rest() -> None:
    target = filled()
    with target.speculation():
        scores = target.score(TREE)
        kept = target.commit((0, 1, 3))
    assert kept == tuple(scores.slots[i] for i in (0, 1, 3))
    assert target.committed_slots[-3:] == kept
    assert target.length == target.slots_used == len(PROMPT) + 2


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, GeneratorExit])
def test_leaving_the_scope_forgets(error: type[BaseException]) -> None:
    target = filled()

    def leave() -> None:
        with target.speculation():
            target.score(TREE)
            assert target.slots_used == len(PROMPT) + 3
            raise error

    with pytest.raises(error):
        leave()
    assert target.slots_used == target.length == len(PROMPT) - 1


def test_scoring_twice_without_a_decision_is_refused() -> None:
    target = filled()
    with target.speculation():
        target.score(TREE)
        with pytest.raises(LabError, match="commit or forget before the next score"):
            target.score(TREE)


def test_a_new_prompt_starts_from_nothing() -> None:
    target = filled()
    with target.speculation():
        target.score(TREE)
        target.commit((0, 1))
    target.prefill(PROMPT[:4])
    with target.speculation():
        logits = target.score(DraftTree.chain(PROMPT[3:4])).logits
    assert torch.allclose(logits[0], plain_logits(tiny("llama"), PROMPT[:4])[-1], atol=1e-5)


def test_appended_tokens_stay_until_they_are_truncated() -> None:
    target = filled()
    logits = target.append(torch.tensor([PROMPT[-1], 4]))
    assert torch.allclose(logits, plain_logits(tiny("llama"), [*PROMPT, 4])[-1:], atol=1e-5)
    assert target.length == len(PROMPT) + 1
    target.truncate(3)
    assert target.length == target.slots_used == 3


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_activations_are_the_residual_stream_after_k_layers(family: str) -> None:
    """As the model's own ``hidden_states`` have it, where entry k is the output of k layers."""
    model = tiny(family)
    target = Target(model, needs=("h0", "h1"))
    hidden = target.prefill(PROMPT)
    with torch.inference_mode():
        out = model(
            input_ids=torch.tensor([PROMPT[:-1]]), output_hidden_states=True, use_cache=False
        )
    assert torch.allclose(hidden["h0"], out.hidden_states[0][0], atol=1e-6)
    assert torch.allclose(hidden["h1"], out.hidden_states[1][0], atol=1e-5)
    assert not torch.allclose(hidden["h0"], hidden["h1"], atol=1e-2)
    with target.speculation():
        scores = target.score(TREE)
    assert {name: h.shape for name, h in scores.hidden.items()} == {"h0": (4, 32), "h1": (4, 32)}


def test_an_activation_that_is_not_there_is_refused() -> None:
    with pytest.raises(BadInput, match="h0 to h2"):
        Target(tiny("llama"), needs=("h3",))


def test_fixed_width_pads_the_forward_and_changes_nothing_else() -> None:
    plain, wide = filled(), filled(width=8)
    seen = []
    wide.model.register_forward_pre_hook(
        lambda _m, _a, kwargs: seen.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    try:
        with plain.speculation(), wide.speculation():
            ours, theirs = wide.score(TREE), plain.score(TREE)
            wide.commit((0, 1))
    finally:
        wide.model._forward_pre_hooks.clear()
    assert seen[0] == 8
    assert torch.allclose(ours.logits, theirs.logits, atol=1e-6)
    assert wide.slots_used == wide.length == len(PROMPT) + 1


@pytest.mark.parametrize(
    ("prompt", "named"),
    [
        ([], "at least one token"),
        ([[1, 2], [3]], "batch size 1"),
        ([1, 2.0], "got 2.0 (float) as entry 1"),
        ([1, True], "got True (bool) as entry 1"),
        ([None], "got None (NoneType) as entry 0"),
        (None, "'NoneType' object is not iterable"),
        ("some text", "got 'some text' (str). Next: tokenise text first"),
        (b"ids", "got b'ids' (bytes)"),
        ({"input_ids": [1]}, "got 'input_ids' (str)"),
        (torch.tensor([[1, 2]]), "batch size 1"),
        (torch.tensor([[1], [2]]), "batch size 1"),
        (torch.tensor([True]), "got tensor(True) (Tensor)"),
        (np.array([[1], [2]]), "batch size 1"),
        (np.array([True]), "got np.True_ (bool"),
        ([1, 64], "ids from 0 to 63, got 64"),
        ([1, -1], "got -1"),
        ([1] * 512, "fewer than 512 tokens"),
    ],
)
def test_prompts_that_cannot_be_decoded_are_refused(prompt: Any, named: str) -> None:
    with pytest.raises(BadInput) as caught:
        Target(tiny("llama")).check_tokens(prompt)
    assert named in str(caught.value)


@pytest.mark.parametrize("spelled", [tuple, iter, torch.tensor, np.array], ids=lambda f: f.__name__)
def test_prompts_of_any_whole_numbers_become_plain_ints(spelled: Any) -> None:
    ids = Target(tiny("llama")).check_tokens(spelled([1, 2, 3]))
    assert ids == [1, 2, 3]
    assert {type(i) for i in ids} == {int}


def test_context_limit_is_unknown_when_the_model_does_not_say() -> None:
    model = TableModel(random_table(4, seed=0))
    assert Target(model).context_limit is None
    assert Target(tiny("gpt2", context=77)).context_limit == 77
