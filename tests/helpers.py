"""Slow references and doubles that the engine's tests share.

Everything here is meant to be obviously right rather than fast.
"""

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import torch
import transformers
from torch import nn

from labkit import toy
from labkit.config import DecodeConfig
from labkit.decode import speculate
from labkit.draft import Draft
from labkit.drafters.base import Drafter
from labkit.drafters.draft_model import DraftModel
from labkit.drafters.ngram import NGram
from labkit.drafters.nothing import Nothing
from labkit.drafters.scripted import Scripted
from labkit.events import Event
from labkit.target import Target
from labkit.trace import Trace
from labkit.tree import DraftTree

FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "phi3", "gemma3", "gpt2")
CPU = torch.device("cpu")
WINDOW = 8  # of the models that have sliding windows: shorter than every text decoded here


@lru_cache
def tiny(
    family: str = "llama",
    *,
    attention: str = "sdpa",
    seed: int = 0,
    context: int = 512,
    device: torch.device = CPU,
) -> Any:
    """A random model whose greedy text does not stick at one token; the same on every device."""
    if family == "gpt2":
        return _tiny_gpt2(attention, seed, context).to(device)
    window = None if family == "llama" else WINDOW
    layers = 3 if family in toy.HYBRIDS else 2  # recurrent, attention, recurrent
    made = toy.tiny(
        family, seed=seed, layers=layers, window=window, context=context, attention=attention
    )
    return made.to(device)


def _tiny_gpt2(attention: str, seed: int, context: int) -> Any:
    config = transformers.GPT2Config(
        vocab_size=64,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=context,
        initializer_range=0.2,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation=attention,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.GPT2LMHeadModel(config)
    return model.eval().requires_grad_(False)


class SumModel(nn.Module):
    """The next token is a sum over all tokens that the mask lets a query see, each times its
    position, modulo the vocabulary: the least change in what is seen changes the text. Whole
    numbers, so nothing is rounded; a few operations, so it is fast.

    ``slips``: after every third sum it is off by one, as a draft model would be.
    """

    def __init__(self, *, vocab_size: int = 31, slips: bool = False) -> None:
        super().__init__()
        self.slips = slips
        self.embedding = nn.Embedding(vocab_size, 1, dtype=torch.float64)
        self.config: Any = SimpleNamespace(
            model_type="sum",
            vocab_size=vocab_size,
            num_hidden_layers=1,
            max_position_embeddings=None,
            _attn_implementation="sdpa",
        )
        self.config.get_text_config = lambda: self.config
        self.dtype = torch.float64

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def get_output_embeddings(self) -> nn.Module:
        return self.embedding

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        attention_mask: torch.Tensor | None,
        past_key_values: Any,
        **_: Any,
    ) -> SimpleNamespace:
        new = (input_ids + 1).double()[:, None, :, None], position_ids.double()[:, None, :, None]
        ids, positions = past_key_values.update(*new, 0)
        weights = (ids * (positions + 1))[0, 0, :, 0]
        if attention_mask is None:  # one query that sees everything
            return SimpleNamespace(logits=self.logits_of(weights.sum()[None])[None])
        return SimpleNamespace(logits=self.logits_of(attention_mask[0, 0].double() @ weights)[None])

    def logits_of(self, sums: torch.Tensor) -> torch.Tensor:
        """[n] -> [n, V]."""
        slip = (sums % 3 == 0).double() if self.slips else 0
        best = ((sums + slip) % self.config.vocab_size).long()
        return nn.functional.one_hot(best, self.config.vocab_size).double() * 9

    def continued(self, prompt: Sequence[int], count: int) -> tuple[int, ...]:
        """What it writes, by its definition."""
        tokens = list(prompt)
        for _ in range(count):
            total = sum((t + 1) * (i + 1) for i, t in enumerate(tokens))
            tokens.append(int(self.logits_of(torch.tensor([float(total)]))[0].argmax()))
        return tuple(tokens[len(prompt) :])


@lru_cache
def prompt_of(length: int, *, vocab_size: int = 64, seed: int = 6) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(vocab_size, (length,), generator=generator).tolist())


def on_device_of(model: Any, tokens: Sequence[int]) -> torch.Tensor:
    """[1, n] ids where ``model`` lives."""
    return torch.tensor([list(tokens)], device=next(model.parameters()).device)


@lru_cache
def greedy_reference(model: Any, prompt: tuple[int, ...], count: int) -> tuple[int, ...]:
    """One argmax at a time with transformers' own forward over the whole text, no cache at all."""
    tokens = list(prompt)
    with torch.inference_mode():
        for _ in range(count):
            out = model(input_ids=on_device_of(model, tokens), use_cache=False)
            tokens.append(int(out.logits[0, -1].argmax()))
    return tuple(tokens[len(prompt) :])


@torch.inference_mode()
def plain_logits(model: Any, tokens: Sequence[int]) -> torch.Tensor:
    """[n, V] of transformers' own forward over the whole text."""
    return model(input_ids=on_device_of(model, tokens), use_cache=False).logits[0]


def run(target: Target, drafter: Drafter, prompt: Sequence[int], **options: Any) -> Trace:
    """A whole run; ``options``: of `speculate` by their names, the rest goes to the config."""
    taken = {k: options.pop(k) for k in ("processors", "text", "rng", "clock") if k in options}
    events = speculate(target, drafter, prompt, config=DecodeConfig(**options), **taken)
    return Trace.record(events)


def checked(drafter: Drafter, check: Callable[[Draft, Sequence[int]], None]) -> Drafter:
    """The drafter, with every draft shown to ``check`` together with the text before it."""
    propose = drafter.propose

    def proposed(tokens: Sequence[int], rng: Any, **options: Any) -> Draft:
        draft = propose(tokens, rng, **options)
        check(draft, tokens)
        return draft

    drafter.propose = proposed  # type: ignore[method-assign]
    return drafter


def check_nodes(draft: Draft, expected: Callable[[list[int]], torch.Tensor]) -> None:
    """Every drafted node has the logits, [V], that ``expected`` gives for the guesses above it."""
    tokens = draft.tree.tokens
    for node in range(1, len(tokens)):
        above = [tokens[i] for i in draft.tree.path(node)[1:-1]]
        torch.testing.assert_close(draft.logits[node], expected(above), atol=1e-5, rtol=1e-4)


def advance(events: Iterable[Event], *, until: Callable[[Event], bool]) -> Event:
    """Step until an event that ``until`` says yes to; the run stays suspended there."""
    for event in events:
        if until(event):
            return event
    raise AssertionError("the run ended before")


def never_right(text: Sequence[int], *, start: int, vocab_size: int = 64) -> Scripted:
    """A ruined drafter: every guess is off by one from ``text``, which starts at ``start``."""

    def script(tokens: tuple[int, ...], _rng: Any, depth: int) -> Draft:
        at = len(tokens) - start
        wrong = [(t + 1) % vocab_size for t in text[at : at + depth]]
        return Draft.deterministic(DraftTree.chain((tokens[-1], *wrong)))

    return Scripted(script)


def knows(
    text: Sequence[int], *, start: int, right: Callable[[int], bool] = lambda at: True
) -> Scripted:
    """Drafts a chain of ``text``; a position where ``right`` says no gets a wrong token."""

    def script(tokens: tuple[int, ...], _rng: Any, depth: int) -> Draft:
        at = len(tokens) - start
        guess = [t if right(at + i) else (t + 1) % 64 for i, t in enumerate(text[at : at + depth])]
        return Draft.deterministic(DraftTree.chain((tokens[-1], *guess)))

    return Scripted(script)


def branching(text: Sequence[int], *, start: int, vocab_size: int = 64) -> Scripted:
    """Trees with right and wrong branches mixed.

    Below every node of the right path stand a wrong child, which has the right next token as a
    child of its own (the trap: right token, wrong branch), and, save at every fifth position, the
    right child; which of the two comes first alternates.
    """

    def script(tokens: tuple[int, ...], _rng: Any, depth: int) -> Draft:
        at = len(tokens) - start
        ids, parents, node = [tokens[-1]], [-1], 0
        for level, token in enumerate(text[at : at + depth]):
            wrong, trap = (token + 1) % vocab_size, token
            right_here = (at + level) % 5 != 4
            order = (wrong, token) if (at + level) % 2 else (token, wrong)
            following = 0
            for child in order if right_here else (wrong,):
                ids.append(child)
                parents.append(node)
                if child == token:
                    following = len(ids) - 1
                elif level + 1 < depth:
                    ids.append(trap)
                    parents.append(len(ids) - 2)
            if not right_here:
                break
            node = following
        return Draft.deterministic(DraftTree(tuple(ids), tuple(parents)))

    return Scripted(script)


@lru_cache
def distorted(model: Any) -> Any:
    """A copy with noise on its weights: it often guesses what ``model`` writes, not always."""
    copy = deepcopy(model)
    generator = torch.Generator().manual_seed(0)
    for weight in copy.parameters():
        if weight.dim() > 1:
            noise = 0.02 * torch.randn(weight.shape, generator=generator)
            weight.add_(noise.to(weight.device))
    return copy


def drafters(model: Any, text: Sequence[int], *, start: int) -> dict[str, Callable[[], Drafter]]:
    """Every kind of drafter there is for ``model``; ``text`` is what it will write."""
    vocab_size, device = model.config.vocab_size, next(model.parameters()).device
    return {
        "nothing": Nothing,
        "ngram": NGram,
        "draft model": lambda: DraftModel(distorted(model), vocab_size=vocab_size),
        "stranger": lambda: DraftModel(tiny(seed=5, device=device), vocab_size=vocab_size),
        "self-draft": lambda: DraftModel(model, vocab_size=vocab_size),
        "ruined": lambda: never_right(text, start=start),
        "tree": lambda: branching(text, start=start),
    }
