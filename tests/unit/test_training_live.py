"""The acceptance that training reports is the acceptance that decoding gets.

A head can look good in training and fail when decoding, when the two measure different things
(public reports: 98 % offline, 10 % live). Here both are computed for the same text.
"""

import pytest
import torch

from labkit import metrics
from labkit.config import DecodeConfig
from labkit.decode import speculate
from labkit.drafters.draft_model import DraftModel
from labkit.heads.draft_checkpoint import build_draft
from labkit.target import Target
from labkit.toy import tiny
from labkit.trace import Trace
from labkit.training.acceptance import replay_chains

DEPTH = 3


@pytest.fixture(scope="module")
def target_model():
    return tiny("llama", seed=4, vocab_size=48, layers=3)


def a_draft(target_model, *, layers, words):
    """The target's own first layers, with some of its words missing."""
    ids = torch.arange(0, 48)[words]
    model = build_draft(target_model, ids, layers=layers, dtype=torch.float32, device="cpu")
    for layer, source in zip(model.model.layers, target_model.model.layers, strict=False):
        layer.load_state_dict(source.state_dict())
    model.model.norm.load_state_dict(target_model.model.norm.state_dict())
    return model, ids


def offline_hits(model, ids, text, *, start):
    """Teacher-forced guesses in one forward, as training measures them."""
    logits = model(torch.tensor([text[:-1]])).logits[0, start - 1 :]
    return (ids[logits.argmax(-1)] == torch.tensor(text[start:])).tolist()


@pytest.mark.parametrize(
    ("layers", "words"), [(3, slice(0, 40)), (3, slice(None)), (2, slice(None))]
)
def test_offline_acceptance_is_live_acceptance(target_model, layers, words):
    model, ids = a_draft(target_model, layers=layers, words=words)
    drafter = DraftModel(model, vocab_size=48, ids=ids)
    config = DecodeConfig(max_new_tokens=60, draft_length=DEPTH)
    traces, texts, hits = [], [], []
    for seed in range(4):
        prompt = [(seed * 7 + 5 * i) % 48 for i in range(6)]
        events = speculate(Target(target_model), drafter, prompt, config=config)
        traces.append(Trace.record(events))
        text = prompt + list(traces[-1].tokens)
        texts.append(text)
        hits.append(offline_hits(model, ids, text, start=len(prompt)))
    live, offline = metrics.acceptance(*traces), replay_chains(hits, depth=DEPTH)
    assert live.mean_accepted_length == pytest.approx(offline.mean_accepted_length, abs=1e-9)
    # control: guesses judged one position off do not agree
    shifted = [
        offline_hits(model, ids, [*prompt_and_text[1:], 0], start=len(prompt))
        for prompt_and_text in texts
    ]
    wrong = replay_chains(shifted, depth=DEPTH)
    assert wrong.mean_accepted_length != pytest.approx(live.mean_accepted_length, abs=1e-3)
