"""The KV cache as a table of slots. With `labkit.recurrent`, the only file that touches
transformers' cache classes.

Owns: the keys and values of one sequence, and who sits in which slot.
Does not know: tokens' meaning, acceptance, drafts; how layers without slots take tokens back.

Each slot holds the keys and values of one token and knows the token's position. A query attends
to the slots that its mask names; the position is already rotated into the keys, so the physical
order of slots does not matter.

    rollback    = forgetting slots         (their numbers become free; nothing is moved)
    tree commit = keeping a path's slots   (nothing is copied)

Invariants (`SlotTable.check`): a slot is free, committed or speculative, never two of these;
committed slots hold positions 0, 1, ..., length - 1, each once; keys and values of a free slot
are never attended to.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from labkit.errors import UnsupportedModel
from labkit.recurrent import HYBRIDS, RECURRENT, States

FORGETFUL = ("full_attention", "sliding_attention", "global")
Masks = dict[str, Tensor | None]
"""Per kind of layer a mask [1, 1, n, extent], True = attend; None: every query sees every slot,
or the layer has no slots."""
_BUCKET = 32  # extents are rounded up to this, so that kernels see few shapes
_START = 128  # slots at first; doubled when they run out


class SlotTable:
    """Who sits where: bookkeeping in plain Python, no tensors."""

    def __init__(self) -> None:
        self.capacity = 0
        self.committed: list[int] = []  # slot of position 0, 1, ...
        self.speculative: list[int] = []  # slots of the nodes being scored, in node order
        self._free: list[int] = []  # ascending

    @property
    def used(self) -> int:
        """Slots in use, committed and speculative."""
        return len(self.committed) + len(self.speculative)

    @property
    def extent(self) -> int:
        """One more than the highest slot in use."""
        return max((*self.committed, *self.speculative), default=-1) + 1

    # Each change is one assignment: an interrupt finds all of it done, or nothing.

    def take(self, count: int) -> list[int]:
        """Make ``count`` free slots speculative, lowest numbers first."""
        while len(self._free) < count:
            grown = max(_START, self.capacity * 2)
            self.capacity, self._free = grown, [*self._free, *range(self.capacity, grown)]
        taken = self._free[:count]
        self.speculative, self._free = [*self.speculative, *taken], self._free[count:]
        return taken

    def keep(self, slots: Sequence[int]) -> None:
        """Commit ``slots``, all of them speculative, as the next positions; forget the others."""
        strangers = set(slots) - set(self.speculative)
        if strangers or len(set(slots)) != len(slots):
            raise ValueError(
                f"slots {sorted(strangers) or list(slots)} are not speculative, or twice"
            )
        free = sorted([*self._free, *(set(self.speculative) - set(slots))])
        self.committed, self.speculative, self._free = [*self.committed, *slots], [], free

    def forget(self) -> None:
        """Free every speculative slot."""
        self.keep(())

    def truncate(self, length: int) -> None:
        """Forget everything from position ``length`` on.

        Raises:
            ValueError: ``length`` is negative or more than what is committed.
        """
        if not 0 <= length <= len(self.committed):
            raise ValueError(f"length {length} is outside 0..{len(self.committed)}")
        free = sorted([*self._free, *self.speculative, *self.committed[length:]])
        self.committed, self.speculative, self._free = self.committed[:length], [], free

    def check(self) -> None:
        """Assert the invariants."""
        seats = [*self.committed, *self.speculative, *self._free]
        assert sorted(seats) == list(range(self.capacity)), "a slot is lost or has two owners"


@dataclass(slots=True)
class _Plan:
    """Where the forward under way writes, and how many slots it may see."""

    write: Tensor  # [n] slots
    extent: int
    length: int
    capacity: int


class _SlotLayer(CacheLayerMixin):
    """Keys and values of one layer: [1, heads, capacity, head_dim]. Never shrinks, never moves."""

    is_sliding = False

    def __init__(self, plan: _Plan) -> None:
        super().__init__()
        self._plan = plan

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.keys = self._grown(None, key_states)
        self.values = self._grown(None, value_states)
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        plan = self._plan
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.keys = self._grown(self.keys, key_states)
        self.values = self._grown(self.values, value_states)
        self.keys.index_copy_(2, plan.write, key_states)
        self.values.index_copy_(2, plan.write, value_states)
        return self.keys[:, :, : plan.extent], self.values[:, :, : plan.extent]

    def _grown(self, old: Tensor | None, like: Tensor) -> Tensor:
        """``old`` itself while it holds the planned capacity, else a copy that does."""
        if old is not None and old.shape[2] >= self._plan.capacity:
            return old
        # zeros, not empty: a masked weight of 0 times a stray NaN would still be NaN
        table = like.new_zeros(like.shape[0], like.shape[1], self._plan.capacity, like.shape[3])
        if old is not None:
            table[:, :, : old.shape[2]] = old
        return table

    def get_mask_sizes(self, query_length: Any) -> tuple[int, int]:
        return self._plan.extent, 0

    def get_seq_length(self, *args: Any) -> int:
        return self._plan.length

    def get_max_length(self) -> int:
        return -1


class SlotCache:
    """The slots of one sequence under a transformers model.

    Args:
        model: the transformers model that will read and write it.
        device: where keys, values and masks live.

    Raises:
        UnsupportedModel: naming the first layer that can neither forget nor be restored.
    """

    def __init__(self, model: Any, *, device: torch.device) -> None:
        text = model.config.get_text_config()
        self.kinds = layer_kinds(text)
        self.window = getattr(text, "sliding_window", None)
        self.device = device
        self._argument = _cache_argument(model)
        self._additive_dtype = model.dtype if text._attn_implementation == "eager" else None
        self.table = SlotTable()
        self._plan = _Plan(torch.empty(0, dtype=torch.long), 0, 0, 0)
        self.states = States(model, self.kinds)
        self._attention = set(self.kinds) - {RECURRENT}
        self._layers = [
            self.states.layers.get(i) or _SlotLayer(self._plan) for i in range(len(self.kinds))
        ]
        self._cache = Cache(layers=self._layers)  # type: ignore[arg-type]
        self._positions = torch.zeros(0, dtype=torch.long, device=device)
        self._committed = torch.zeros(0, dtype=torch.bool, device=device)

    @property
    def length(self) -> int:
        """Committed tokens in the cache."""
        return len(self.table.committed)

    def place(self, positions: Sequence[int], *, ancestors: Tensor) -> tuple[list[int], Masks]:
        """Give each new token a slot and build the masks of its forward.

        Args:
            positions: n text positions.
            ancestors: [n, n] bool, which of the new tokens each new token may see.

        Returns:
            the n slots, and the masks.
        """
        self.states.restore(self.length)
        slots = self.table.take(len(positions))
        self._grow()
        write = torch.tensor(slots, device=self.device)
        at = torch.tensor(list(positions), device=self.device)
        alone = self._sees_all(len(positions))
        bucket = 1 if alone else _BUCKET
        extent = -(-self.table.extent // bucket) * bucket
        self._plan.write, self._plan.extent = write, min(extent, self.table.capacity)
        self._plan.length, self._plan.capacity = self.length, self.table.capacity
        self._positions.index_copy_(0, write, at)
        return slots, self._masks(write, at, ancestors) if not alone else self._no_masks()

    def _sees_all(self, count: int) -> bool:
        """Is this one query that sees every slot up to the highest? Then it needs no mask, and
        attention can read the keys of grouped heads in place instead of copying them per head."""
        without_holes = self.table.extent == self.length + 1
        plain = self._additive_dtype is None and self._attention == {"full_attention"}
        return count == 1 and without_holes and plain

    def _no_masks(self) -> Masks:
        return dict.fromkeys(self.kinds)

    def _masks(self, write: Tensor, at: Tensor, ancestors: Tensor) -> Masks:
        extent = self._plan.extent
        full = self._committed[:extent].expand(len(at), extent).clone()
        full.index_copy_(1, write, ancestors.to(self.device))
        masks = self._no_masks()
        for kind in self._attention:
            mask = full
            if kind == "sliding_attention":
                assert self.window is not None
                mask = full & (at[:, None] - self._positions[None, :extent] < self.window)
            masks[kind] = mask[None, None]
        return masks

    def keep(self, slots: Sequence[int], *, recall: bool = False) -> None:
        """Commit these of the placed slots, in order; forget the other placed ones. Recurrent
        layers must have read their tokens and no others: see `read_again`.

        Args:
            recall: `truncate` will be asked to come back to where the text ends now.
        """
        if slots:
            self.states.keep(self.length, new=len(slots), recall=recall)
        self.table.keep(slots)
        if slots:
            self._committed[torch.tensor(list(slots), device=self.device)] = True

    def forget(self) -> None:
        """Forget every slot that was placed since the last `keep`."""
        self.table.forget()

    def read_again(self, inputs: Mapping[str, Tensor], count: int) -> None:
        """Let recurrent layers read the first ``count`` placed tokens, from the committed text on.

        Args:
            inputs: what came into these layers in the forward, by the names of `States.inputs`.
        """
        self.states.read_again(inputs, count, start=self.length, cache=self._cache)

    def truncate(self, length: int) -> None:
        """Roll back to the first ``length`` committed tokens, which ``states.has``. ValueError
        outside 0..length."""
        gone = self.table.committed[length:] if length >= 0 else []
        if gone:  # before the table: after an interrupt here no free slot is left visible
            self._committed[torch.tensor(gone, device=self.device)] = False
        self.table.truncate(length)
        self.states.forget_before(length)

    def arguments(self, masks: Masks) -> dict[str, Any]:
        """The keyword arguments that hand cache and masks to the model's forward."""
        if self._additive_dtype is not None:
            masks = {
                kind: None if mask is None else _additive(mask, self._additive_dtype)
                for kind, mask in masks.items()
            }
        mixed = len(masks) > 1
        return {
            self._argument: self._cache,
            "attention_mask": masks if mixed else next(iter(masks.values())),
            "use_cache": True,
        }

    def _grow(self) -> None:
        self._committed = _padded(self._committed, self.table.capacity)
        self._positions = _padded(self._positions, self.table.capacity)


def _padded(old: Tensor, length: int) -> Tensor:
    """[m] -> [length], zeros at the end."""
    return torch.cat([old, old.new_zeros(length - len(old))]) if len(old) < length else old


def _cache_argument(model: Any) -> str:
    """What ``model``'s forward calls its cache: renamed to ``cache`` in transformers 5.24."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where attended, the lowest number elsewhere: eager attention adds the mask, and would
    silently add 1 and 0 for a boolean one."""
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, torch.finfo(dtype).min)


def check_supported(model: Any) -> None:
    """Refuse a model that the slot cache cannot serve, before any forward.

    Raises:
        UnsupportedModel: by the name of the layer that cannot forget, of the attention kernel
            that takes no mask of its own, or of the model that takes no cache.
    """
    config = model.config.get_text_config()
    kinds = layer_kinds(config)
    if getattr(model, "_is_stateful", False) and RECURRENT not in kinds:
        raise UnsupportedModel(
            f"layers of {config.model_type}",
            expected="attention, whose slots can be forgotten",
            got=f"{type(model).__name__}, which carries a recurrent state",
            next_step="choose a model whose layers are all attention",
        )
    if config._attn_implementation not in ("sdpa", "eager"):
        raise UnsupportedModel(
            "attn_implementation",
            expected="sdpa or eager, which take an explicit mask",
            got=config._attn_implementation,
            next_step='load the model with attn_implementation="sdpa"',
        )
    takes = set(inspect.signature(model.forward).parameters)
    if getattr(config, "alibi", False) or "position_ids" not in takes:
        # distances from the order of keys (ALiBi) would be wrong as soon as slots are reused
        raise UnsupportedModel(
            f"positions of {config.model_type}",
            expected="positions that a forward is told (position_ids)",
            got="distances taken from the order of keys in the cache",
            next_step="choose a model with rotary or learned positions",
        )
    if not {"cache", "past_key_values"} & takes:
        # it might swallow the cache without a word, and see no context
        raise UnsupportedModel(
            f"forward of {type(model).__name__}",
            expected="an argument for its key-value cache",
            got="none",
            next_step="choose a model that caches keys and values; merge adapters first",
        )


def layer_kinds(config: Any) -> tuple[str, ...]:
    """The kind of each layer.

    Raises:
        UnsupportedModel: a layer that is neither full nor sliding attention nor a recurrent one of
            a known kind, by number and name.
    """
    count = config.num_hidden_layers
    window = getattr(config, "sliding_window", None)
    # transformers 5.15 says layers_block_type where 5.24 says layer_types; GPT-Neo attention_layers
    told = ("layer_types", "layers_block_type", "attention_layers")
    kinds = next((k for name in told if (k := getattr(config, name, None))), None)
    if kinds is None:
        kinds = ["sliding_attention" if window else "full_attention"] * count
    restorable = (RECURRENT,) if config.model_type in HYBRIDS else ()
    for number, kind in enumerate(kinds):
        if kind not in (*FORGETFUL, *restorable):
            raise UnsupportedModel(
                f"layer {number} of {config.model_type}",
                expected="attention, whose slots can be forgotten (" + ", ".join(FORGETFUL) + "), "
                "or the gated delta net of " + " or ".join(HYBRIDS),
                got=kind,
                next_step="choose a model whose layers are all attention",
            )
    return tuple(kinds)
