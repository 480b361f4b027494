"""Public checkpoint formats of EAGLE heads: read, judge, complete, write.

Owns: SafeAILab, SpecForge, speculators, ModelOpt (both layouts), TorchSpec and NeMo files; heads of
other kinds have modules of their own: ``mtp`` and ``mtp_write``, ``medusa`` and ``medusa_write``.
Does not know: drafting, decoding, training.
Invariants: safetensors only; tensors keep their bytes; whatever a file leaves open is named in its
report, never guessed in silence; a head is handed out whole or not at all.
"""

from labkit.heads.checkpoints.layouts import FORMATS, WRITABLE
from labkit.heads.checkpoints.load import build_head, checkpoint_of, complete, load_head
from labkit.heads.checkpoints.read import inspect_checkpoint, read_checkpoint, readings, settle
from labkit.heads.checkpoints.records import HeadCheckpoint, InspectReport, TargetMark
from labkit.heads.checkpoints.text import report_text
from labkit.heads.checkpoints.write import write_checkpoint

__all__ = [
    "FORMATS",
    "WRITABLE",
    "HeadCheckpoint",
    "InspectReport",
    "TargetMark",
    "build_head",
    "checkpoint_of",
    "complete",
    "inspect_checkpoint",
    "load_head",
    "read_checkpoint",
    "readings",
    "report_text",
    "settle",
    "write_checkpoint",
]
