"""Making heads: text that the target writes itself, and models trained on it.

Owns: self-generated data, batches, training loops, their checkpoints and reports.
Does not know: decoding, traces, the command line.
"""
