"""Logits to distributions, and every random draw of the lab.

Owns: temperature, top-k, top-p, min-p, logits processors with the right prefix; `Rng`.
Does not know: trees, models, acceptance.
Invariants: temperature 0 is a one-hot distribution, not another code path; rows of the result
sum to 1; no randomness outside an `Rng`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from labkit.config import DecodeConfig
from labkit.errors import BadInput

Processor = Callable[[Tensor, Tensor], Tensor]
"""A transformers logits processor: (input_ids [1, L], scores [1, V]) -> scores [1, V]."""
Prefix = Sequence[int] | Tensor
_COLDEST = torch.finfo(torch.float32).tiny  # colder ones have the same law: ties alone are drawn


@dataclass(frozen=True, slots=True)
class Warp:
    """The law that tokens are drawn from, given logits and the text before each of them.

    Order as in transformers: processors (penalties), temperature, top-k, top-p, min-p.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    processors: tuple[Processor, ...] = field(default=())

    @classmethod
    def from_config(cls, config: DecodeConfig, *, processors: Sequence[Processor] = ()) -> "Warp":
        """The warp that ``config`` asks for; a repetition penalty becomes the first processor."""
        own = check_processors(processors)
        first: tuple[Processor, ...] = ()
        if config.repetition_penalty != 1.0:
            from transformers import RepetitionPenaltyLogitsProcessor

            first = (RepetitionPenaltyLogitsProcessor(float(config.repetition_penalty)),)
        return cls(config.temperature, config.top_k, config.top_p, config.min_p, (*first, *own))

    @property
    def needs_prefix(self) -> bool:
        """Do the logits depend on the text, beyond the model itself?"""
        return bool(self.processors)

    def __call__(self, logits: Tensor, prefixes: Sequence[Prefix] | None = None) -> Tensor:
        """Distributions after each prefix.

        Args:
            logits: [n, V].
            prefixes: n lists (or tensors [L]) of token ids, the text up to and including the
                token whose logits these are; needed only when there are processors.

        Returns:
            [n, V], rows sum to 1; float32 at least. A row that leaves no token possible is NaN:
            noticing it here would wait for the device, `verify` refuses it when it is needed.

        Raises:
            BadInput: a processor returned something else than scores of that shape; by its name.
        """
        return self.law(self.processed(logits, prefixes))

    def law(self, logits: Tensor) -> Tensor:
        """[n, V] logits, processors already applied -> distributions, [n, V]; see `__call__`."""
        if self.temperature == 0:
            best = logits.max(-1)
            return one_hot(best.indices, like=logits, mass=best.values * 0 + 1)  # NaN stays NaN
        # the maximum goes first: a tiny temperature would make it infinite; one that float32 takes
        # for 0, or whose inverse for infinite, would make it NaN
        t = max(self.temperature, _COLDEST)
        p = torch.softmax((logits - logits.amax(-1, keepdim=True)) / t, -1)
        if self.top_k and self.top_k < p.shape[-1]:
            p = _renormalise(p.masked_fill(p < p.topk(self.top_k, -1).values[..., -1:], 0))
        if self.top_p < 1:
            p = _renormalise(_nucleus(p, self.top_p))
        if self.min_p > 0:
            p = _renormalise(p.masked_fill(p < self.min_p * p.amax(-1, keepdim=True), 0))
        return p

    def best(self, logits: Tensor, prefixes: Sequence[Prefix] | None = None) -> Tensor:
        """[n], the likeliest token of each row of [n, V], after the processors."""
        return self.processed(logits, prefixes).argmax(-1)

    def blame(self, logits: Tensor, prefixes: Sequence[Prefix] | None) -> None:
        """Look for the processor that made NaN or +inf of sound scores. Reads from the device, so
        for a run that has failed already.

        Args:
            logits, prefixes: as of a call.

        Raises:
            BadInput: naming the first such processor.
        """
        self.processed(logits, prefixes, suspicious=True)

    def processed(
        self, logits: Tensor, prefixes: Sequence[Prefix] | None, *, suspicious: bool = False
    ) -> Tensor:
        """Logits [n, V] after the processors; float32 at least, so that ties of the model's own
        dtype stay ties. See `__call__`, and `blame` for ``suspicious``."""
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if not self.processors:
            return logits
        if prefixes is None or len(prefixes) != len(logits):
            raise BadInput(
                "prefixes",
                expected=f"one prefix for each of {len(logits)} rows of logits",
                got="none" if prefixes is None else str(len(prefixes)),
                next_step="give the text before every row: processors depend on it",
            )
        rows = []
        for row, prefix in zip(logits, prefixes, strict=True):
            scores = row[None].clone()  # a processor may write in place; the model's row stays
            ids = torch.as_tensor(prefix, dtype=torch.long, device=row.device)[None]
            for processor in self.processors:
                before, scores = scores, _apply(processor, ids, scores)
                if suspicious and before.max() < torch.inf and not scores.max() < torch.inf:
                    raise _bad_scores(processor, f"a score of {float(scores.max())}")
            rows.append(scores)
        return torch.cat(rows)


def processor_name(processor: Processor) -> str:
    """What people call it: the name of a function, the class of an object."""
    return str(getattr(processor, "__name__", type(processor).__name__))


def check_processors(processors: Sequence[Processor]) -> tuple[Processor, ...]:
    """``processors`` as a tuple.

    Raises:
        BadInput: something in it cannot be called, or it is no list.
    """
    listed = processors if isinstance(processors, Sequence) else [None]
    wrong = [processor for processor in listed if not callable(processor)]
    if wrong:
        raise BadInput(
            "processors",
            expected="a list of functions (input_ids [1, L], scores [1, V]) -> scores [1, V]",
            got=repr(processors),
            next_step="put logits processors into a list; [] for none",
        )
    return tuple(listed)


def _apply(processor: Processor, ids: Tensor, scores: Tensor) -> Tensor:
    """The new scores [1, V]."""
    out: object = processor(ids, scores)
    if not isinstance(out, Tensor):
        raise _bad_scores(processor, repr(out))
    if out.shape != scores.shape or not out.is_floating_point():
        raise _bad_scores(processor, f"{out.dtype}, shape {tuple(out.shape)}")
    return out


def _bad_scores(processor: Processor, got: str) -> BadInput:
    return BadInput(
        f"logits processor {processor_name(processor)!r}",
        expected="scores of the shape that came in, each a number or -inf",
        got=got,
        next_step="mend the processor, or leave it out",
    )


def one_hot(tokens: Tensor, *, like: Tensor, mass: Tensor) -> Tensor:
    """Distributions with ``mass`` [n] on ``tokens`` [n], shaped and typed as ``like`` [n, V]."""
    return torch.zeros_like(like).scatter_(-1, tokens[..., None], mass[..., None])


def _nucleus(p: Tensor, top_p: float) -> Tensor:
    """Keep the likeliest tokens until their mass reaches ``top_p``; always the likeliest one."""
    ordered, order = p.sort(-1, descending=True)
    before = ordered.cumsum(-1) - ordered
    dropped = before >= top_p
    dropped[..., 0] = False  # also when top_p is too small for the dtype
    return torch.zeros_like(p).scatter_(-1, order, ordered.masked_fill(dropped, 0))


def _renormalise(p: Tensor) -> Tensor:
    return p / p.sum(-1, keepdim=True)


class Flip(NamedTuple):
    """The outcome of one accept test and the uniform draw that decided it."""

    accepted: bool
    u: float


class Rng(ABC):
    """Every random choice of a run goes through one of these."""

    @abstractmethod
    def flip(self, probability: float) -> Flip:
        """True with ``probability``."""

    @abstractmethod
    def pick(self, distribution: Tensor) -> Tensor:
        """A token of ``distribution`` [V]: int64 scalar on its device, never waiting for it."""

    @abstractmethod
    def pick_ahead(self, distributions: Callable[[], Tensor]) -> Tensor | None:
        """[m] tokens, one per row of ``distributions()`` [m, V], of which exactly one will be used.

        One draw serves all rows. None, without asking for the rows, when the row had better be
        known first; then call `pick`.
        """

    @abstractmethod
    def mark(self) -> Callable[[], None]:
        """Remember this moment: what comes back, called, makes the draws come again from here."""


class TorchRng(Rng):
    """Draws from a seeded CPU generator, so a seed means the same on every device.

    Args:
        seed: fixes all draws.
        ahead: answer `pick_ahead`: on a device, one draw over all rows saves waiting for it.
    """

    def __init__(self, seed: int, *, ahead: bool = False) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._ahead = ahead
        self._held: float | None = None  # drawn by `pick_ahead` for the `pick` that follows

    def flip(self, probability: float) -> Flip:
        u = self._uniform()
        return Flip(u < probability, u)

    def pick(self, distribution: Tensor) -> Tensor:
        u, self._held = self._held, None
        return _inverse_cdf(distribution[None], self._uniform() if u is None else u)[0]

    def pick_ahead(self, distributions: Callable[[], Tensor]) -> Tensor | None:
        u = self._uniform()  # drawn here in both cases, so that a seed means one text everywhere
        if self._ahead:
            return _inverse_cdf(distributions(), u)
        self._held = u
        return None

    def mark(self) -> Callable[[], None]:
        state, held = self._generator.get_state(), self._held

        def back() -> None:
            self._generator.set_state(state)
            self._held = held

        return back

    def _uniform(self) -> float:
        return float(torch.rand((), dtype=torch.float64, generator=self._generator))


def _inverse_cdf(p: Tensor, u: float) -> Tensor:
    """[m] tokens: the first whose cumulative mass exceeds u times the row's mass.

    float64, so that the law holds to 1e-12 over large vocabularies; a token without mass is
    never returned, whatever the rounding.
    """
    cdf = p.double().cumsum(-1)
    token = torch.searchsorted(cdf, cdf[:, -1:] * u, right=True).clamp_(max=p.shape[-1] - 1)
    has_mass = p.gather(-1, token) > 0
    return torch.where(has_mass, token, p.argmax(-1, keepdim=True))[:, 0]
