"""Modules of every family compute what transformers' own MTP computes, or what their formulas say.

The tiny checkpoints have the names of published ones; see `mtp_files`.
"""

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import greedy_reference, prompt_of, run
from mtp_files import LAYERS, Module, save, states, target, weights
from safetensors.torch import load_file
from torch import Tensor
from transformers.cache_utils import MtpCache
from transformers.generation.logits_process import LogitsProcessorList
from transformers.modeling_layers import MtpModel

from labkit.draft import Draft
from labkit.drafters.base import Commit
from labkit.drafters.mtp import mtp_drafter
from labkit.drafters.shapes import SMALL_TREE, Chain, DynamicTree
from labkit.heads.checkpoints.mtp import MtpCheckpoint, build_mtp, read_mtp
from labkit.heads.checkpoints.mtp_names import native, unstacked
from labkit.heads.checkpoints.mtp_write import save_native
from labkit.heads.mtp import ADAPTERS, FINAL, LAST, SWITCHES, MtpHead, random_mtp
from labkit.sampling import TorchRng, Warp
from labkit.target import Target

CLOSE, FAR = 1e-5, 1e-3
TOKENS = [3, 17, 40, 5, 22, 61, 9]
HF = [("glm", 1), ("glm", 3), ("deepseek", 1), ("deepseek", 2)]


def native_weights(family: str, modules: int) -> dict[str, Tensor]:
    """Random modules under their family's names, one tensor per expert, with a copy of the rows."""
    model = target(family, modules)
    head = random_mtp(model, ADAPTERS[family], modules=modules, seed=2)
    own = unstacked(head.layers.state_dict(prefix="layers."))
    named = {native(n, ADAPTERS[family], layers=LAYERS): t.clone() for n, t in own.items()}
    for k in range(modules):
        prefix = f"model.layers.{LAYERS + k}."
        named[f"{prefix}embed_tokens.weight"] = model.get_input_embeddings().weight.clone()
        named[f"{prefix}shared_head.head.weight"] = model.get_output_embeddings().weight.clone()
    return named


def build(checkpoint: MtpCheckpoint, model: Any, **switches: Any) -> MtpHead:
    config = checkpoint.config
    changed = replace(config, adapter=replace(config.adapter, **switches))
    return build_mtp(
        replace(checkpoint, config=changed),
        target_model=model,
        dtype=torch.float32,
        device="cpu",
    )


def drafted(head: MtpHead, model: Any, tokens: list[int], *, depth: int) -> Draft:
    """A greedy chain from true states, which come from transformers' own forward."""
    drafter = mtp_drafter(head)
    found = states(model, tokens)
    named = {FINAL: found["final"], f"h{LAYERS}": found["last"]}
    drafter.observe(Commit(tuple(tokens), {n: named[n][:-1] for n in drafter.needs}))
    return drafter.propose(tokens, TorchRng(0), depth=depth, warp=Warp())


def gap(draft: Draft, guesses: list[int], rows: list[Tensor]) -> float:
    """Largest difference of any logit; infinite where other tokens are drafted."""
    if list(draft.tree.tokens[1:]) != guesses:
        return float("inf")
    pairs = zip(draft.logits[1:], rows, strict=True)
    return max(float((ours - theirs).abs().max()) for ours, theirs in pairs if ours is not None)


# --- transformers' own ---


@torch.no_grad()
def of_transformers(own: MtpModel, model: Any, tokens: list[int]) -> tuple[list[int], list[Tensor]]:
    """What ``generate(use_mtp=True)`` drafts after a prompt."""
    ids, rows, _ = own(
        input_ids=torch.tensor([tokens[1:]]),
        last_hidden_states=states(model, tokens)["final"][None, :-1],
        attention_mask=torch.ones(1, len(tokens) - 1),  # 5.15 shifts it, and uses it for nothing
        position_ids=torch.arange(1, len(tokens))[None],
        mtp_cache=MtpCache(config=model.config.get_mtp_config()),
        logits_processor=LogitsProcessorList(),
        full_input_ids=torch.tensor([tokens]),
    )
    return ids[0].tolist(), list(rows[0])


@pytest.mark.parametrize(("family", "modules"), HF)
def test_logits_are_those_of_transformers(
    family: str, modules: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = type(target(family, modules))
    folder = save(tmp_path / "m", target(family, modules), native_weights(family, modules))
    # transformers looks for modules at the layers of the full-size models, by number
    patterns = [rf"model\.layers\.{LAYERS + k}\..*" for k in range(modules)]
    monkeypatch.setattr(kind, "_keys_to_ignore_on_load_unexpected", patterns)
    # 5.15 counts modules from 0 and so takes them for the dense first layers; later ones do not
    config = type(target(family, modules).config)
    before = config.get_mtp_config

    def with_experts(self: Any) -> Any:
        made = before(self)
        made.first_k_dense_replace = 0
        return made

    monkeypatch.setattr(config, "get_mtp_config", with_experts)
    model = kind.from_pretrained(folder, dtype=torch.float32).eval()
    theirs = MtpModel.from_pretrained(model).eval()
    head = build(read_mtp(folder, target_model=model), model)
    for length in (2, 3, len(TOKENS)):
        tokens = TOKENS[:length]
        draft = drafted(head, model, tokens, depth=modules)
        assert gap(draft, *of_transformers(theirs, model, tokens)) < CLOSE


# --- formulas ---


@lru_cache
def stored(family: str, root: str) -> tuple[MtpCheckpoint, Any, Module]:
    model, made = target(family), weights(family)
    folder = save(Path(root) / family, model, made, shards=family == "qwen")
    return read_mtp(folder, target_model=model), model, Module(family, model, made)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("mtp"))


@pytest.mark.parametrize("family", ["qwen", "mimo"])
def test_logits_are_those_of_the_formulas(family: str, root: str) -> None:
    checkpoint, model, module = stored(family, root)
    assert checkpoint.config.adapter is ADAPTERS[family]
    assert checkpoint.report.unused == checkpoint.report.missing == ()
    head = build(checkpoint, model)
    for length in (2, len(TOKENS)):
        draft = drafted(head, model, TOKENS[:length], depth=4)
        assert gap(draft, *module.chain(model, TOKENS[:length], 4)) < CLOSE


FLIPPED = {
    "norm_adds_one": lambda on: not on,
    "hidden_first": lambda on: not on,
    "recycles_normed": lambda on: not on,
    "masks_first": lambda on: not on,
    "state": lambda state: LAST if state == FINAL else FINAL,
}


@pytest.mark.parametrize("switch", SWITCHES)
@pytest.mark.parametrize("family", ["qwen", "mimo"])
def test_each_switch_changes_the_logits(family: str, switch: str, root: str) -> None:
    checkpoint, model, module = stored(family, root)
    right = getattr(checkpoint.config.adapter, switch)
    head = build(checkpoint, model, **{switch: FLIPPED[switch](right)})
    assert gap(drafted(head, model, TOKENS, depth=4), *module.chain(model, TOKENS, 4)) > FAR


@pytest.mark.parametrize("switch", SWITCHES)
@pytest.mark.parametrize("family", ["mimo", "glm"])
def test_a_wrong_switch_leaves_the_text_alone(family: str, switch: str) -> None:
    model, prompt = target(family), prompt_of(9)
    adapter = ADAPTERS[family]
    wrong = replace(adapter, **{switch: FLIPPED[switch](getattr(adapter, switch))})
    head = random_mtp(model, wrong)
    trace = run(
        Target(model, needs=head.config.needs), mtp_drafter(head), prompt, max_new_tokens=12
    )
    assert trace.tokens == greedy_reference(model, prompt, 12)


@pytest.mark.parametrize("shape", [Chain(), SMALL_TREE, DynamicTree(top_k=3, nodes=8)])
@pytest.mark.parametrize(
    ("family", "modules"), [("glm", 1), ("glm", 2), ("deepseek", 1), ("deepseek", 2), ("mimo", 1)]
)
def test_greedy_text_is_that_of_plain_decoding(family: str, modules: int, shape: Any) -> None:
    model = target(family, modules)
    head = random_mtp(model, ADAPTERS[family], modules=modules)
    for length in (1, 17):
        prompt = prompt_of(length)
        drafter = mtp_drafter(head, shape=shape)
        trace = run(Target(model, needs=drafter.needs), drafter, prompt, max_new_tokens=12)
        assert trace.tokens == greedy_reference(model, prompt, 12)


def test_greedy_text_of_a_hybrid_target() -> None:
    """Qwen-3.5's recurrent layers allow chains only; its module is attention like any other."""
    model, prompt = target("hybrid"), prompt_of(9)
    head = random_mtp(model, ADAPTERS["qwen"])
    for length in (1, 4):
        live = Target(model, needs=head.config.needs)
        trace = run(live, mtp_drafter(head), prompt, max_new_tokens=12, draft_length=length)
        assert trace.tokens == greedy_reference(model, prompt, 12)


def test_pre_and_post_norm_states_are_fed_as_they_are() -> None:
    """The tensor that enters the first module is the target's, bit for bit."""
    model = target("mimo")
    found = states(model, TOKENS)
    fed = {}
    for state in (FINAL, LAST):
        head = random_mtp(model, replace(ADAPTERS["mimo"], state=state))
        hook = head.layers[0].hnorm.register_forward_pre_hook(
            lambda m, args, state=state: fed.__setitem__(state, args[0][0])
        )
        drafter, live = mtp_drafter(head), Target(model, needs=head.config.needs)
        hidden = live.prefill(TOKENS)
        drafter.observe(Commit(tuple(TOKENS), hidden))
        drafter.propose(TOKENS, TorchRng(0), depth=1, warp=Warp())
        hook.remove()
        assert torch.equal(fed[state], hidden[head.config.needs[0]])
        assert torch.allclose(fed[state], found[state][:-1], atol=CLOSE, rtol=CLOSE)
    norm = model.model.norm
    assert torch.equal(norm(fed[LAST]), fed[FINAL])
    assert not torch.allclose(fed[LAST], fed[FINAL], atol=FAR)


# --- files ---


@pytest.mark.parametrize(
    ("family", "modules"), [("glm", 2), ("deepseek", 1), ("qwen", 1), ("mimo", 1)]
)
def test_a_round_trip_keeps_names_and_bytes(family: str, modules: int, tmp_path: Path) -> None:
    model = target(family, modules)
    made = weights(family) if family in ("qwen", "mimo") else native_weights(family, modules)
    made = {n: t if "bias" in n and family != "mimo" else t.bfloat16() for n, t in made.items()}
    folder = save(tmp_path / "m", model, made)
    checkpoint = read_mtp(folder, target_model=model)
    again = load_file(save_native(checkpoint, tmp_path / "mtp.safetensors"))
    assert again.keys() == made.keys()
    for name, tensor in made.items():
        assert again[name].dtype == tensor.dtype
        assert again[name].view(torch.uint8).equal(tensor.view(torch.uint8)), name
