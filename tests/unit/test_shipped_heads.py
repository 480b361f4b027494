"""The heads that ship: small, of one budget, described by their papers, and drafting."""

import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import labkit
from labkit import metrics
from labkit.heads.checkpoints import inspect_checkpoint
from labkit.lab.heads import HEADS
from labkit.lab.rehearse import rehearse
from labkit.lab.session import Lab
from labkit.training.eagle_trainer import RECIPES as EAGLE
from labkit.training.medusa import RECIPES as PARALLEL
from labkit.training.mtp import MtpRecipe

WEIGHTS = Path(labkit.__file__).parent / "weights"
RECIPES = {**EAGLE, "mtp": MtpRecipe(), "medusa": PARALLEL["medusa"]}
KINDS = tuple(RECIPES)
NAMES = {"eagle1": "EAGLE-1", "eagle3": "EAGLE-3", "eagle31": "EAGLE-3.1"}


def folder(kind):
    return WEIGHTS / f"smollm2-135m-{kind}"


def read(kind, name):
    return json.loads((folder(kind) / name).read_text(encoding="utf-8"))


def test_all_weights_together_are_small():
    files = list(WEIGHTS.glob("*/*.safetensors"))
    assert len(files) >= 4
    assert sum(file.stat().st_size for file in files) < 64_000_000


@pytest.mark.parametrize("kind", KINDS)
class TestFiles:
    def test_hold_nothing_of_the_target(self, kind):
        tensors = load_file(folder(kind) / "model.safetensors")
        assert (folder(kind) / "model.safetensors").stat().st_size < 10_500_000
        assert not [name for name in tensors if "embed" in name or "lm_head" in name]
        floats = [t for t in tensors.values() if t.is_floating_point()]
        assert {t.dtype for t in floats} == {torch.bfloat16}
        assert all(torch.isfinite(t.float()).all() for t in floats)

    def test_are_what_their_papers_say(self, kind):
        said = read(kind, "provenance.json")
        digest = hashlib.sha256((folder(kind) / "model.safetensors").read_bytes()).hexdigest()
        assert said["weights_sha256"] == digest
        assert said["recipe"] == vars(RECIPES[kind])
        assert said["target"] == "smollm2-135m"
        assert "/" not in said["data"]["file"]
        assert said["curve"][-1]["tokens"] >= said["tokens"]
        assert said["held_out"]["mean_accepted_length"] == max(
            point["mean_accepted_length"] for point in said["curve"]
        )


@pytest.mark.parametrize("kind", EAGLE)
class TestEagle:
    def test_are_readable_by_the_public_layout_without_a_question(self, kind):
        found = inspect_checkpoint(folder(kind))
        assert NAMES[kind] in repr(found) or NAMES[kind] == found.name
        assert not found.missing
        assert not found.unused


def test_all_had_the_same_text_and_as_many_steps():
    papers = [read(kind, "provenance.json") for kind in KINDS]
    for key in ("data", "seed", "draft_vocabulary"):
        assert [p[key] for p in papers] == [papers[0][key]] * len(papers)
    assert all(" --steps 4200 " in p["command"] for p in papers)


QUESTIONS = (
    "What are five good reasons to drink tea?",
    "Write a Python function that adds two numbers.",
    "What is the difference between a lake and a river?",
)


@pytest.mark.real
def test_they_draft_for_the_default_target(smollm2):
    """Three prompts are few; far more than a head that knows nothing (1.0) is asked here. Two of
    them are rehearsed, which has the rounds of a real run: that those write the target's text is
    for tests/real to show, shape by shape."""
    lab = Lab(smollm2)
    texts = [lab.record(q, method="ar", max_new_tokens=40) for q in QUESTIONS]
    for method in HEADS:
        run = lab.record(QUESTIONS[0], method=method, max_new_tokens=40)
        assert run.tokens == texts[0].tokens
        length = HEADS[method].length
        runs = [run, *(rehearse(lab, t, method=method, draft_length=length) for t in texts[1:])]
        assert metrics.acceptance(*runs).mean_accepted_length > 1.2, method
