"""A small language model that drafts for a larger one.

Owns: the draft model, its slot cache and the tokens in it.
Does not know: the target, the accept rule.
Invariants: `_cached` are the tokens in the draft's cache; after `observe` and `forget` they are a
prefix of the committed text without its last token, so there is always a token to feed.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.config import check_confidence
from labkit.draft import Draft
from labkit.drafters.base import Commit, Drafter
from labkit.errors import BadInput
from labkit.sampling import Rng, Warp
from labkit.target import Target
from labkit.tree import DraftTree


class DraftModel(Drafter):
    """Drafts a chain with any causal LM that shares the target's tokens.

    At temperature 0 its tokens are argmax and judged as one-hot; otherwise they are drawn from
    its own distribution under the same warp, and that distribution is their q.

    Args:
        model: HF causal LM, attention only.
        vocab_size: width of the target's logits.
        ids: [D] target id of each draft id; None when they are the same numbers.
        tokenizers: (target's, draft's), compared id by id; needed when the widths differ and
            ``ids`` is None, since width alone does not say whether two vocabularies agree.
        confidence: stop drafting when the product of the draft's own largest probabilities falls
            below this (0: never). Decided before a token is drawn, so the law stays the target's;
            costs one read from the device per drafted token.

    Raises:
        BadInput: vocabularies that differ, by size or by the first differing id.
        UnsupportedModel: a draft model with layers that cannot forget.
    """

    name = "draft"

    def __init__(
        self,
        model: Any,
        *,
        vocab_size: int,
        ids: Tensor | None = None,
        tokenizers: tuple[Any, Any] | None = None,
        confidence: float = 0.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        check_confidence(confidence)
        if tokenizers is not None:
            check_same_tokens(*tokenizers)
        self._lm = Target(model, clock=clock)
        width = self._lm.vocab_size
        if ids is None and tokenizers is None and width != vocab_size:
            raise BadInput(
                "draft model",
                expected=f"the target's {vocab_size} token ids",
                got=f"{width} token ids",
                next_step="pass both tokenizers, so that shared ids can be checked, or `ids`",
            )
        self._vocab_size = vocab_size
        self._confidence = confidence
        self._ids = self._check_ids(ids, width)
        self._known = int(model.get_input_embeddings().weight.shape[0])
        self._committed: list[int] = []
        self._cached: list[int] = []

    def _check_ids(self, ids: Tensor | None, width: int) -> Tensor:
        shared = min(width, self._vocab_size)
        ids = torch.arange(shared) if ids is None else ids
        if len(ids) > width or int(ids.max()) >= self._vocab_size or int(ids.min()) < 0:
            raise BadInput(
                "ids of the draft vocabulary",
                expected=f"at most {width} ids below {self._vocab_size}",
                got=f"{len(ids)} ids from {int(ids.min())} to {int(ids.max())}",
                next_step="use the map that belongs to this draft model",
            )
        return ids.to(self._lm.device)

    @property
    def context_limit(self) -> int | None:
        return self._lm.context_limit

    @property
    def length(self) -> int:
        """Tokens in the draft's cache."""
        return self._lm.length

    def reset(self) -> None:
        self._lm.truncate(0)
        self._committed, self._cached = [], []

    def let_go(self) -> None:
        self._lm.let_go()
        self.reset()

    def propose(self, tokens: Sequence[int], rng: Rng, *, depth: int, warp: Warp) -> Draft:
        """Alignment, K = 3, with the last draft of an all-accepted round still to be read:

        committed   ... x2 x3 y          cache   ... x2
        fed         x3 y | a | b         drafted       a | b | c
        """
        forwards, seconds = self._lm.forwards, self._lm.forward_seconds
        fresh = torch.tensor(list(tokens[self._lm.length :]), device=self._lm.device)
        drawn: list[Tensor] = []
        rows: list[Tensor] = []
        qs: list[Tensor | None] = []
        certain = 1.0
        for _ in range(depth):
            fed = drawn[-1][None] if drawn else fresh
            # a token that the draft has no embedding for costs acceptance, never correctness
            raw = self._lm.append(fed.clamp(max=self._known - 1))
            if self._confidence:
                certain *= float(torch.softmax(raw[0, : len(self._ids)].float(), -1).max())
                if certain < self._confidence:
                    break
            logits = self._spread(raw)
            prefixes = self._prefixes(warp, tokens, drawn)
            if warp.temperature == 0:
                drawn.append(warp.best(logits, prefixes)[0])
                qs.append(None)
            else:
                qs.append(q := self._drawable(warp(logits, prefixes)[0], warp))
                drawn.append(rng.pick(q))
            rows.append(logits[0])
        guess = torch.stack(drawn).tolist() if drawn else []  # the round's read of the draft
        self._cached = [*tokens, *guess][: self._lm.length]
        return Draft(
            DraftTree.chain((tokens[-1], *guess)),
            (None, *qs),
            self._lm.forwards - forwards,
            self._lm.forward_seconds - seconds,
            (None, *rows),
        )

    def _prefixes(
        self, warp: Warp, tokens: Sequence[int], drawn: Sequence[Tensor]
    ) -> list[Tensor] | None:
        """The text up to the next draft, put together on the device."""
        if not warp.needs_prefix:
            return None
        text = torch.tensor(list(tokens), device=self._lm.device)
        return [torch.cat([text, *(token[None] for token in drawn)])]

    def _drawable(self, q: Tensor, warp: Warp) -> Tensor:
        """q, unless processors ruled out every word the draft has (0/0): then a certain guess."""
        if not warp.needs_prefix:
            return q
        return torch.where(q.isnan(), torch.zeros_like(q).index_fill_(0, self._ids[:1], 1), q)

    def _spread(self, logits: Tensor) -> Tensor:
        """[1, D] over the draft's ids -> [1, V] over the target's; -inf where it has no word."""
        full = logits.new_full((1, self._vocab_size), -torch.inf)
        return full.index_copy_(1, self._ids, logits[:, : len(self._ids)])

    def observe(self, commit: Commit) -> None:
        self._committed.extend(commit.tokens)
        self.forget()

    def forget(self) -> None:
        """Rewind the cache to what it shares with the committed text (without its last token)."""
        same = 0
        for cached, committed in zip(self._cached, self._committed[:-1], strict=False):
            if cached != committed:
                break
            same += 1
        self._lm.truncate(min(same, self._lm.length))
        del self._cached[same:]


def check_same_tokens(target: Any, draft: Any) -> None:
    """Compare two HF tokenizers id by id.

    Raises:
        BadInput: naming both sizes, or the first id whose text differs.
    """
    ours, theirs = ({i: t for t, i in tok.get_vocab().items()} for tok in (target, draft))
    if len(ours) != len(theirs):
        raise BadInput(
            "tokenizers of target and draft",
            expected=f"the same vocabulary, {len(ours)} tokens",
            got=f"{len(theirs)} tokens in the draft's",
            next_step="choose a draft model of the target's family",
        )
    for i in sorted(ours):
        if ours[i] != theirs.get(i):
            raise BadInput(
                "tokenizers of target and draft",
                expected=f"id {i} to be {ours[i]!r} in both",
                got=f"{theirs.get(i)!r} in the draft's",
                next_step="choose a draft model of the target's family",
            )
