"""The gallery of silent faults: each leaves the text as it is, and costs acceptance.

The heads here have learnt a few of their target's texts by heart, so they are right nearly always,
and only by everything that they read; what is wrong shows at once. What a head should say is worked
out by a fresh one that reads the committed text, with states from transformers' own forward.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import greedy_reference, prompt_of, run
from safetensors.torch import load_file, save_file
from test_broken import Words

from labkit.draft import Draft
from labkit.drafters.base import Commit
from labkit.drafters.eagle import eagle_drafter
from labkit.drafters.on_head import HeadDrafter
from labkit.drafters.pairs import Guesses, Pairs
from labkit.errors import BadInput
from labkit.heads.checkpoints import (
    checkpoint_of,
    complete,
    inspect_checkpoint,
    write_checkpoint,
)
from labkit.heads.eagle import EagleHead, head_config, random_head
from labkit.lab import broken_heads, faults
from labkit.lab.breaks import BREAKS
from labkit.lab.broken_heads import with_pairs
from labkit.lab.faults import GALLERY, HEALTHY
from labkit.lab.load import LoadedModel
from labkit.lab.readings import measure_readings, settled
from labkit.lab.session import Lab
from labkit.lab.wording import catalogue
from labkit.sampling import TorchRng, Warp
from labkit.target import Target
from labkit.toy import tiny
from labkit.training.unrolled import unroll

CPU = torch.device("cpu")
NEW, K = 18, 4
LEARNT = tuple(prompt_of(5, seed=seed) for seed in range(6))
PROMPTS = LEARNT[:3]
STRANGE = prompt_of(5, seed=9)  # nothing that a head has learnt
SWITCHES: dict[str, dict[str, Any]] = {
    "eagle1": {"version": 1},
    "eagle31": {"version": 3, "fc_norm": True, "norm_output": True},
}
KINDS = tuple(SWITCHES)
COMPARED = [key for key, fault in GALLERY.items() if fault.chat]


@lru_cache
def model() -> Any:
    return tiny("llama", layers=8)


class Chat(Words):
    """Puts a turn between two marks."""

    chat_template = "marks"

    def apply_chat_template(self, turns: Any, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [1, 2, *self(turns[0]["content"])["input_ids"], 3]}


@pytest.fixture(scope="module")
def lab() -> Lab:
    return Lab(LoadedModel(model(), Chat(), "tiny", torch.float32, CPU, "plain"))


@lru_cache
def texts() -> torch.Tensor:
    return torch.tensor([[*p, *greedy_reference(model(), p, NEW)] for p in LEARNT])


@torch.no_grad()
def states_of(ids: torch.Tensor, needs: Sequence[str]) -> list[torch.Tensor]:
    """[B, n, H] each, from transformers' own forward."""
    out = model()(input_ids=ids, output_hidden_states=True, use_cache=False)
    return [out.hidden_states[-1 if n == "final" else int(n[1:])] for n in needs]


def new_head(kind: str, *, words: torch.Tensor | None = None) -> EagleHead:
    switches = dict(SWITCHES[kind])
    version = switches.pop("version")
    words = None if version == 1 else words
    size = None if words is None else len(words)
    config = head_config(model(), version, draft_vocab_size=size, **switches)
    return random_head(config, model(), seed=1, vocab_ids=words)


@lru_cache
def learnt(kind: str) -> EagleHead:
    """Knows what follows in ``texts`` three tokens ahead. Its states are large, and its norms turn
    half of them round, so that it matters which is normed, by what, and when."""
    ids = texts()
    head = new_head(kind, words=ids.unique())
    generator = torch.Generator().manual_seed(2)
    for name, weight in head.named_parameters():
        if "norm" in name:
            weight.copy_(0.5 + torch.rand(weight.shape, generator=generator))
            weight.mul_(torch.randint(2, weight.shape, generator=generator) * 2 - 1)
    head.fc.weight.mul_(4)
    weights = [w for n, w in head.named_parameters() if "embed" not in n]
    states = states_of(ids, head.config.needs)
    right = torch.searchsorted(head.vocab_ids, ids)
    adam = torch.optim.Adam([w.requires_grad_(True) for w in weights], lr=5e-3)
    for _ in range(100):
        loss = torch.zeros(())
        for s, made in enumerate(unroll(head, ids, states, steps=3, first=3)):
            logits = head.logits(made.normed).flatten(0, 1)
            loss = loss + torch.nn.functional.cross_entropy(logits, right[:, 5 + s :].flatten())
        adam.zero_grad()
        loss.backward()
        adam.step()
    return head.requires_grad_(False).eval()


MEASURED: dict[str, tuple[str, ...] | None] = {
    "eagle1": ("before_final_norm", "stale_rows", "no_rollback"),
    "eagle31": None,  # all that it can have
}


@pytest.fixture(scope="module")
def costs(lab: Lab) -> dict[str, faults.Costs]:
    options: dict[str, Any] = {"max_new_tokens": NEW, "draft_length": K}
    return {
        kind: faults.measure(lab, PROMPTS, keys=keys, head=learnt(kind), **options)
        for kind, keys in MEASURED.items()
    }


def having(lab: Lab) -> list[tuple[str, str]]:
    return [(kind, key) for kind in KINDS for key in faults.available(lab, head=learnt(kind))]


def test_every_fault_is_had_by_some_head(lab: Lab) -> None:
    assert {key for _, key in having(lab)} == set(GALLERY)


@pytest.mark.parametrize("key", COMPARED)
def test_the_text_is_the_same_and_acceptance_falls(
    key: str, costs: dict[str, faults.Costs]
) -> None:
    found = 0
    for kind, measured in costs.items():
        healthy = measured[HEALTHY]
        assert healthy.by_depth[:2] == (1.0, 1.0), kind
        for row in measured.rows:
            if row.key == key:
                assert row.same_text
                assert row.mean_accepted_length < healthy.mean_accepted_length - 0.3, kind
                found += 1
    assert found


@torch.inference_mode()
def fresh_draft(head: EagleHead, tokens: Sequence[int], depth: int) -> Draft:
    """What the healthy head says that reads ``tokens`` once, with true states."""
    states = states_of(torch.tensor([list(tokens)]), head.config.needs)
    drafter = eagle_drafter(head)
    hidden = zip(head.config.needs, states, strict=True)
    drafter.observe(Commit(tuple(tokens), {name: h[0, :-1] for name, h in hidden}))
    return drafter.propose(tokens, TorchRng(0), depth=depth, warp=Warp())


def gap(one: Draft, other: Draft) -> float:
    """Largest difference of any logit, as far as both chains have said the same so far."""
    largest = 0.0
    assert one.logits is not None
    assert other.logits is not None
    for node in range(1, len(one.tree)):
        a, b = one.logits[node], other.logits[node]
        largest = max(largest, float(torch.where(a == b, 0.0, (a - b).abs()).max()))
        if one.tree.tokens[node] != other.tree.tokens[node]:
            break
    return largest


def parting(lab: Lab, drafter: HeadDrafter, head: EagleHead) -> float:
    """The largest `gap` from a fresh healthy head in any round of two texts, one of them learnt."""
    gaps = [0.0]
    propose = drafter.propose

    def watched(tokens: Sequence[int], rng: Any, *, depth: int, warp: Any) -> Draft:
        draft = propose(tokens, rng, depth=depth, warp=warp)
        if depth:
            gaps.append(gap(draft, fresh_draft(head, tokens, depth)))
        return draft

    drafter.propose = watched  # type: ignore[method-assign]
    for prompt in (PROMPTS[0], STRANGE):
        trace = lab.record(prompt, drafter=drafter, max_new_tokens=7, draft_length=3)
        assert trace.tokens == greedy_reference(model(), prompt, 7)
    return max(gaps)


@pytest.mark.parametrize("kind", KINDS)
def test_a_fresh_head_on_the_committed_text_says_something_else(lab: Lab, kind: str) -> None:
    head = learnt(kind)
    assert parting(lab, faults.drafter(lab, HEALTHY, head=head), head) < 1e-3
    for key in faults.available(lab, head=head):
        if GALLERY[key].chat:
            assert parting(lab, faults.drafter(lab, key, head=head), head) > 0.1, key


@pytest.mark.parametrize("kind", KINDS)
def test_the_healthy_drafter_of_the_gallery_is_the_plain_one(lab: Lab, kind: str) -> None:
    head, prompt = learnt(kind), STRANGE
    drafters = (
        faults.drafter(lab, HEALTHY, head=head),
        eagle_drafter(head, name=HEALTHY),
        eagle_drafter(broken_heads.twin(head), name=HEALTHY),
        faults.drafter(lab, "no_template", head=head),
    )
    drafters[-1].name = HEALTHY
    found = []
    for drafter in drafters:
        target = Target(model(), needs=head.config.needs)
        trace = run(target, drafter, prompt, max_new_tokens=12, draft_length=K, detail="full")
        found.append([replace(e, seconds=0.0, forward_seconds=0.0) for e in trace.events])
    assert found[0] == found[1] == found[2] == found[3]


@pytest.mark.parametrize("kind", KINDS)
def test_faults_leave_the_head_alone_and_share_its_weights(lab: Lab, kind: str) -> None:
    head = new_head(kind, words=texts().unique())
    before = {name: w.clone() for name, w in head.state_dict().items()}
    config, modules = head.config, [*map(id, head.modules())]
    for key in faults.available(lab, head=head):
        faulty = faults.drafter(lab, key, head=head)
        run(Target(model(), needs=faulty.needs), faulty, STRANGE, max_new_tokens=4, draft_length=2)
        assert faulty.head.fc.weight.data_ptr() == head.fc.weight.data_ptr()
    assert head.config is config
    assert [*map(id, head.modules())] == modules
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in head.modules())
    assert all(torch.equal(w, before[name]) for name, w in head.state_dict().items())


# What shows a fault, since the text does not.


@pytest.mark.parametrize("key", ["layers_early", "layers_late", "depths_reversed"])
def test_states_are_not_those_of_the_head_s_boundaries(lab: Lab, key: str) -> None:
    head = learnt("eagle31")
    states = states_of(torch.tensor([STRANGE]), [f"h{k}" for k in head.config.boundaries])
    expected = torch.cat([s[0, :-1] for s in states], -1)

    def given(drafter: HeadDrafter) -> torch.Tensor:
        hidden = Target(model(), needs=drafter.needs).prefill(STRANGE)
        return torch.cat([hidden[name] for name in drafter.needs], -1)

    torch.testing.assert_close(given(faults.drafter(lab, HEALTHY, head=head)), expected)
    assert not torch.allclose(given(faults.drafter(lab, key, head=head)), expected, atol=1e-2)


@pytest.mark.parametrize("by", [-1, 1])
def test_layers_one_off_are_found_by_measuring_both_readings(by: int) -> None:
    head = learnt("eagle31")
    made = checkpoint_of(head, target_model=model(), target="tiny")
    other = replace(made.config, boundaries=tuple(k + by for k in made.config.boundaries))
    both = replace(made, config=other, alternatives=(made.config,))
    measured = measure_readings(both, model(), PROMPTS, dtype=torch.float32, device=CPU)
    assert settled(both, measured).config.boundaries == head.config.boundaries


def saved(folder: Path, *, change: Any = None, lost: str = "") -> Path:
    """The learnt head as SpecForge lays it out, with its tensors changed or a key lost."""
    made = complete(checkpoint_of(learnt("eagle31"), target_model=model(), target="t"), model())
    write_checkpoint(made, folder, format="specforge")
    file = folder / "model.safetensors"
    tensors = load_file(file)
    if change:
        change(tensors)
    save_file(tensors, file)
    config = json.loads((folder / "config.json").read_text())
    for section in (config, config["eagle_config"]):
        section.pop(lost, None)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def absolute(tensors: dict[str, torch.Tensor]) -> None:
    tensors["d2t"] = learnt("eagle31").vocab_ids.clone()


def no_map(tensors: dict[str, torch.Tensor]) -> None:
    del tensors["d2t"], tensors["t2d"]


@pytest.mark.parametrize("change", [absolute, no_map])
def test_words_of_another_map_are_refused(change: Any, tmp_path: Path) -> None:
    assert not inspect_checkpoint(saved(tmp_path / "right")).refused
    assert inspect_checkpoint(saved(tmp_path / "wrong", change=change)).refused


def test_a_lost_switch_is_found_by_its_tensors(tmp_path: Path) -> None:
    folder = saved(tmp_path / "head", lost="fc_norm")
    assert "fc_norm" not in (folder / "config.json").read_text()
    report = inspect_checkpoint(folder)
    assert report.switches["fc_norm"]
    assert any("fc_norm" in what for what in report.suspicious)


def test_ids_that_do_not_ascend_are_suspicious(lab: Lab, tmp_path: Path) -> None:
    faulty = faults.drafter(lab, "depths_reversed", head=learnt("eagle31")).head
    made = complete(checkpoint_of(faulty, target_model=model(), target="t"), model())
    write_checkpoint(made, tmp_path / "head", format="specforge")
    told = inspect_checkpoint(tmp_path / "head").suspicious
    assert any("not ascending" in what for what in told)


def test_an_embedding_of_its_own_is_said_to_be_in_the_file(lab: Lab) -> None:
    head = learnt("eagle31")
    faulty = faults.drafter(lab, "strange_embedding", head=head).head
    for one, borrowed in ((head, True), (faulty, False)):
        made = checkpoint_of(one, target_model=model(), target="t")
        assert ("embed_tokens.weight" in made.borrowed) == borrowed


def test_the_state_before_the_final_norm_does_not_give_the_target_s_logits(lab: Lab) -> None:
    with torch.no_grad():
        logits = model()(input_ids=torch.tensor([STRANGE])).logits[0, :-1]
    for key, right in ((HEALTHY, True), ("before_final_norm", False)):
        needs = faults.drafter(lab, key, head=learnt("eagle1")).needs
        state = Target(model(), needs=needs).prefill(STRANGE)[needs[0]]
        assert torch.allclose(model().lm_head(state), logits, atol=1e-4) == right


@pytest.mark.parametrize("key", ["feedback_flipped", "positions_ahead"])
def test_faults_of_later_guesses_spare_the_first(key: str, costs: dict[str, faults.Costs]) -> None:
    measured = costs["eagle31"]
    assert measured[key].first == measured[HEALTHY].first == 1.0
    assert measured[key].by_depth[1] < 1.0


def test_a_cache_that_never_forgets_is_longer_than_the_text(lab: Lab) -> None:
    for key, extra in ((HEALTHY, False), ("stale_rows", False), ("no_rollback", True)):
        drafter = faults.drafter(lab, key, head=learnt("eagle31"))
        lab.record(STRANGE, drafter=drafter, max_new_tokens=12, draft_length=3)
        assert (drafter.reader.length > len(STRANGE) + 12 - 1) == extra


# Words as target ids, by hand.


def test_offsets_and_draft_ids_taken_for_target_ids(lab: Lab) -> None:
    """Kept 3 7 11 20, offsets 3 6 9 17: draft id 2 is 11; taken for an id its offset is 9, and
    without the table it is 2."""
    head = new_head("eagle31", words=torch.tensor([3, 7, 11, 20]))
    assert faults.drafter(lab, "d2t_absolute", head=head).head.vocab_ids.tolist() == [3, 6, 9, 17]
    assert faults.drafter(lab, "d2t_missing", head=head).head.vocab_ids.tolist() == [0, 1, 2, 3]


def test_words_that_become_one_are_as_likely_as_the_likeliest() -> None:
    """Kept 4 5 6 30, offsets 4 4 4 27."""
    head = new_head("eagle31", words=torch.tensor([4, 5, 6, 30]))
    normed = torch.randn(2, 32, generator=torch.Generator().manual_seed(0))
    raw, faulty = head.logits(normed), broken_heads.offsets_as_ids(head)
    assert faulty.vocab_ids.tolist() == [4, 27]
    assert torch.equal(faulty.logits(normed), torch.stack((raw[:, :3].amax(-1), raw[:, 3]), -1))


# The measurement and how it shows itself.


def test_without_a_template_the_prompt_is_another_one(lab: Lab) -> None:
    asked = "tell me a story about the sea"
    measured = faults.measure(
        lab, [asked], keys=["no_template"], head=learnt("eagle31"), max_new_tokens=6
    )
    assert measured["no_template"].same_text is None
    assert measured[HEALTHY].same_text
    raw = lab.record(asked, method="ar", chat=False, max_new_tokens=1)
    assert raw.prompt == tuple(lab.tokens(asked)[2:-1])
    assert "another prompt" in measured.table.html
    assert "token for token" not in measured.sentence


def test_a_drafter_that_meddles_with_the_target_would_be_noticed(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = model().get_output_embeddings().weight
    right = output.clone()

    class Meddling(Pairs):
        def source(self, depth: int) -> Guesses | None:
            output.copy_(-right)
            return super().source(depth)

    fault = replace(GALLERY["stale_rows"], drafter=lambda head, _: with_pairs(Meddling, head))
    monkeypatch.setitem(GALLERY, "stale_rows", fault)  # type: ignore[arg-type]
    try:
        measured = faults.measure(
            lab, PROMPTS[:1], keys=["stale_rows"], head=new_head("eagle31"), max_new_tokens=8
        )
    finally:
        output.copy_(right)
    assert measured["stale_rows"].same_text is False
    assert "Another text came out under: Guessed rows kept as true." in measured.sentence


def test_numbers_are_those_of_the_traces(lab: Lab) -> None:
    """Counted once more by hand from the events."""
    head = learnt("eagle31")
    measured = faults.measure(
        lab, PROMPTS, keys=["no_rollback"], head=head, max_new_tokens=NEW, draft_length=K
    )
    rounds = [
        r
        for prompt in PROMPTS
        for r in lab.record(
            prompt,
            drafter=faults.drafter(lab, "no_rollback", head=head),
            max_new_tokens=NEW,
            draft_length=K,
        ).rounds
    ]
    row = measured["no_rollback"]
    assert row.rounds == len(rounds)
    assert row.mean_accepted_length == sum(len(r.committed.tokens) for r in rounds) / len(rounds)
    drafted = [r for r in rounds if len(r.drafted.tokens) > 1]
    right = sum(len(r.verified.path) > 1 for r in drafted)
    assert row.first == right / len(drafted)


def test_a_table_in_two_forms(costs: dict[str, faults.Costs]) -> None:
    measured = costs["eagle31"]
    bundle = measured._repr_mimebundle_()
    assert bundle["text/plain"] == repr(measured) == measured.sentence
    healthy, said = measured[HEALTHY], measured.sentence
    assert said.startswith("EAGLE-3.1, 3 prompts of at most 18 new tokens, chains of 4: ")
    assert f"the healthy head makes {healthy.mean_accepted_length:.2f} tokens per round." in said
    assert "The text is the same, token for token, under all " in said
    table = bundle["text/html"]
    assert "<script" not in table
    assert table.count('<th scope="row"') == len(measured.rows)
    assert "guess 4 right" in table
    assert "✓ yes" in table
    assert "100%" in table


def test_every_fault_says_what_is_wrong_and_to_whom_it_happened() -> None:
    for fault in GALLERY.values():
        assert fault.wrong.endswith(".")
        assert fault.found_by.endswith(".")
        assert fault.title in repr(fault)
        assert fault.key in repr(fault)
        assert "<script" not in fault._repr_mimebundle_()["text/html"]
    assert len({fault.title for fault in GALLERY.values()}) == len(GALLERY)
    shown = faults.catalogue()
    assert repr(shown) == f"{len(GALLERY)} faults that no text shows."
    assert all(key in shown.html for key in GALLERY)


def test_the_catalogue_of_faults_tells_of_those_that_there_are_and_of_no_others() -> None:
    every = catalogue("faults")
    assert set(every["heads"]) == {*GALLERY, *faults.MODULES}
    assert set(every["switches"]) == set(BREAKS)
    told = [*GALLERY.values(), *faults.MODULES.values(), *BREAKS.values()]
    assert [fault.key for fault in told if re.search(r"[{}]", repr(fault))] == []  # no open gaps
    assert GALLERY["layers_early"].wrong == BREAKS["wrong_layer"].wrong


def test_what_cannot_be_is_refused_before_any_run(lab: Lab) -> None:
    one, three = learnt("eagle1"), learnt("eagle31")
    for key, head, told in (
        ("layers_early", one, "EAGLE-3 and 3.1"),
        ("before_final_norm", three, "EAGLE-1 and 2"),
        ("d2t_absolute", one, "leave out words"),
        ("no_such_thing", one, "one of layers_early"),
    ):
        with pytest.raises(BadInput, match=told):
            faults.drafter(lab, key, head=head)
        with pytest.raises(BadInput, match=told):
            faults.measure(lab, PROMPTS, keys=["stale_rows", key], head=head)
    with pytest.raises(BadInput, match="eagle1, eagle2, eagle3, eagle31"):
        faults.drafter(lab, "stale_rows", method="draft")
    with pytest.raises(BadInput, match="prompts"):
        faults.measure(lab, [], head=one)
    with pytest.raises(BadInput, match="draft_length"):
        faults.measure(lab, PROMPTS, head=one, draft_length=-1)


def test_a_switch_that_a_head_lacks_is_no_fault_of_it(lab: Lab) -> None:
    plain = random_head(head_config(model(), 3), model())
    found = faults.available(lab, head=plain)
    assert "fuse_norm_dropped" not in found  # EAGLE-3 has none
    assert "d2t_absolute" not in found  # it has all words
    assert {"feedback_flipped", "residual_flipped", "layers_late"} <= set(found)
    ends = random_head(head_config(model(), 3, boundaries=(0, 4, 8)), model())
    assert not {"layers_early", "layers_late"} & set(faults.available(lab, head=ends))
    assert "no_template" in found
    bare = Lab(replace(lab.loaded, tokenizer=Words()))
    assert "no_template" not in faults.available(bare, head=plain)


def test_the_head_of_a_method_is_taken(lab: Lab, tmp_path: Path) -> None:
    made = checkpoint_of(learnt("eagle31"), target_model=model(), target="tiny")
    write_checkpoint(made, tmp_path / "head")
    other = Lab(lab.loaded, head=str(tmp_path / "head"))
    faulty = faults.drafter(other, "stale_rows", method="eagle31")
    assert faulty.head is other.drafter("eagle31").head
    assert faulty.name == "stale_rows"
    trace = other.record(PROMPTS[0], drafter=faulty, max_new_tokens=8)
    assert trace.tokens == greedy_reference(model(), PROMPTS[0], 8)
