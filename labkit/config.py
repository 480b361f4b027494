"""The settings of one decoding run.

Owns: every number a caller may turn, its range, and the words used when it is impossible.
Does not know: models, tokens, devices.
Invariants: a `DecodeConfig` that exists is valid; it never changes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, get_args

from labkit.errors import BadInput, one_of, require
from labkit.ids import token_ids, whole

Detail = Literal["timing", "summary", "full"]
# those whose drafter is a head on the target's states; a row each in `labkit.lab.heads`
WITH_HEADS = ("eagle1", "eagle2", "eagle3", "eagle31", "mtp", "medusa")
# those that can be run so far
AVAILABLE = ("ar", "ngram", "draft", *WITH_HEADS)
METHODS = AVAILABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeConfig:
    """What to decode and how much of it to record.

    Args:
        max_new_tokens: exact upper bound on new tokens, at least 1.
        draft_length: tokens drafted per round (K, gamma in Leviathan et al. 2023), 0 or more.
        temperature: 0 takes the most likely token; otherwise logits are divided by it.
        top_k: keep the k most likely tokens; 0 keeps all.
        top_p: keep the smallest set whose mass reaches p, in (0, 1].
        min_p: drop tokens below min_p times the largest probability, in [0, 1).
        repetition_penalty: divides positive and multiplies negative logits of tokens already in
            the text (Keskar et al. 2019); 1 is off.
        seed: fixes every random draw of the run.
        eos: ids that end the text: one id, several, or None to run to ``max_new_tokens``.
        stop_strings: texts that end the run when they appear in the new text.
        detail: ``timing`` records times and tokens, ``summary`` adds trees and trials, ``full``
            adds the likeliest tokens of p and q at every node and log-probabilities.
        top: how many likeliest tokens ``full`` keeps per node; drafts of more than eight nodes
            share what eight would keep, and only the likeliest of the candidates that were pruned
            are listed, so that a trace stays small.

    Raises:
        BadInput: naming the setting that cannot be used.
    """

    max_new_tokens: int = 128
    draft_length: int = 4
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    eos: int | Iterable[int] | None = None
    stop_strings: Sequence[str] = ()
    detail: Detail = "summary"
    top: int = 8

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "draft_length", "top_k", "seed", "top"):
            number = whole(getattr(self, name))
            require(number is not None, name, "a whole number", getattr(self, name))
            object.__setattr__(self, name, number)
        for name in ("temperature", "top_p", "min_p", "repetition_penalty"):
            value = getattr(self, name)
            is_number = isinstance(value, Real) and not isinstance(value, bool)
            require(is_number, name, "a number", value)
        require(-(2**63) <= self.seed < 2**63, "seed", "a whole number of 64 bits", self.seed)
        require(self.max_new_tokens >= 1, "max_new_tokens", "1 or more", self.max_new_tokens)
        require(self.draft_length >= 0, "draft_length", "0 or more", self.draft_length)
        require(0 <= self.temperature < float("inf"), "temperature", "0 or more", self.temperature)
        require(self.top_k >= 0, "top_k", "0 (off) or more", self.top_k)
        require(0 < self.top_p <= 1, "top_p", "a number in (0, 1]", self.top_p)
        require(0 <= self.min_p < 1, "min_p", "a number in [0, 1)", self.min_p)
        require(
            0 < self.repetition_penalty < float("inf"),
            "repetition_penalty",
            "more than 0",
            self.repetition_penalty,
        )
        require(
            self.detail in get_args(Detail), "detail", " or ".join(get_args(Detail)), self.detail
        )
        require(self.top >= 1, "top", "1 or more", self.top)
        self._check_ends()

    def _check_ends(self) -> None:
        listed: object = self.stop_strings
        is_list = isinstance(listed, Iterable) and not isinstance(listed, str)
        require(not listed or is_list, "stop_strings", "a list of texts", listed)
        stops = tuple(self.stop_strings or ())
        object.__setattr__(self, "stop_strings", stops)  # an iterator could be read once only
        require(
            all(isinstance(stop, str) and stop for stop in stops),
            "stop_strings",
            "texts of at least one character",
            stops,
        )
        given = self.eos
        try:
            ids = token_ids(given)
        except TypeError:
            ids = (-1,)
        require(all(i >= 0 for i in ids), "eos", "a token id or several, 0 or more", given)
        # once and for all: an iterator could be read one time only
        object.__setattr__(self, "eos", ids or None)

    @property
    def eos_ids(self) -> frozenset[int]:
        """`eos` as a set; a number, a list and a tensor of ids all mean the same."""
        return frozenset(token_ids(self.eos))


def check_method(method: str, *, available: Sequence[str] = METHODS) -> str:
    """Return ``method`` if it is one of ``available``, else raise `BadInput` that lists them."""
    return one_of(available, method, name="method", next_step="choose a method from the list")


def check_confidence(confidence: float, *, name: str = "confidence") -> float:
    """The threshold below which a drafter stops, if it is one.

    Raises:
        BadInput: outside [0, 1), under ``name``.
    """
    given: Any = confidence
    is_number = isinstance(given, Real)
    if not is_number or not 0 <= given < 1:
        raise BadInput(
            name,
            expected="a number in [0, 1)",
            got=repr(confidence),
            next_step=f"change {name}; 0 always drafts to full length",
        )
    return confidence
