"""A bench on a toy model: no file is read, and every id is a word."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch

from labkit.lab.load import LoadedModel
from labkit.lab.session import Lab
from labkit.target import Target
from labkit.trace import Round
from labkit.tree import DraftTree

UNENDING = SimpleNamespace(eos_token_id=None)


class Words:
    """A tokenizer in which id 7 is " w7" and nothing ends a text."""

    chat_template = None
    eos_token_id = None

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return "".join(f" w{i}" for i in ids)

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [int(word[1:]) for word in text.split()]}


def toy_lab(model: Any) -> Lab:
    model.generation_config = UNENDING
    device = next(model.parameters()).device
    return Lab(LoadedModel(model, Words(), "toy", model.dtype, device, "plain"))


def fresh_logits(model: Any, tokens: Sequence[int]) -> torch.Tensor:
    """[V] after the last token, by a target that has read nothing else."""
    target = Target(model)
    target.prefill(tokens)
    return logits_after(target, tokens)


def logits_after(target: Target, tokens: Sequence[int]) -> torch.Tensor:
    """[V] after the pending token of a target whose cache holds the rest; nothing is left."""
    with target.speculation():
        return target.score(DraftTree.chain(tokens[-1:])).logits[0]


def fresh_rounds(lab: Lab, tokens: Sequence[int], **options: Any) -> tuple[Round, ...]:
    """The rounds of a run that begins with this text."""
    return lab.record(tokens, max_new_tokens=12, detail="full", **options).rounds
