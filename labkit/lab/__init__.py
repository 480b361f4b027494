"""The laboratory bench: which models there are, and how they get here and into memory."""
