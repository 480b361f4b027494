"""Trained heads and small models, and the files they are read from.

Owns: ``nn.Module`` definitions and checkpoint formats.
Does not know: drafting, decoding, training.
"""
