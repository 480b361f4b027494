"""Drift measured all at once is what single chains show, one forward after the other."""

from itertools import pairwise

import pytest
import torch
from helpers import prompt_of
from test_broken import Words

from labkit.errors import BadInput
from labkit.heads.eagle import head_config, random_head
from labkit.lab.drift import drift
from labkit.lab.load import LoadedModel
from labkit.lab.session import Lab
from labkit.target import Target
from labkit.toy import tiny

STEPS, NEW = 4, 14
SWITCHES = {
    "eagle1": (1, {}),
    "eagle3": (3, {}),
    "eagle31": (3, {"fc_norm": True, "norm_output": True}),
    "qk_norm": (3, {"qk_norm": True}),
}


@pytest.fixture(scope="module")
def lab():
    model = tiny("llama", layers=8)
    return Lab(LoadedModel(model, Words(), "tiny", torch.float32, torch.device("cpu"), "plain"))


@pytest.fixture(scope="module")
def texts(lab):
    return [
        lab.record(prompt_of(n, seed=n), method="ar", max_new_tokens=NEW, eos=None) for n in (3, 7)
    ]


def head_of(lab, kind):
    version, switches = SWITCHES[kind]
    config = head_config(lab.model, version, **switches)
    head = random_head(config, target_model=lab.model, seed=4)
    for layer in head.layers:
        layer.self_attn.q_proj.weight.data.mul_(30)  # attention that is not flat
    return head


def slow(lab, head, text, *, steps):
    """One chain from each place with its own cache; attention weights from a softmax by hand."""
    ids = [*text.prompt, *text.tokens]
    target = Target(lab.model, needs=head.config.needs)
    states = target.prefill([*ids, 0])
    rows = [[] for _ in range(steps)]
    right = [[] for _ in range(steps)]
    prompt = len(text.prompt)
    for pair in range(prompt - 2, len(ids) - 1 - steps):
        kv, asked = head.cache(), []  # asked: queries before their positions
        attention = head.layers[0].self_attn
        hook = attention.q_proj.register_forward_hook(
            lambda m, x, out, asked=asked: asked.append(out)
        )
        state = head.fuse([states[n][None, : pair + 1] for n in head.config.needs])
        tokens = torch.tensor([ids[1 : pair + 2]])
        going = True
        for s in range(steps):
            at = torch.arange(pair + 1)[None] if s == 0 else torch.tensor([[pair + s]])
            mask = torch.ones(pair + 1, pair + 1, dtype=torch.bool).tril() if s == 0 else None
            made = head(tokens, state, positions=at, kv=kv, mask=mask)
            keys = kv[0]._tables[0][0, :, : kv[0].length]
            q = asked[-1][0, -1].view(head.config.heads, 1, head.config.head_dim)
            if head.config.qk_norm:
                q = attention.q_norm(q)
            cos, sin = (t[0, -1] for t in head.rotary(q[None], at))
            half = q.shape[-1] // 2
            q = q * cos + torch.cat((-q[..., half:], q[..., :half]), -1) * sin
            groups = head.config.heads // head.config.kv_heads
            scores = torch.stack([q[h] @ keys[h // groups].T for h in range(head.config.heads)])
            share = (scores / head.config.head_dim**0.5).softmax(-1).mean((0, 1))
            ends = (0, 1, prompt - 1, pair + 1, len(share))
            four = [float(share[a:b].sum()) for a, b in pairwise(ends)]
            rows[s].append([float(made.recycled[0, -1].pow(2).mean().sqrt()), *four])
            guess = int(head.vocab_ids[head.logits(made.normed[0, -1]).argmax()])
            right[s].append((going, going and guess == ids[pair + 2 + s]))
            going = right[s][-1][1]
            tokens, state = torch.tensor([[ids[pair + 2 + s]]]), made.recycled[:, -1:]
        hook.remove()
    return rows, right


@pytest.mark.parametrize("kind", SWITCHES)
@torch.no_grad()
def test_all_at_once_is_one_by_one(lab, texts, kind):
    head = head_of(lab, kind)
    found = drift(lab, head, texts, steps=STEPS)
    assert [at.step for at in found] == [1, 2, 3, 4]
    each = [slow(lab, head, text, steps=STEPS) for text in texts]
    for s, at in enumerate(found):
        expected = torch.tensor([row for rows, _ in each for row in rows[s]]).mean(0)
        got = torch.tensor([at.size, at.first, at.prompt, at.reply, at.own])
        torch.testing.assert_close(got, expected, atol=2e-5, rtol=1e-4)
        flags = [flag for _, right in each for flag in right[s]]
        assert at.acceptance.reached == sum(going for going, _ in flags)
        assert at.acceptance.accepted == sum(right for _, right in flags)
        assert at.first + at.prompt + at.reply + at.own == pytest.approx(1, abs=1e-5)
    assert found[0].own == 0 < found[1].own


def test_size_is_what_the_next_step_reads(lab, texts):
    """EAGLE-3.1 hands on a normed state: with unit weights its size is 1 at every step; the raw
    state of EAGLE-3 has whatever size it has."""
    head = head_of(lab, "eagle31")
    torch.nn.init.ones_(head.norm.weight)
    normed = drift(lab, head, texts, steps=3)
    assert [at.size for at in normed] == pytest.approx([1, 1, 1], abs=1e-3)
    raw = drift(lab, head_of(lab, "eagle3"), texts, steps=3)
    assert all(abs(at.size - 1) > 0.05 for at in raw)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"steps": 0}, "steps"),
        ({"texts": []}, "texts"),
        ({"steps": NEW}, "longer texts"),
    ],
)
def test_what_cannot_be_measured_is_refused(lab, texts, change, words):
    given = {"steps": STEPS, "texts": texts} | change
    with pytest.raises(BadInput, match=words):
        drift(lab, head_of(lab, "eagle3"), given["texts"], steps=given["steps"])


def test_a_drawn_text_is_refused(lab):
    text = lab.record(prompt_of(4), method="ar", max_new_tokens=NEW, temperature=0.7, eos=None)
    with pytest.raises(BadInput, match="temperature 0"):
        drift(lab, head_of(lab, "eagle3"), [text], steps=2)


def test_no_hook_stays(lab, texts):
    head = head_of(lab, "eagle3")
    drift(lab, head, texts, steps=2)
    assert not any(module._forward_hooks for module in head.modules())
    head.layers[0].mlp.down_proj = torch.nn.Linear(3, 3)
    with pytest.raises(RuntimeError):
        drift(lab, head, texts, steps=2)
    assert not any(module._forward_hooks for module in head.modules())
