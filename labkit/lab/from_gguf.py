"""A GGUF file -> a plain model and its tokenizer.

Owns: the checks before transformers reads the file, and what its reader gets wrong.
Does not know: where files come from or where models are kept.
Invariants: weights are dequantised and never stored quantised; a file that would be read subtly
wrong is refused; the tokenizer of the default model is the same under every transformers version.
"""

import io
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from labkit.errors import UnsupportedModel
from labkit.lab.gguf_header import GgufHeader, read_header
from labkit.lab.quiet import quiet_transformers

_CONTROL, _USER_DEFINED = 3, 4  # token types that stand for themselves, whatever is around them
_ROLES = {
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
}


def read_gguf(path: Path, *, dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    """Dequantise: (model in evaluation mode on the CPU, tokenizer).

    Raises:
        BadCheckpoint: the file is damaged.
        UnsupportedModel: transformers cannot read this architecture, or not exactly.
    """
    header = read_header(path)
    if "rope_freqs.weight" in header.tensors:
        # Llama 3 stores its position scaling here; transformers' reader drops it silently.
        raise UnsupportedModel(
            str(path),
            expected="a GGUF file without rope_freqs.weight",
            got="one whose position scaling the reader would drop",
            next_step="load the safetensors checkpoint of this model instead",
        )
    try:
        # The reader's own bar heeds no switch.
        with quiet_transformers(), redirect_stderr(io.StringIO()), _alone(path) as folder:
            model = AutoModelForCausalLM.from_pretrained(
                folder, gguf_file=path.name, dtype=dtype, attn_implementation="sdpa"
            )
            tokenizer = _tokenizer(header, folder, path.name)
    except (ValueError, KeyError, NotImplementedError) as error:
        architecture = header.facts.get("general.architecture", "none named")
        raise UnsupportedModel(
            str(path),
            expected="a GGUF architecture that transformers can dequantise",
            got=f"{architecture} ({error})",
            next_step="load the safetensors checkpoint of this model instead",
        ) from error
    return model.eval(), tokenizer


@contextmanager
def _alone(path: Path) -> Iterator[Path]:
    """A folder with this file only, since tokenizer files beside it would be read as well."""
    with tempfile.TemporaryDirectory() as folder:
        link = Path(folder) / path.name
        try:
            link.symlink_to(path.resolve())
        except OSError:  # Windows without developer mode
            shutil.copyfile(path, link)
        yield Path(folder)


def _tokenizer(header: GgufHeader, folder: Path, name: str) -> Any:
    """The file's tokenizer: built here where its rules are known, else as transformers reads it.

    transformers gives every byte-level BPE file GPT-2's split. Models with the pre-tokenizer
    ``smollm`` were trained with single digits split off first; without that, a blank line before
    a digit (numbered lists) becomes two tokens instead of one.
    """
    if header.facts.get("tokenizer.ggml.pre") == "smollm":
        tokenizer: Any = PreTrainedTokenizerFast(
            tokenizer_object=_smollm(header), clean_up_tokenization_spaces=False
        )
        tokenizer.chat_template = header.facts.get("tokenizer.chat_template")
    else:
        tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    # Older versions take the beginning of a text for its end.
    tokens = header.facts.get("tokenizer.ggml.tokens", [])
    roles = {role: header.facts.get(key) for role, key in _ROLES.items()}
    named = {role: tokens[index] for role, index in roles.items() if index is not None}
    tokenizer.add_special_tokens(named)
    return tokenizer


def _smollm(header: GgufHeader) -> Tokenizer:
    """Byte-level BPE behind a split into single digits."""
    facts = header.facts
    tokens: list[str] = facts["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in facts["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = facts.get("tokenizer.ggml.token_type", [])
    whole = [
        AddedToken(token, special=kind == _CONTROL, normalized=False)
        for token, kind in zip(tokens, kinds, strict=False)
        if kind in (_CONTROL, _USER_DEFINED)
    ]
    tokenizer.add_tokens(whole)
    return tokenizer
