"""What may be turned between two rounds, and the law that follows from it.

Owns: the settings of a workbench, and the processors that force and forbid tokens.
Does not know: rounds, branches, widgets.
Invariants: settings that exist can be decoded with; nothing here changes in place.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from labkit.config import DecodeConfig
from labkit.drafters.shapes import SMALL_TREE, Chain, DynamicTree, Shape, check_shape
from labkit.errors import BadInput, one_of, require
from labkit.sampling import Processor


class Only:
    """A logits processor that leaves one token possible."""

    def __init__(self, token: int) -> None:
        self.token = token

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        left = torch.full_like(scores, -torch.inf)
        left[:, self.token] = scores[:, self.token].clamp(min=torch.finfo(scores.dtype).min)
        return left


class Without:
    """A logits processor that makes some tokens impossible: their scores become -inf, and the
    others share their mass in proportion."""

    def __init__(self, tokens: Collection[int]) -> None:
        self.tokens = tuple(sorted(tokens))

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        left = scores.clone()
        left[:, list(self.tokens)] = -torch.inf
        return left


@dataclass(frozen=True, slots=True)
class Settings:
    """method: who drafts. shape: of the drafts, None: the method's own. forbidden: token ids. only:
    the one token that is possible, None for any."""

    method: str
    config: DecodeConfig
    shape: Shape | None = None
    forbidden: tuple[int, ...] = ()
    only: int | None = None

    def __post_init__(self) -> None:
        require(isinstance(self.method, str), "method", "its name", self.method)
        check_shape(self.shape)

    @property
    def processors(self) -> tuple[Processor, ...]:
        """What makes the law another one than the target's; a forced token comes before a ban."""
        if self.only is not None:
            return (Only(self.only),)
        return (Without(self.forbidden),) if self.forbidden else ()

    def changed(self, changes: Mapping[str, Any], *, made: int) -> "Settings":
        """Others: a ``method``, a ``shape`` (with another method: that method's own), or fields of
        `DecodeConfig`.

        Args:
            made: new tokens there are already.

        Raises:
            BadInput: a setting that there is not, or a value that cannot be used.
        """
        check_names(changes, also=("method", "shape"))
        config = replace(
            self.config,
            **{name: changes[name] for name in changes if name not in ("method", "shape")},
        )
        if made and "max_new_tokens" in changes and config.max_new_tokens <= made:
            raise BadInput(
                "max_new_tokens",
                expected=f"more than the {made} there are",
                got=repr(config.max_new_tokens),
                next_step="rewind first, or choose a larger number",
            )
        method = changes.get("method", self.method)
        shape = changes.get("shape", self.shape if method == self.method else None)
        return replace(self, method=method, config=config, shape=shape)

    def law(self, names: Sequence[str]) -> str:
        """The law of the text from here on, in one sentence. ``names``: of the forbidden tokens."""
        config = self.config
        bounds = {
            f"top-k {config.top_k}": config.top_k > 0,
            f"top-p {config.top_p:g}": config.top_p < 1,
            f"min-p {config.min_p:g}": config.min_p > 0,
            f"repetition penalty {config.repetition_penalty:g}": config.repetition_penalty != 1,
        }
        kept = "".join(f", {name}" for name, on in bounds.items() if on)
        at = f"temperature {config.temperature:g}{kept}"
        how = "the likeliest token each time (temperature 0)" if not config.temperature else at
        if not names:
            return f"The text follows the target's own law: {how}."
        listed = ", ".join(names)
        return (
            f"The text follows the law of the target without {listed}: these scores are -inf, and "
            f"the other tokens share their mass; {how}. It is not the plain target's law."
        )


SHAPES: dict[str, Shape | None] = {
    "as the method does": None,
    "chain": Chain(),
    "fixed tree, 9 nodes": SMALL_TREE,
    "growing tree, 7 nodes": DynamicTree(top_k=3, nodes=7),
    "growing tree, 15 nodes": DynamicTree(top_k=4, nodes=15),
}


def check_names(settings: Mapping[str, Any], *, also: Sequence[str] = ()) -> None:
    """BadInput for a setting that there is not, by name."""
    known = (*also, *(f.name for f in fields(DecodeConfig)))
    for name in settings:
        one_of(known, name, name="setting", next_step="choose one of these")
