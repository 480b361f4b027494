"""The names of the formats in which heads are written.

Owns: one list for each kind of head. Does not know: what the formats hold; torch.
"""

EAGLE = ("safeailab", "specforge", "speculators", "modelopt", "vllm", "sglang")
MEDUSA = ("medusa", "vllm")
META = ("meta",)
MTP = ("native",)
EVERY = tuple(dict.fromkeys((*EAGLE, *MEDUSA, *META, *MTP)))
