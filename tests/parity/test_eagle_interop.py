"""Heads that we write compute the same in speculators and in SpecForge (marker ``interop``).

``LABKIT_PEERS_PYTHON`` names a Python that has ``speculators==0.9.0`` and ``specforge==0.2.0``.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import eagle_files as ref
import pytest
import torch
from eagle_files import SPECS, TARGET_LAYERS, VOCAB
from safetensors.torch import load_file, save_file

from labkit.heads.checkpoints import build_head, read_checkpoint, write_checkpoint
from labkit.heads.eagle import EagleHead
from labkit.toy import tiny

pytestmark = pytest.mark.interop
PEER = Path(__file__).parents[1] / "eagle_peers.py"
PREFIX, STEPS, CLOSE = 6, 3, 1e-5
CASES = {
    "speculators": [
        "plain", "3.1", "norm_before_fc", "norm_before_residual", "speculators' default",
        "qwen3 layer", "two layers", "llama3 rope", "own embedding",
    ],
    "specforge": ["plain", "fc_norm", "llama3 rope", "own embedding"],
}  # fmt: skip
PAIRS = [(peer, case) for peer, cases in CASES.items() for case in cases]


def inputs(embed: torch.Tensor) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    rows = PREFIX + STEPS - 1
    return {
        "states": torch.randn(rows, 3 * ref.H, generator=generator),
        "ids": torch.randint(VOCAB, (rows,), generator=generator),
        "embed": embed.clone(),
    }


@torch.no_grad()
def ours(head: EagleHead, given: dict[str, torch.Tensor]) -> torch.Tensor:
    """[STEPS, D]: logits of row ``PREFIX - 1``, which reads one more token per step."""
    states = [s[:PREFIX] for s in given["states"].chunk(3, -1)]
    kv, ids = head.cache(), given["ids"]
    mask = torch.ones(PREFIX, PREFIX, dtype=torch.bool).tril()
    at = torch.arange(PREFIX)[None]
    step = head(ids[None, :PREFIX], head.fuse(states)[None], positions=at, kv=kv, mask=mask)
    rows = [head.logits(step.normed)[0, -1]]
    for i in range(1, STEPS):
        step = head(
            ids[None, PREFIX - 1 + i : PREFIX + i], step.recycled[:, -1:],
            positions=torch.tensor([[PREFIX - 1 + i]]), kv=kv, mask=None,
        )  # fmt: skip
        rows.append(head.logits(step.normed)[0, 0])
    return torch.stack(rows)


def prepare(folder: Path, peer: str, case: str) -> EagleHead:
    """Write a head for ``peer``, and what to compute; give the same head as we read it back."""
    spec = SPECS[case]
    source = "speculators" if spec.qk_norm else "safeailab"
    made = ref.save(folder / "made", *ref.in_format(source, spec, ref.weights(spec)))
    checkpoint = read_checkpoint(made, convention="boundary", target_layers=TARGET_LAYERS)
    written = write_checkpoint(checkpoint, folder / "head", format=peer)
    head = build_head(
        read_checkpoint(written, target_layers=TARGET_LAYERS),
        target_model=tiny(layers=TARGET_LAYERS, vocab_size=VOCAB),
        dtype=torch.float32,
        device="cpu",
    )
    save_file(inputs(head.embed_tokens.weight), folder / "in.safetensors")
    return head


@pytest.fixture(scope="module")
def computed(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], tuple[Any, Path]]:
    """All cases, each peer started once: its imports take longer than everything else."""
    python = os.environ.get("LABKIT_PEERS_PYTHON", "")
    assert python, "set LABKIT_PEERS_PYTHON to a Python with speculators and specforge"
    found = {}
    for peer, cases in CASES.items():
        root = tmp_path_factory.mktemp(peer)
        for number, case in enumerate(cases):
            folder = root / str(number)
            found[peer, case] = prepare(folder, peer, case), folder
        done = subprocess.run(
            [python, "-W", "ignore", str(PEER), peer, str(root)],
            capture_output=True, text=True, cwd=root.parent,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
    return found


@pytest.mark.parametrize(("peer", "case"), PAIRS)
def test_a_peer_computes_the_same_from_our_files(
    peer: str, case: str, computed: dict[tuple[str, str], tuple[Any, Path]]
) -> None:
    head, folder = computed[peer, case]
    keys = json.loads((folder / "keys.json").read_text())
    assert keys["unexpected"] == []
    borrowed = {"embed_tokens.weight", "verifier_norm.weight", "verifier_lm_head.weight"}
    assert set(keys["missing"]) <= borrowed
    theirs = load_file(folder / "out.safetensors")["logits"][:, PREFIX - 1]
    mine = ours(head, load_file(folder / "in.safetensors"))
    assert torch.allclose(mine, theirs, atol=CLOSE, rtol=0), (mine - theirs).abs().max()
