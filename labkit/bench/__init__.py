"""labkit beside its baselines, on the same prompts, in the same run."""
