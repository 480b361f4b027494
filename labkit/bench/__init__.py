"""labkit beside its baselines, on the same prompts, in the same run."""

from labkit.config import AVAILABLE

BASELINE = "generate"  # transformers' own, on the same weights, with the layers it loads them into
METHODS = (BASELINE, *AVAILABLE)
