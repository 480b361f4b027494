"""The target: one causal language model and the cache it owns.

Owns: the forwards of one model over one sequence, and its slots.
Does not know: where drafts come from, the accept rule, text.
Invariants: the cache holds every committed token except the last one, which is *pending* and is
the root of the next tree; leaving a `speculation` scope without a commit forgets, also by an
error, an interrupt or a closed generator.

    committed   t0 t1 t2 t3        in the cache: t0 t1 t2      pending: t3
    tree             t3 -> a -> b       scored in one forward at positions 3, 4, 5

A hybrid target has recurrent layers between its attention layers. They have no slots; what they
do instead is told in `labkit.recurrent`. It scores chains only.
"""

import inspect
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from labkit.cache import Masks, SlotCache, check_supported
from labkit.capture import capture
from labkit.errors import BadInput, LabError, UnsupportedModel
from labkit.ids import flat_ids, numbered
from labkit.tree import DraftTree

_PREFILL_BLOCK = 512


@dataclass(frozen=True, slots=True)
class Scores:
    """One forward over n new tokens. logits: [n, V]; hidden: {name: [n, D]}; slots: n numbers."""

    logits: Tensor
    hidden: dict[str, Tensor] = field(default_factory=dict)
    slots: tuple[int, ...] = ()


class Target:
    """A transformers causal LM, driven through the slot cache.

    Args:
        model: any HF causal LM whose layers are full or sliding attention, or gated delta nets
            (Qwen3-Next, Qwen3.5).
        needs: names of activations to return with each forward: "h0" is the embedding, "hk" the
            residual stream after k layers, "final" the last one after the final norm.
        width: pad every forward to at least this many rows. Matrix kernels may round differently
            for different numbers of rows; a fixed width makes stepwise and blockwise forwards
            agree bit for bit where they treat rows alike. Recurrent layers do not, and read every
            committed token again after a forward with padding.
        clock: seconds; on a device that works asynchronously, one that waits for it.

    Raises:
        UnsupportedModel: before any forward, naming what cannot be served.
    """

    def __init__(
        self,
        model: Any,
        *,
        needs: Sequence[str] = (),
        width: int = 1,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        check_supported(model)
        self.model = model
        self.needs = tuple(needs)
        self.width = numbered(width, first=1, name="width", next_step="leave it at 1")
        self.forwards = 0
        self.forward_seconds = 0.0
        self.replayed = 0  # tokens that recurrent layers have read again
        self._clock = clock
        self.run = 0  # counts prefills, so that an abandoned run can notice
        self._device = next(model.parameters()).device
        self.let_go()
        self._keeps_logits = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._paths = _activation_paths(model, self.needs)

    def let_go(self) -> None:
        """Forget the text, and give back the memory of its slots, which `truncate` keeps."""
        self._cache = SlotCache(self.model, device=self._device)
        self._slots: tuple[int, ...] = ()
        self._ids = torch.empty(0, dtype=torch.long, device=self._device)  # [m] of the last forward
        self._inputs: dict[str, Tensor] = {}  # of recurrent layers in that forward, [m, D]
        self._text = self._ids  # [length] cached tokens; kept for recurrent layers alone

    @property
    def device(self) -> torch.device:
        return self._device

    @property
    def vocab_size(self) -> int:
        """Width of the logits."""
        return int(self.model.get_output_embeddings().weight.shape[0])

    @property
    def context_limit(self) -> int | None:
        """Most tokens that prompt and text may have together, None when unknown."""
        limit = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        return int(limit) if limit else None

    @property
    def recurrent_states(self) -> tuple[Tensor, ...]:
        """Of the committed text: window and state of each recurrent layer; () without any."""
        return self._cache.states.kept(self.length)

    @property
    def recurrent_layers(self) -> int:
        """Layers without slots, which carry a state; with any of them, drafts must be chains."""
        return len(self._cache.states)

    @property
    def length(self) -> int:
        """Tokens in the cache."""
        return self._cache.length

    @property
    def slots_used(self) -> int:
        """Slots in use, committed and speculative."""
        return self._cache.table.used

    @property
    def committed_slots(self) -> tuple[int, ...]:
        """The slot of each cached token, by position."""
        return tuple(self._cache.table.committed)

    def prefill(self, tokens: Sequence[int]) -> dict[str, Tensor]:
        """Start a new sequence: put all of ``tokens`` but the last into the cache.

        Returns:
            the needed activations of the cached tokens, {name: [len(tokens) - 1, D]}.
        """
        self.run += 1
        self.truncate(0)
        hidden: list[dict[str, Tensor]] = []
        body = tokens[:-1]
        for start in range(0, len(body), _PREFILL_BLOCK):
            block = body[start : start + _PREFILL_BLOCK]
            with self.speculation():
                scores = self.score(DraftTree.chain(block), all_logits=False)
                self.commit(tuple(range(len(block))))
            hidden.append(scores.hidden)
        return {name: torch.cat([h[name] for h in hidden]) for name in self.needs if hidden}

    def score(self, tree: DraftTree, *, all_logits: bool = True) -> Scores:
        """One forward over the tree's nodes. They stay speculative until `commit` or `forget`.

        Args:
            tree: node 0 goes to position ``length``.
            all_logits: False computes only the last row's logits.

        Returns:
            logits [n, V] ([1, V]), needed activations {name: [n, D]}, the n slots.

        Raises:
            BadInput: a tree that branches, for a target with recurrent layers.
            LabError: the nodes of an earlier call are still speculative.
        """
        self._check_chain(tree)
        if self._slots:
            raise LabError(
                "target",
                expected="a commit or forget before the next score",
                got=f"{len(self._slots)} slots still speculative",
                next_step="leave the speculation scope first",
            )
        n = len(tree)
        ids, positions, ancestors = self._padded(tree)
        slots, masks = self._cache.place(positions, ancestors=ancestors)
        self._slots, self._ids = tuple(slots[:n]), ids[0]
        again = self._cache.states.inputs if len(positions) > 1 else {}
        logits, hidden = self._forward(
            ids, positions, masks, last_only=not all_logits and n > 1, also=again
        )
        self._inputs = {name: hidden.pop(name) for name in again}
        return Scores(logits[:n], {name: h[:n] for name, h in hidden.items()}, self._slots)

    def append(self, ids: Tensor) -> Tensor:
        """Put tokens straight into the cache, as committed; returns the last one's logits [1, V].

        For a draft model, whose tokens may still be on the device: nothing is read back. Take
        them out again with `truncate`.

        Args:
            ids: [n] int64, on the model's device.
        """
        for block in ids.split(_PREFILL_BLOCK):
            n = len(block)
            positions = list(range(self.length, self.length + n))
            slots, masks = self._cache.place(positions, ancestors=_lower_triangle(n))
            with self.speculation():
                logits, _ = self._forward(block[None], positions, masks, last_only=True)
                self._remember(block)
                self._cache.keep(slots, recall=True)
        return logits[-1:]

    def _forward(
        self,
        ids: Tensor,
        positions: list[int],
        masks: Masks,
        *,
        last_only: bool,
        also: Mapping[str, str] = MappingProxyType({}),
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """logits [m, V] ([1, V]) and needed activations {name: [m, D]} of one forward, and those of
        the modules ``also``, {name: path}."""
        keep = {"logits_to_keep": 1} if self._keeps_logits and last_only else {}
        paths = self._paths | dict(also)
        start = self._clock()
        with torch.inference_mode(), capture(self.model, paths) as seen:
            out = self.model(
                input_ids=ids,
                position_ids=torch.tensor([positions], device=self._device),
                **self._cache.arguments(masks),
                **keep,
            )
        self.forward_seconds += self._clock() - start
        self.forwards += 1
        return out.logits[0], {name: seen[name][0] for name in paths}

    def _padded(self, tree: DraftTree) -> tuple[Tensor, list[int], Tensor]:
        """ids [1, m], positions and ancestor mask [m, m], m = max(n, width). A padding row sees
        itself alone, and nobody sees it."""
        n, m = len(tree), max(len(tree), self.width)
        ids = torch.tensor([tree.tokens + tree.tokens[:1] * (m - n)], device=self._device)
        positions = [*tree.positions(self.length), *[self.length] * (m - n)]
        if tree.is_chain:
            ancestors = _lower_triangle(m)
        else:
            ancestors = torch.eye(m, dtype=torch.bool)
            ancestors[:n, :n] = torch.tensor(tree.mask)
        ancestors[n:] = False
        ancestors[n:, n:] = torch.eye(m - n, dtype=torch.bool)
        return ids, positions, ancestors

    def commit(self, path: Sequence[int]) -> tuple[int, ...]:
        """Keep the slots of these nodes (root first), forget the rest; returns the kept slots."""
        kept = tuple(self._slots[node] for node in path)
        if self._inputs and 0 < len(kept) < len(self._ids):
            self._read_again(len(kept))
        self._remember(self._ids[: len(kept)])
        self._cache.keep(kept)
        self._slots, self._inputs = (), {}
        return kept

    def _read_again(self, count: int) -> None:
        """Bring recurrent layers from the end of the draft to its first ``count`` tokens."""
        start = self._clock()
        self._cache.read_again(self._inputs, count)
        self.forward_seconds += self._clock() - start
        self.replayed += count

    def _remember(self, ids: Tensor) -> None:
        if self.recurrent_layers:
            self._text = torch.cat((self._text[: self.length], ids))

    def forget(self) -> None:
        """Forget every node that was scored since the last commit."""
        self._cache.forget()
        self._slots, self._inputs = (), {}

    def truncate(self, length: int) -> None:
        """Roll the cache back to its first ``length`` tokens. ValueError outside 0..length.

        A target with recurrent layers goes back for free to its beginning, to where it stands, and
        to where the last run of `append` calls came by; to other places it reads the text again.
        """
        self.forget()
        if self._cache.states.has(length) or not 0 <= length < self.length:
            self._cache.truncate(length)
        else:
            text = self._text[:length]
            self._cache.truncate(0)
            self.append(text)

    def _check_chain(self, tree: DraftTree) -> None:
        if self.recurrent_layers and not tree.is_chain:
            node = next(i for i, parent in enumerate(tree.parents) if parent != i - 1)
            raise BadInput(
                "draft tree",
                expected=f"a chain, since {self.recurrent_layers} layers of the target are "
                "recurrent and cannot undo a rejected branch",
                got=f"node {node} below node {tree.parents[node]}",
                next_step="let the drafter draft chains",
            )

    @contextmanager
    def speculation(self) -> Iterator["Target"]:
        """A scope: whatever was scored in it and not committed is forgotten when it ends.

        Only while its sequence lasts: a scope that was left open in an abandoned run does not
        touch the run that came after it.
        """
        mine = self.run
        try:
            yield self
        finally:
            if self.run == mine:
                self.forget()

    def check_tokens(self, tokens: Iterable[int]) -> list[int]:
        """A prompt as plain ints, if it can be decoded.

        Raises:
            BadInput: no tokens, text, a batch, an id outside the vocabulary, or no room for a
                token.
        """
        ids = flat_ids(
            tokens,
            name="prompt",
            expected="one flat list of token ids (batch size 1)",
            next_step="tokenise text first, and decode one prompt at a time",
        )
        if not ids:
            raise BadInput(
                "prompt", expected="at least one token", got="none", next_step="give some text"
            )
        wrong = next((i for i in ids if not 0 <= i < self.vocab_size), None)
        if wrong is not None:
            raise BadInput(
                "prompt",
                expected=f"token ids from 0 to {self.vocab_size - 1}",
                got=str(wrong),
                next_step="tokenise with the target's own tokenizer",
            )
        limit = self.context_limit
        if limit is not None and len(ids) >= limit:
            raise BadInput(
                "prompt",
                expected=f"fewer than {limit} tokens, the context limit of the model",
                got=f"{len(ids)} tokens",
                next_step="shorten the prompt",
            )
        return list(ids)


def _lower_triangle(n: int) -> Tensor:
    return torch.ones(n, n, dtype=torch.bool).tril_()


def _activation_paths(model: Any, needs: Sequence[str]) -> dict[str, str]:
    """Where each needed activation comes from: {name: path of the module that puts it out}."""
    if not needs:
        return {}
    names = {id(module): path for path, module in model.named_modules()}
    decoder = model.get_decoder()
    layers = _first_of(decoder, "layers", "h")
    paths = {"h0": names[id(model.get_input_embeddings())]}
    paths |= {f"h{k + 1}": names[id(layer)] for k, layer in enumerate(layers)}
    paths["final"] = names[id(_first_of(decoder, "norm", "ln_f", "final_layernorm"))]
    for name in needs:
        if name not in paths:
            raise BadInput(
                "needed activation",
                expected=f"h0 to h{len(layers)}, or final",
                got=repr(name),
                next_step="name the residual stream after k layers hk, the normed last one final",
            )
    return {name: paths[name] for name in needs}


def _first_of(module: Any, *names: str) -> Any:
    """The first of these sub-modules that the decoder has."""
    found = next((getattr(module, name) for name in names if getattr(module, name, None)), None)
    if found is None:
        raise UnsupportedModel(
            f"activations of {type(module).__name__}",
            expected="a decoder with " + " or ".join(names),
            got="none of these",
            next_step="choose a decoder-only model of a usual kind",
        )
    return found
