"""The draft model that ships: small, borrowed where it can be, and as good as its papers say."""

import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import labkit
from labkit import metrics
from labkit.config import DecodeConfig
from labkit.decode import autoregress, speculate
from labkit.drafters.draft_model import DraftModel
from labkit.heads.draft_checkpoint import load_draft_checkpoint
from labkit.target import Target
from labkit.trace import Trace
from labkit.training.draft_trainer import DraftRecipe

FOLDER = Path(labkit.__file__).parent / "weights" / "smollm2-135m-draft"


def read(name):
    return json.loads((FOLDER / name).read_text())


def test_the_files_are_small_and_hold_nothing_of_the_target():
    tensors = load_file(FOLDER / "model.safetensors")
    assert (FOLDER / "model.safetensors").stat().st_size <= 15_000_000
    assert not [name for name in tensors if "embed" in name or "lm_head" in name]
    assert tensors["d2t"].shape == (8192,)
    assert all(torch.isfinite(t.float()).all() for t in tensors.values())
    assert sorted(item.name for item in FOLDER.iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
        "provenance.json",
    ]


def test_the_papers_describe_these_weights():
    said = read("provenance.json")
    digest = hashlib.sha256((FOLDER / "model.safetensors").read_bytes()).hexdigest()
    assert said["weights_sha256"] == digest
    recipe = {k: list(v) if k == "layers" else v for k, v in vars(DraftRecipe()).items()}
    assert said["recipe"] == recipe
    assert said["target"] == read("config.json")["labkit"]["target"] == "smollm2-135m"
    assert "/" not in said["data"]["file"]


PROMPTS = (
    "What are five good reasons to drink tea?",
    "Write a Python function that adds two numbers.",
    "Write a short story about a fox.",
    "What is the difference between a lake and a river?",
)


@pytest.mark.real
def test_it_drafts_for_the_default_target(smollm2):
    model, tokenizer = smollm2.model, smollm2.tokenizer
    draft = load_draft_checkpoint(FOLDER, target_model=model, dtype=torch.float32, device="cpu")
    target = Target(model)
    drafter = DraftModel(draft.model, vocab_size=target.vocab_size, ids=draft.vocab_ids)
    config = DecodeConfig(max_new_tokens=48, draft_length=3)
    traces = []
    for prompt in PROMPTS:
        message = [{"role": "user", "content": prompt}]
        text = tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
        ids = tokenizer.encode(text, add_special_tokens=False)
        traces.append(Trace.record(speculate(target, drafter, ids, config=config)))
        plain = Trace.record(autoregress(target, ids, config=config))
        assert traces[-1].tokens == plain.tokens
    # four prompts are few: the papers' number holds for eighty texts. Well above a draft that
    # knows nothing (1.0), and above what guessing the commonest words would give, is asked here.
    assert metrics.acceptance(*traces).mean_accepted_length > 1.4
