"""The speed-up model: what acceptance is worth at a given cost of drafting.

Source: Leviathan, Kalman, Matias 2023, "Fast Inference from Transformers via Speculative
Decoding", theorem 3.8. Owns: the formula and its plain words. Does not know: measurements.
"""

from labkit.errors import require


def expected_tokens(*, alpha: float, draft_length: int) -> float:
    """Tokens per round when each drafted token is accepted independently with chance ``alpha``.

    (1 - alpha^(K+1)) / (1 - alpha), and K + 1 at alpha = 1.
    """
    require(0 <= alpha <= 1, "alpha", "a number in [0, 1]", alpha)
    require(draft_length >= 0, "draft_length", "0 or more", draft_length)
    return float(sum(alpha**i for i in range(draft_length + 1)))


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


def verdict(ratio: float) -> str:
    """``ratio`` in plain words: "2.40× (faster)", "0.65× (slower)" or "no gain"."""
    if round(ratio, 2) == 1.0:
        return "no gain"
    return f"{ratio:.2f}× (faster)" if ratio > 1 else f"{ratio:.2f}× (slower)"
