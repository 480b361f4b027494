"""Models small enough to read: random transformers of every supported kind, and tables.

Owns: seeded tiny models for tests and lessons. Does not know: decoding.
Invariants: the same arguments give the same weights; no file is read.
"""

from types import SimpleNamespace
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from labkit.errors import BadInput

_FAMILIES = {
    "llama": ("LlamaConfig", "LlamaForCausalLM"),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM"),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM"),
    "mistral": ("MistralConfig", "MistralForCausalLM"),
    "phi3": ("Phi3Config", "Phi3ForCausalLM"),
    "gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM"),
    "qwen3_5": ("Qwen3_5TextConfig", "Qwen3_5ForCausalLM"),
    "qwen3_next": ("Qwen3NextConfig", "Qwen3NextForCausalLM"),
}
FAMILIES = tuple(_FAMILIES)
HYBRIDS = ("qwen3_5", "qwen3_next")
"""Families whose every second layer is recurrent, the first one included."""


def tiny(
    family: str = "llama",
    *,
    seed: int = 0,
    vocab_size: int = 64,
    layers: int = 2,
    hidden: int = 32,
    window: int | None = None,
    context: int = 512,
    attention: str = "sdpa",
    dtype: torch.dtype = torch.float32,
) -> Any:
    """A random model of ``family``: 4 heads, 2 key-value heads, in evaluation mode.

    Args:
        window: sliding window; Gemma-3 and Qwen-2/3 then alternate sliding and full layers.
        context: most tokens, prompt and text together.
        attention: "sdpa" or "eager".

    Raises:
        BadInput: an unknown family.
    """
    if family not in _FAMILIES:
        raise BadInput(
            "family",
            expected=", ".join(FAMILIES),
            got=repr(family),
            next_step="choose one of these",
        )
    config_name, model_name = _FAMILIES[family]
    settings: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": context,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        "tie_word_embeddings": False,  # tied random weights repeat the last token for ever
        "initializer_range": 0.2,  # wide enough for texts that are not one token for ever
    }
    if family in ("gemma3", "qwen3"):
        settings["head_dim"] = hidden // 4
    settings |= _window(family, window, layers) | _recurrent(family, layers, hidden)
    config = getattr(transformers, config_name)(**settings, attn_implementation=attention)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = getattr(transformers, model_name)(config)
    return model.to(dtype).eval().requires_grad_(False)


def _window(family: str, window: int | None, layers: int) -> dict[str, Any]:
    if family in ("llama", *HYBRIDS) or (window is None and family != "gemma3"):
        return {}
    if family in ("mistral", "phi3"):
        return {"sliding_window": window}
    kinds = ["sliding_attention" if i % 2 == 0 else "full_attention" for i in range(layers)]
    found: dict[str, Any] = {"sliding_window": window or 4096, "layer_types": kinds}
    return found | ({"use_sliding_window": True} if family.startswith("qwen") else {})


def _recurrent(family: str, layers: int, hidden: int) -> dict[str, Any]:
    if family not in HYBRIDS:
        return {}
    found: dict[str, Any] = {
        "layer_types": [("linear_attention", "full_attention")[i % 2] for i in range(layers)],
        "head_dim": hidden // 4,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": hidden // 4,
        "linear_value_head_dim": hidden // 4,
    }
    experts: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2}
    experts |= dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), hidden)
    return found | (experts if family == "qwen3_next" else {})


class TableModel(nn.Module):
    """A Markov chain with the forward signature of a transformers model.

    Args:
        table: [V, V], row i is the distribution of the token after token i; kept in float64, so
            that laws can be compared to 1e-12.

    The logits after a token depend on that token alone, whatever the mask says.
    """

    def __init__(self, table: Tensor, *, context: int | None = None) -> None:
        super().__init__()
        self.table = nn.Embedding.from_pretrained(table.double().log(), freeze=True)
        self.config = SimpleNamespace(
            model_type="table",
            vocab_size=len(table),
            num_hidden_layers=1,
            max_position_embeddings=context,
            _attn_implementation="sdpa",
        )
        self.config.get_text_config = lambda: self.config

    @property
    def dtype(self) -> torch.dtype:
        return self.table.weight.dtype

    def get_input_embeddings(self) -> nn.Module:
        return self.table

    def get_output_embeddings(self) -> nn.Module:
        return self.table

    def forward(
        self, input_ids: Tensor, position_ids: Any = None, past_key_values: Any = None, **_: Any
    ) -> SimpleNamespace:
        """Logits [1, n, V] = log of the table's rows."""
        return SimpleNamespace(logits=self.table(input_ids))


def random_table(vocab_size: int, *, seed: int, sharpness: float = 1.0) -> Tensor:
    """[V, V] float64, rows sum to 1; larger ``sharpness`` makes rows less even."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(vocab_size, vocab_size, generator=generator, dtype=torch.float64)
    return torch.softmax(sharpness * logits, -1)
