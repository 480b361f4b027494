"""Layers that carry a state instead of keys and values: gated delta nets (Qwen3-Next, Qwen3.5).

Owns: their states after some lengths of the committed text, and reading tokens into them again.
Does not know: slots, drafts, the accept rule, attention.

A state cannot forget a token. So a state is replaced, never written to, the one that belongs to
the committed text is kept, and every forward starts from it:

    kept            the state after t0 ... t9
    forward         t10 a b c          the layers now hold the state after c, a guess
    verdict: all    t10 a b c          that state is right as it stands
    verdict: some   t10 a              the kept state reads t10 a again, and is kept for 12 tokens
    verdict: none, or an interrupt     nothing to do: the next forward starts from the kept state

Reading again runs the mixer of each recurrent layer alone, over its own inputs, which the forward
recorded. What comes into a layer at a token does not depend on later tokens, so these are the
inputs that a plain run would have; attention, MLPs and output layer do not run again. The two
other ways cost more: a second forward of the whole model doubles the price of nearly every round,
and a state for every position means calling the mixer once for each, because its kernels hand out
the last state alone. Rejected branches could not be undone at all, hence chains only.

The kept states are exact, bit for bit. A state that was read again differs from a plain run's by
the rounding between transformers' forms of the rule, one for single tokens and one for blocks.

Invariants: there is a kept state for length 0 and for the committed length; a kept tensor never
changes.
"""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import LinearAttentionLayer

HYBRIDS = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
"""Model types whose linear attention is a gated delta net that `States` was tested with."""
RECURRENT = "linear_attention"
State = tuple[Tensor | None, Tensor | None]
"""Window of the convolution [1, channels, kernel] and recurrent state [1, heads, Dk, Dv]; None and
None before the first token."""
_RECALLED = 32  # states that a draft model can go back to; a draft is shorter


class StateLayer(LinearAttentionLayer):
    """What one recurrent layer remembers: of one size, however many tokens were read."""

    def __init__(self) -> None:
        super().__init__()
        self.record_past = True  # or transformers writes into the window of a single token's step

    @property
    def state(self) -> State:
        return self.conv_states[0], self.recurrent_states[0]

    @state.setter
    def state(self, state: State) -> None:
        self.conv_states[0], self.recurrent_states[0] = state
        self.has_previous_state[0] = state[0] is not None

    def update_conv_state(
        self, conv_states: Tensor, state_idx: int = 0, conv_kernel_size: int | None = None, **_: Any
    ) -> Tensor:
        """[1, channels, n] new inputs -> [1, channels, kernel + n], the window before them."""
        assert conv_kernel_size is not None
        window = self.conv_states[0]
        if window is None:
            window = conv_states.new_zeros(*conv_states.shape[:-1], conv_kernel_size)
        seen = torch.cat((window, conv_states), -1)
        self.conv_states[0] = seen[..., -conv_kernel_size:].clone()  # not a view: seen is large
        self.has_previous_state[0] = True
        return seen

    def update_recurrent_state(
        self, recurrent_states: Tensor, state_idx: int = 0, **_: Any
    ) -> Tensor:
        self.recurrent_states[0] = recurrent_states
        return recurrent_states


class States:
    """The states of every recurrent layer of one model, over one sequence. Without any such layer
    everything here does nothing.

    Args:
        model: the transformers model.
        kinds: the kind of each of its layers.
    """

    def __init__(self, model: Any, kinds: tuple[str, ...]) -> None:
        numbers = [i for i, kind in enumerate(kinds) if kind == RECURRENT]
        blocks = [model.get_decoder().layers[i] for i in numbers]
        self.layers = {i: StateLayer() for i in numbers}
        self._mixers = [block.linear_attn for block in blocks]
        names = {id(module): path for path, module in model.named_modules()} if blocks else {}
        self.inputs = {(p := names[id(b.input_layernorm)]): p for b in blocks}
        self._kept: dict[int, tuple[State, ...]] = {0: ((None, None),) * len(numbers)}

    def __len__(self) -> int:
        """How many recurrent layers there are."""
        return len(self.layers)

    def kept(self, length: int) -> tuple[Tensor, ...]:
        """Window and state of each layer as they were kept for ``length`` committed tokens."""
        return tuple(t for state in self._kept[length] for t in state if t is not None)

    def restore(self, length: int) -> None:
        """Put the states back that were kept for ``length`` committed tokens."""
        if self.layers:
            for layer, state in zip(self.layers.values(), self._kept[length], strict=True):
                layer.state = state

    def keep(self, length: int, *, new: int, recall: bool) -> None:
        """The layers' states are those after ``new`` more tokens than ``length``: keep them.

        Args:
            recall: keep those of up to ``length`` tokens as well, for `restore` to go back to.
        """
        if not self.layers:
            return
        # one assignment; what an interrupt left behind for longer texts goes with it
        older = sorted(n for n in self._kept if 0 < n <= length)[-_RECALLED:] if recall else ()
        now = tuple(layer.state for layer in self.layers.values())
        self._kept = {n: self._kept[n] for n in (0, *older)} | {length + new: now}

    def forget_before(self, length: int) -> None:
        """Only ``length`` and what is kept for longer texts can be gone back to, and 0."""
        self._kept = {n: kept for n, kept in self._kept.items() if n == 0 or n >= length}

    def has(self, length: int) -> bool:
        """Can `restore` go back to ``length`` tokens?"""
        return not self.layers or length in self._kept

    def read_again(
        self, inputs: Mapping[str, Tensor], count: int, *, start: int, cache: Any
    ) -> None:
        """From the states kept for ``start`` tokens, read the first ``count`` recorded inputs.

        Args:
            inputs: {name of `inputs`: [n, D]} as the forward had them.
            cache: transformers' cache that holds `layers`.
        """
        self.restore(start)
        with torch.inference_mode():
            for mixer, name in zip(self._mixers, self.inputs, strict=True):
                mixer(hidden_states=inputs[name][None, :count], **{_cache_name(mixer): cache})


def _cache_name(mixer: Any) -> str:
    """What a mixer calls its cache: renamed to ``cache`` in transformers 5.24."""
    return "cache" if "cache" in inspect.signature(mixer.forward).parameters else "cache_params"
