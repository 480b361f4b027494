"""The speed-up model: what acceptance is worth at a given cost of drafting.

Source: Leviathan, Kalman, Matias 2023, "Fast Inference from Transformers via Speculative
Decoding", theorem 3.8. Owns: the formula and its plain words. Does not know: measurements.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from labkit.errors import require


def expected_tokens(*, alpha: float, draft_length: int) -> float:
    """Tokens per round when each drafted token is accepted independently with chance ``alpha``.

    (1 - alpha^(K+1)) / (1 - alpha), and K + 1 at alpha = 1.
    """
    require(0 <= alpha <= 1, "alpha", "a number in [0, 1]", alpha)
    require(draft_length >= 0, "draft_length", "0 or more", draft_length)
    return float(sum(alpha**i for i in range(draft_length + 1)))


def expected_by_depth(rates: Sequence[float], *, draft_length: int) -> float:
    """Tokens per round when depth i is accepted with chance ``rates[i - 1]``, given that everything
    above it was: 1 + r1 + r1 r2 + ... Past the last rate that one goes on.

    With equal rates this is `expected_tokens`.
    """
    require(len(rates) > 0, "rates", "at least one", len(rates))
    require(all(0 <= rate <= 1 for rate in rates), "rates", "numbers in [0, 1]", [*rates])
    require(draft_length >= 0, "draft_length", "0 or more", draft_length)
    reached, tokens = 1.0, 1.0
    for i in range(draft_length):
        reached *= rates[min(i, len(rates) - 1)]
        tokens += reached
    return tokens


def speedup(
    *, alpha: float, draft_length: int, cost_ratio: float, verify_ratio: float = 1.0
) -> float:
    """Speed against plain decoding.

    Args:
        alpha: chance that a drafted token is accepted.
        draft_length: drafted tokens per round, K.
        cost_ratio: one draft step over one single-token target step, c.
        verify_ratio: one target forward of K + 1 tokens over one of a single token.

    Returns:
        expected tokens / (K c + verify_ratio); below 1 speculation is slower.
    """
    require(cost_ratio >= 0, "cost_ratio", "0 or more", cost_ratio)
    require(verify_ratio > 0, "verify_ratio", "more than 0", verify_ratio)
    tokens = expected_tokens(alpha=alpha, draft_length=draft_length)
    return round_speedup(tokens=tokens, draft=draft_length * cost_ratio, verify=verify_ratio)


def round_speedup(*, tokens: float, draft: float, verify: float) -> float:
    """Speed against plain decoding of rounds of any shape.

    Args:
        tokens: tokens that a round adds on average, the target's own included.
        draft, verify: seconds of drafting and of the target's forward in a round, over the seconds
            of one single-token target step.
    """
    require(tokens >= 0, "tokens", "0 or more", tokens)
    require(draft >= 0, "draft", "0 or more", draft)
    require(verify > 0, "verify", "more than 0", verify)
    return tokens / (draft + verify)


def along(points: Sequence[tuple[int, float]], at: float) -> float:
    """A measured quantity between its points: along the line that joins two neighbours, beyond the
    last point along the last line, before the first one as there.

    Args:
        points: (place, value), at least one, ascending by place.
    """
    if len(points) == 1 or at <= points[0][0]:
        return points[0][1]
    right = next((i for i, (place, _) in enumerate(points) if place >= at), len(points) - 1)
    (x0, y0), (x1, y1) = points[right - 1], points[right]
    return y0 + (y1 - y0) * (at - x0) / (x1 - x0)


@dataclass(frozen=True)
class Budget:
    """What a round adds and costs, by the number of drafted nodes.

    Attributes:
        tokens: that it adds on average, the target's own included.
        draft, verify: as of `round_speedup`.

    Raises:
        BadInput: no nodes, or not the same numbers of nodes in all three.
    """

    tokens: Mapping[int, float]
    draft: Mapping[int, float]
    verify: Mapping[int, float]

    def __post_init__(self) -> None:
        sizes = [sorted(part) for part in (self.tokens, self.draft, self.verify)]
        alike = bool(sizes[0]) and sizes[0] == sizes[1] == sizes[2]
        require(alike, "budget", "tokens, draft and verify for the same numbers of nodes", sizes)

    @property
    def price(self) -> dict[int, float]:
        """Single-token target steps that a round takes."""
        return {n: self.draft[n] + self.verify[n] for n in self.tokens}

    @property
    def speed(self) -> dict[int, float]:
        """Against plain decoding."""
        return {
            n: round_speedup(tokens=added, draft=self.draft[n], verify=self.verify[n])
            for n, added in self.tokens.items()
        }

    @property
    def most(self) -> int:
        """The number of nodes that adds most tokens; of equals the smallest."""
        return max(self.tokens, key=lambda n: (self.tokens[n], -n))

    @property
    def fastest(self) -> int:
        """The number of nodes with the most tokens per second; of equals the smallest."""
        speed = self.speed
        return max(speed, key=lambda n: (speed[n], -n))


def verdict(ratio: float) -> str:
    """``ratio`` in plain words: "2.40× (faster)", "0.65× (slower)" or "no gain"."""
    if round(ratio, 2) == 1.0:
        return "no gain"
    return f"{ratio:.2f}× (faster)" if ratio > 1 else f"{ratio:.2f}× (slower)"
