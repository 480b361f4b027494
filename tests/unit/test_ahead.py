"""Lesson 09's drawings and measurements: well-formed, deterministic, and true."""

import xml.etree.ElementTree as ET

import pytest
import torch
from helpers import greedy_reference, prompt_of, run

from labkit.drafters.mtp import mtp_drafter
from labkit.errors import BadInput
from labkit.heads.mtp import ADAPTERS, random_mtp
from labkit.lab.families import families
from labkit.lab.gallery_mtp import MODULES
from labkit.lab.recall import forgets, hybrid, recall
from labkit.target import Target
from labkit.toy import tiny
from labkit.viz.ahead import guessing, remembering

TEXT, DRAFT = prompt_of(7), (5, 6, 7, 8)


def test_drawings_are_well_formed_and_the_same_every_time() -> None:
    for make in (guessing, lambda: remembering(["a<"], ["b", "c", "d"], accepted=1)):
        picture = make()
        root = ET.fromstring(picture.svg)
        assert root.get("role") == "img"
        assert picture == make()
        assert picture.sentence in picture.html or "&" in picture.html


@pytest.mark.parametrize("accepted", range(4))
def test_what_is_read_again_is_said(accepted: int) -> None:
    told = remembering(["t8"], ["t9", "a", "b", "c"], accepted=accepted).sentence
    assert f"forgets {3 - accepted} slots" in told
    again = " ".join(["t9", "a", "b", "c"][: accepted + 1])
    assert (f"reads {again} again" in told) == (accepted < 3)
    with pytest.raises(BadInput, match="accepted"):
        remembering(["t8"], ["t9"], accepted=1)


def test_every_family_has_a_row() -> None:
    assert [row[0] for row in families().rows] == list(ADAPTERS)


def test_states_come_back_and_would_not_by_themselves() -> None:
    model = hybrid()
    assert forgets(model, TEXT, DRAFT)
    rows = recall(model, TEXT, DRAFT)
    assert [row.read_again for row in rows] == [1, 2, 3, 4, 0]
    assert all(row.gap < 1e-5 for row in rows)
    assert all(row.spoilt > 1e-2 for row in rows[:-1])
    with pytest.raises(BadInput, match="recurrent"):
        recall(tiny("llama"), TEXT, DRAFT)


@pytest.mark.parametrize("key", MODULES)
def test_a_fault_leaves_the_text_and_the_head_alone_and_changes_what_is_said(key: str) -> None:
    model, prompt = tiny("llama", layers=3), prompt_of(9)
    head = random_mtp(model)
    before = {name: weight.clone() for name, weight in head.state_dict().items()}
    found = []
    for drafter in (mtp_drafter(head), MODULES[key].drafter(head, 3)):
        target = Target(model, needs=drafter.needs)
        trace = run(target, drafter, prompt, max_new_tokens=10, draft_length=3, detail="full")
        assert trace.tokens == greedy_reference(model, prompt, 10)
        found.append([r.drafted.q_top for r in trace.rounds])
    assert found[0] != found[1]
    assert all(torch.equal(weight, before[name]) for name, weight in head.state_dict().items())
