"""The states that heads read are transformers' own `hidden_states`, at the documented depths.

Depths: facts of SafeAILab/EAGLE and vLLM, "after 2, L // 2 and L - 3 layers"; the numbers below
are written out for common targets (28 Qwen3-0.6B, 30 SmolLM2-135M, 32 Llama-3.1-8B, 36 Qwen3-8B).
"""

import pytest
import torch
from helpers import prompt_of

from labkit.errors import BadInput
from labkit.heads.eagle import default_boundaries, head_config
from labkit.target import Target
from labkit.toy import tiny
from labkit.tree import DraftTree

DEPTHS = {8: (2, 4, 5), 28: (2, 14, 25), 30: (2, 15, 27), 32: (2, 16, 29), 36: (2, 18, 33)}


@pytest.mark.parametrize("layers", DEPTHS)
def test_states_are_those_of_transformers_bit_for_bit(layers: int) -> None:
    """Heads that read states off by one layer; here the very forward that the target runs is
    asked for its `hidden_states` too."""
    assert default_boundaries(layers) == DEPTHS[layers]
    model = tiny("llama", layers=layers)
    needs = (*head_config(model, 3).needs, *head_config(model, 1).needs, "h0", f"h{layers - 1}")
    target, seen = Target(model, needs=needs), {}
    asked = model.forward

    def listening(**arguments: object) -> object:
        out = asked(**arguments, output_hidden_states=True)
        seen["states"] = [h.clone() for h in out.hidden_states]
        return out

    model.forward = listening
    target.prefill(prompt_of(12))
    with target.speculation():
        found = target.score(DraftTree((5, 6, 7, 8), (-1, 0, 0, 1))).hidden
    for name in needs:
        expected = seen["states"][-1 if name == "final" else int(name[1:])][0]
        assert torch.equal(found[name], expected), name
    # the last entry of `hidden_states` is normed: boundary L is another state than "final"
    assert len(seen["states"]) == layers + 1


def test_the_state_after_all_layers_is_not_the_normed_one() -> None:
    model = tiny("llama", layers=8)
    target = Target(model, needs=("h8", "final"))
    target.prefill(prompt_of(4))
    with target.speculation():
        found = target.score(DraftTree.chain((5,))).hidden
    assert not torch.equal(found["h8"], found["final"])
    torch.testing.assert_close(model.model.norm(found["h8"]), found["final"])


def test_a_target_without_three_depths_is_refused() -> None:
    """Layer ids that a shallow target does not have (Model-Optimizer PR #300): the usual formula
    gives (2, 2, 1) for four layers and (2, 1, -1) for two; neither reaches a model."""
    for layers in (1, 2, 4, 5, 6):
        with pytest.raises(BadInput, match=f"got {layers} layers"):
            default_boundaries(layers)
    with pytest.raises(BadInput, match="h0 to h2, or final"):
        Target(tiny("llama", layers=2), needs=("h3",))


def test_a_shallow_target_takes_boundaries_that_are_named() -> None:
    model = tiny("llama", layers=4)
    assert head_config(model, 3, boundaries=(1, 2, 3)).needs == ("h1", "h2", "h3")
    with pytest.raises(BadInput, match="or boundaries of your own, got 4 layers"):
        head_config(model, 3)


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "mistral", "phi3", "gemma3"])
def test_every_family_has_its_states(family: str) -> None:
    model = tiny(family, layers=2)
    target = Target(model, needs=("h0", "h1", "final"))
    target.prefill(prompt_of(6))
    with target.speculation():
        found = target.score(DraftTree.chain((5,)))
    logits = model.get_output_embeddings()(found.hidden["final"])
    torch.testing.assert_close(logits, found.logits)
