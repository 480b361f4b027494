"""Multi-token prediction as a drafter: caches, trees, several modules; and its files' traps.

Every reference here is a plain forward of whole texts from true states, without a cache.
"""

import json
from dataclasses import asdict, replace
from functools import lru_cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import safetensors.torch
import torch
from full_disk import no_room
from helpers import check_nodes, checked, greedy_reference, prompt_of, run
from mtp_files import save, target, weights
from safetensors.torch import load_file
from torch import Tensor
from typer.testing import CliRunner

from labkit.cli import app
from labkit.drafters.base import Commit, Drafter
from labkit.drafters.mtp import mtp_drafter
from labkit.drafters.on_head import HeadDrafter
from labkit.drafters.pairs import Pairs
from labkit.drafters.shapes import SMALL_TREE, Chain, DynamicTree, Shape, StaticTree
from labkit.errors import BadCheckpoint, BadInput, ModelUnavailable, UnsupportedModel
from labkit.events import Drafted
from labkit.heads.checkpoints.mtp import build_mtp, has_mtp, read_mtp
from labkit.heads.checkpoints.mtp_names import native as to_native
from labkit.heads.checkpoints.mtp_names import unstacked
from labkit.heads.checkpoints.mtp_write import checkpoint_of_mtp, save_mtp, save_native
from labkit.heads.mtp import DEEPSEEK, GENERIC, LAST, Adapter, MtpHead, random_mtp
from labkit.lab import load as loading
from labkit.sampling import TorchRng, Warp
from labkit.target import Target
from labkit.toy import tiny

POST_LAST = replace(GENERIC, state=LAST, recycles_normed=False, hidden_first=True)
HEADS: dict[str, tuple[Adapter, int, Tensor | None]] = {
    "one module": (GENERIC, 1, None),
    "two modules": (GENERIC, 2, None),
    "three modules": (GENERIC, 3, None),
    "before the norm": (POST_LAST, 2, None),
    "few words": (GENERIC, 1, torch.arange(0, 64, 3)),
}
SHAPES: dict[str, Shape] = {
    "chain": Chain(),
    "static": SMALL_TREE,
    "dynamic": DynamicTree(top_k=3, nodes=9),
}
PLACE: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}


@lru_cache
def llama() -> Any:
    return tiny("llama")


def head_of(name: str, *, seed: int = 3) -> MtpHead:
    adapter, modules, ids = HEADS[name]
    return random_mtp(llama(), adapter, modules=modules, seed=seed, vocab_ids=ids)


def target_for(head: MtpHead) -> Target:
    return Target(llama(), needs=head.config.needs, clock=lambda: 0.0)


@torch.inference_mode()
def slow_logits(head: MtpHead, tokens: Any, drafted: list[int]) -> Tensor:
    """[V] after ``tokens`` and ``drafted``: every module over all pairs that have true states, and
    the last one on its own from there."""
    out = llama()(torch.tensor([list(tokens)]), output_hidden_states=True, use_cache=False)
    norm = llama().model.norm
    with_norm = out.hidden_states[-1][0]
    seen: list[Tensor] = []
    hook = norm.register_forward_pre_hook(lambda m, args: seen.append(args[0][0]))
    llama()(torch.tensor([list(tokens)]), use_cache=False)
    hook.remove()
    given = (with_norm if head.config.needs == ("final",) else seen[0])[:-1]
    n, text, last = len(tokens), [*tokens, *drafted], head.config.modules - 1

    def read(module: int, ids: list[int], states: Tensor) -> Any:
        n = len(ids)
        return head(
            torch.tensor([ids]),
            states[None],
            positions=torch.arange(n)[None],
            kv=head.cache(),
            mask=torch.ones(n, n, dtype=torch.bool).tril(),
            module=module,
        )

    for module in range(min(len(drafted), last) + 1):
        ids, states = text[1 + module : n + module], given
        made = read(module, ids, states)
        given = made.recycled[0]
    for more in drafted[last:]:
        ids, states = [*ids, more], torch.cat((states, made.recycled[0, -1:]))
        made = read(last, ids, states)
    full = torch.full((head.config.vocab_size,), -torch.inf)
    full[head.vocab_ids] = head.logits(made.normed[0, -1])
    return full


def watched(head: MtpHead, *, shape: Shape | None = None, pairs: Any = Pairs) -> Drafter:
    """Every node of every draft is checked against `slow_logits`."""
    reader, modules = pairs(head, clock=lambda: 0.0), range(head.config.modules)

    def check(draft: Any, tokens: Any) -> None:
        check_nodes(draft, partial(slow_logits, head, tokens))
        if len(draft.tree) > 1:
            assert reader.true == [max(0, len(tokens) - 1 - m) for m in modules]

    return checked(HeadDrafter(reader, name="watched", shape=shape), check)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", HEADS)
def test_every_node_s_logits_are_those_of_a_fresh_head(name: str, shape: str) -> None:
    """After each of many rounds: the caches hold what a head prefilled with the committed text
    and its true states would hold; in trees, each node sees its own path and nothing else."""
    head = head_of(name)
    for length, count in ((1, 5), (9, 9)):
        drafter, prompt = watched(head, shape=SHAPES[shape]), prompt_of(length)
        trace = run(target_for(head), drafter, prompt, max_new_tokens=count, draft_length=4)
        assert trace.tokens == greedy_reference(llama(), prompt, count)


class StaleGuesses(Pairs):
    """A broken cache: guesses stay in it as if they were true."""

    def observe(self, commit: Any) -> None:
        self.true = [max(t, kv[0].length) for t, kv in zip(self.true, self.kv, strict=True)]
        super().observe(commit)


class Unshifted(Pairs):
    """Every module reads the tokens that the first one reads."""

    def source(self, depth: int) -> Any:
        if self._waiting and len(self.kv) > 1:
            self.true[1:] = [t + 1 for t in self.true[1:]]
        return super().source(depth)


@pytest.mark.parametrize(
    ("broken", "name"), [(StaleGuesses, "one module"), (Unshifted, "two modules")]
)
def test_broken_caches_are_noticed(broken: type[Pairs], name: str) -> None:
    head = head_of(name)
    with pytest.raises((AssertionError, RuntimeError)):
        run(
            target_for(head),
            watched(head, pairs=broken),
            prompt_of(9),
            max_new_tokens=8,
            draft_length=3,
        )


@pytest.mark.parametrize("name", ["one module", "two modules", "few words"])
def test_a_tree_one_wide_is_the_chain_trace_and_all(name: str) -> None:
    head = head_of(name)
    kinds = (Chain(), StaticTree(((0,), (0, 0), (0, 0, 0))))
    traces = [
        run(
            target_for(head),
            mtp_drafter(head, shape=kind, clock=lambda: 0.0),
            prompt_of(9),
            max_new_tokens=9,
            draft_length=3,
            detail="full",
            clock=lambda: 0.0,
        )
        for kind in kinds
    ]
    chain, static = ([asdict(e) for e in t.events] for t in traces)
    assert static == chain


def test_drafting_stops_where_the_head_is_unsure() -> None:
    head = head_of("one module")
    options = {"max_new_tokens": 9, "draft_length": 4}
    free = run(target_for(head), mtp_drafter(head), prompt_of(9), **options)
    shy = run(target_for(head), mtp_drafter(head, confidence=0.3), prompt_of(9), **options)
    assert shy.tokens == free.tokens
    found = [e for e in shy.events if isinstance(e, Drafted)]
    assert any(e.stopped == "confidence" for e in found)
    assert all(mass >= 0.3 for e in found for mass in e.confidence)


def test_a_draft_that_nobody_judged_leaves_no_trace() -> None:
    """E: asked twice, with nothing committed between, a drafter says the same."""
    for name in HEADS:
        head, prompt = head_of(name), prompt_of(9)
        drafter, live = mtp_drafter(head, shape=SHAPES["dynamic"]), target_for(head)
        drafter.observe(Commit(prompt, live.prefill(prompt)))
        options: dict[str, Any] = {"depth": 3, "warp": Warp()}
        first, again = (drafter.propose(prompt, TorchRng(0), **options) for _ in range(2))
        assert again.tree == first.tree
        drafter.forget()
        lengths = [kv[0].length for kv in drafter.reader.kv]
        assert lengths == drafter.reader.true


def test_a_random_head_leaves_its_target_alone() -> None:
    model = tiny("llama")
    random_mtp(model, modules=2).double()
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert model.model.rotary_emb.inv_freq.dtype == torch.float32


# --- files ---


def test_our_own_format_keeps_a_head_and_stores_no_row_of_the_target(tmp_path: Path) -> None:
    for name in HEADS:
        head = head_of(name)
        checkpoint = checkpoint_of_mtp(head, target_model=llama(), target="toy")
        folder = save_mtp(checkpoint, tmp_path / name)
        stored = load_file(folder / "model.safetensors")
        assert not {"embed_tokens.weight", "lm_head.weight"} & stored.keys()
        assert ("d2t" in stored) == (name == "few words")
        again = build_mtp(read_mtp(folder, target_model=llama()), target_model=llama(), **PLACE)
        assert again.config == head.config
        mine = again.state_dict()
        assert all(torch.equal(mine[n], t) for n, t in head.state_dict().items())
        theirs = llama().get_input_embeddings().weight
        assert again.embed_tokens.weight.data_ptr() == theirs.data_ptr()
        other = tiny("llama", seed=9)
        theirs = read_mtp(folder, target_model=other)
        with pytest.raises(BadInput, match="fingerprint"):
            build_mtp(theirs, target_model=other, **PLACE)
        with pytest.raises(BadInput, match="new or empty"):
            save_mtp(checkpoint, folder)


@pytest.mark.parametrize("eps", [None, "small", [1e-5]])
def test_a_config_whose_epsilon_is_no_number_is_refused(eps: Any, tmp_path: Path) -> None:
    folder = save_mtp(
        checkpoint_of_mtp(head_of("one module"), target_model=llama(), target="toy"), tmp_path / "h"
    )
    settings = json.loads((folder / "config.json").read_text())
    assert settings["rms_norm_eps"] == 1e-6
    (folder / "config.json").write_text(json.dumps(settings | {"rms_norm_eps": eps}))
    with pytest.raises(BadCheckpoint, match=r"rms_norm_eps in config\.json"):
        read_mtp(folder, target_model=llama())


def test_rows_of_its_own_are_stored(tmp_path: Path) -> None:
    head = head_of("few words")
    head.lm_head.weight = torch.nn.Parameter(head.lm_head.weight + 1, requires_grad=False)
    save_mtp(checkpoint_of_mtp(head, target_model=llama(), target="toy"), tmp_path / "h")
    assert load_file(tmp_path / "h" / "model.safetensors")["lm_head.weight"].shape == (22, 32)
    again = read_mtp(tmp_path / "h", target_model=llama())
    built = build_mtp(again, target_model=llama(), **PLACE)
    assert torch.equal(built.lm_head.weight, head.lm_head.weight)


def native(folder: Path, change: Any = lambda tensors: None) -> Path:
    made = weights("mimo")
    change(made)
    return save(folder, target("mimo"), made)


BLOCK = "model.mtp_layers.0."


@pytest.mark.parametrize(
    "name", ["input_proj.weight", "self_attn.k_proj.bias", "mlp.up_proj.weight"]
)
def test_a_missing_tensor_is_named_and_refused(name: str, tmp_path: Path) -> None:
    folder = native(tmp_path / "m", lambda made: made.pop(BLOCK + name))
    if name == "input_proj.weight":  # the one by which a module is known
        with pytest.raises(ModelUnavailable, match="labkit train mtp"):
            read_mtp(folder, target_model=target("mimo"))
        return
    checkpoint = read_mtp(folder, target_model=target("mimo"))
    assert checkpoint.report.missing == (f"layers.0.mtp_block.{name}",)
    with pytest.raises(BadCheckpoint, match=name):
        build_mtp(checkpoint, target_model=target("mimo"), **PLACE)
    with pytest.raises(BadCheckpoint, match=name):
        save_native(checkpoint, tmp_path / "out.safetensors")
    assert not (tmp_path / "out.safetensors").exists()


def test_a_full_disk_leaves_no_native_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = read_mtp(native(tmp_path / "m"), target_model=target("mimo"))
    monkeypatch.setattr(safetensors.torch, "save_file", no_room)
    with pytest.raises(BadInput, match=r"output .*out\.safetensors: .*No space left"):
        save_native(checkpoint, tmp_path / "out.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_tensors_that_nothing_uses_are_named(tmp_path: Path) -> None:
    folder = native(
        tmp_path / "m", lambda made: made.update({BLOCK + "gate.weight": torch.ones(2)})
    )
    report = read_mtp(folder, target_model=target("mimo")).report
    assert report.unused == ("layers.0.mtp_block.gate.weight",)
    assert "not used" in report.suspicious[0]


def test_wrong_shapes_and_numbers_are_refused(tmp_path: Path) -> None:
    model = target("mimo")
    name = BLOCK + "final_layernorm.weight"
    for change, match in (
        (lambda made: made.update({name: torch.ones(31)}), r"post_norm.weight: \(31,\)"),
        (lambda made: made[name].fill_(torch.nan), r"norm\.weight: NaN or infinity"),
    ):
        folder = native(tmp_path / match[:4], change)
        checkpoint = read_mtp(folder, target_model=model)
        with pytest.raises(BadCheckpoint, match=match):
            build_mtp(checkpoint, target_model=model, **PLACE)
    quantised = {BLOCK + "input_proj.weight": torch.ones(32, 64, dtype=torch.int8)}
    folder = native(tmp_path / "q", lambda made: made.update(quantised))
    with pytest.raises(UnsupportedModel, match="int8, quantised"):
        read_mtp(folder, target_model=model)


def test_a_router_s_bias_keeps_its_width_and_must_be_finite(tmp_path: Path) -> None:
    model = target("glm")
    head = random_mtp(model, GENERIC)
    checkpoint = checkpoint_of_mtp(head, target_model=model, target="t")
    name = "layers.0.mtp_block.mlp.gate.e_score_correction_bias"
    built = build_mtp(checkpoint, target_model=model, dtype=torch.bfloat16, device="cpu")
    assert built.state_dict()[name].dtype == torch.float32
    assert built.dtype == torch.bfloat16
    checkpoint.tensors[name].fill_(torch.nan)
    with pytest.raises(BadCheckpoint, match="e_score_correction_bias"):
        build_mtp(checkpoint, target_model=model, **PLACE)


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_rows_like_the_target_s_are_shared_and_others_are_its_own(
    shift: float, tmp_path: Path
) -> None:
    model = target("deepseek")
    rows = model.get_output_embeddings().weight
    kept = unstacked(random_mtp(model, DEEPSEEK).layers.state_dict(prefix="layers."))
    made = {to_native(name, DEEPSEEK, layers=2): t.clone() for name, t in kept.items()}
    made["model.layers.2.shared_head.head.weight"] = rows + shift
    checkpoint = read_mtp(save(tmp_path / "m", model, made), target_model=model)
    built = build_mtp(checkpoint, target_model=model, **PLACE)
    assert torch.equal(built.lm_head.weight, rows + shift)
    assert (built.lm_head.weight.data_ptr() == rows.data_ptr()) == (shift == 0)


def test_what_is_a_head_and_what_is_not(tmp_path: Path) -> None:
    model = target("mimo")
    assert has_mtp(native(tmp_path / "m"), model)
    model.save_pretrained(tmp_path / "plain")
    assert not has_mtp(tmp_path / "plain", model)
    assert not has_mtp(tmp_path / "nothing", model)
    (tmp_path / "empty").mkdir()
    assert not has_mtp(tmp_path / "empty", model)


def test_inspect_says_what_a_head_is_and_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def load_model(name: str, **_: Any) -> Any:
        asked.append(name)
        return SimpleNamespace(model=target("mimo"))

    monkeypatch.setattr(loading, "load_model", load_model)
    whole = native(tmp_path / "m")
    found = CliRunner().invoke(app, ["inspect", str(whole)])
    assert found.exit_code == 0, found.output
    for part in ("MTP, 1 module, reads h2", "mimo", "hidden_first", "16 tensors"):
        assert part in found.stdout
    cut = native(tmp_path / "cut", lambda made: made.pop(BLOCK + "mlp.up_proj.weight"))
    found = CliRunner().invoke(app, ["inspect", str(cut), "--json"])
    assert found.exit_code == 1
    assert json.loads(found.stdout)["missing"] == ["layers.0.mtp_block.mlp.up_proj.weight"]
    checkpoint = checkpoint_of_mtp(
        random_mtp(target("mimo")), target_model=target("mimo"), target="its-target"
    )
    found = CliRunner().invoke(app, ["inspect", str(save_mtp(checkpoint, tmp_path / "h"))])
    assert found.exit_code == 0
    assert asked == [str(whole), str(cut), "its-target"]


def test_a_format_of_the_future_is_refused(tmp_path: Path) -> None:
    save_mtp(
        checkpoint_of_mtp(head_of("one module"), target_model=llama(), target="t"), tmp_path / "h"
    )
    file = tmp_path / "h" / "config.json"
    config = json.loads(file.read_text())
    config["labkit"]["version"] = 2
    file.write_text(json.dumps(config))
    with pytest.raises(BadCheckpoint, match="version 1"):
        read_mtp(tmp_path / "h", target_model=llama())
    del config["labkit"]["state"], config["hidden_size"]
    file.write_text(json.dumps(config | {"labkit": config["labkit"] | {"version": 1}}))
    with pytest.raises(BadCheckpoint, match=r"config\.json"):
        read_mtp(tmp_path / "h", target_model=llama())
