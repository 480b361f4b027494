"""A GGUF file -> a plain model and its tokenizer.

Owns: the checks before transformers reads the file, and what its reader leaves out.
Does not know: where files come from or where models are kept.
Invariants: weights are dequantised in float32 and never stored quantised; a file that would be
read subtly wrong is refused.
"""

import io
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

from labkit.errors import BadCheckpoint, UnsupportedModel
from labkit.lab.quiet import quiet_transformers

MAGIC = b"GGUF"


@dataclass(frozen=True)
class GgufFacts:
    """What the header says: architecture, pre-tokenizer name, tensor names."""

    architecture: str
    pre_tokenizer: str
    tensors: tuple[str, ...]


def read_facts(path: Path) -> GgufFacts:
    """Read the header and check that every tensor lies inside the file.

    Raises:
        BadCheckpoint: not a GGUF file, cut short, or damaged.
    """
    with path.open("rb") as file:
        magic = file.read(4)
    if magic != MAGIC:
        raise _broken(path, f"the first bytes are {magic!r}, not {MAGIC!r}")
    try:
        reader = GGUFReader(path)
        fields = {name: reader.get_field(name) for name in _FIELDS}
        texts = {name: str(field.contents()) for name, field in fields.items() if field}
        names = tuple(tensor.name for tensor in reader.tensors)
    except (ValueError, IndexError, KeyError, OSError, OverflowError, MemoryError) as error:
        raise _broken(path, f"{type(error).__name__}: {error}") from error
    return GgufFacts(
        architecture=texts.get("general.architecture", ""),
        pre_tokenizer=texts.get("tokenizer.ggml.pre", ""),
        tensors=names,
    )


_FIELDS = ("general.architecture", "tokenizer.ggml.pre")


def read_gguf(path: Path, *, dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    """Dequantise: (model in evaluation mode on the CPU, tokenizer).

    Raises:
        BadCheckpoint: the file is damaged.
        UnsupportedModel: transformers cannot read this architecture, or not exactly.
    """
    facts = read_facts(path)
    if "rope_freqs.weight" in facts.tensors:
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
            tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=path.name)
    except (ValueError, KeyError, NotImplementedError) as error:
        raise UnsupportedModel(
            str(path),
            expected="a GGUF architecture that transformers can dequantise",
            got=f"{facts.architecture or 'none named'} ({error})",
            next_step="load the safetensors checkpoint of this model instead",
        ) from error
    _restore_pre_tokenizer(tokenizer, facts.pre_tokenizer)
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


def _restore_pre_tokenizer(tokenizer: Any, name: str) -> None:
    """Split digits before bytes, as models with the pre-tokenizer ``smollm`` were trained.

    transformers gives every byte-level BPE file GPT-2's split. Here that would turn a blank line
    before a digit (numbered lists) into two tokens instead of one.
    """
    if name != "smollm":
        return
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )


def _broken(path: Path, why: str) -> BadCheckpoint:
    return BadCheckpoint(
        str(path),
        expected="a complete GGUF file",
        got=why,
        next_step="fetch the file again and compare its size and checksum",
    )
