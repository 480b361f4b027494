"""One model on the bench: prompts in, traces out.

Owns: the loaded model, its target, and the drafters made for it.
Does not know: widgets, notebooks, the command line.
Invariants: every run of a session starts from a fresh sequence; two sessions share nothing.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

import labkit
from labkit.config import DecodeConfig, check_method
from labkit.decode import speculate
from labkit.devices import synchronise
from labkit.drafters.base import Drafter
from labkit.drafters.draft_model import DraftModel
from labkit.drafters.ngram import NGram
from labkit.drafters.nothing import Nothing
from labkit.errors import BadInput, ModelUnavailable
from labkit.events import AnyEvent
from labkit.heads.draft_checkpoint import load_draft_checkpoint
from labkit.lab.load import LoadedModel, load_model
from labkit.lab.presets import DEFAULT
from labkit.sampling import Processor
from labkit.streaming import TextStream
from labkit.target import Target
from labkit.trace import Trace

AVAILABLE = ("ar", "ngram", "draft")
# Draft lengths that pay on 2 CPU cores, where every drafted token costs a tenth of a target step
# and copying costs nothing; used when a run does not name its own.
DRAFT_LENGTH = {"ar": 0, "ngram": 3, "draft": 2}
_WEIGHTS = Path(labkit.__file__).parent / "weights"


def open_lab(
    model: str = DEFAULT,
    *,
    dtype: str = "auto",
    device: str = "auto",
    draft: str | None = None,
    confidence: float = 0.0,
    width: int = 1,
) -> "Lab":
    """Load a model and put it on the bench.

    Args:
        model: preset name, local folder, GGUF file or hub id; see `load_model`.
        draft: draft model for the method "draft": a folder written by ``labkit train draft``, or
            any model name with the same tokenizer; None takes the one made for ``model``.
        confidence: the draft model stops drafting below this cumulative probability; see
            `DraftModel`.
        width: fewest rows of every forward of the target; see `Target`.
    """
    loaded = load_model(model, dtype=dtype, device=device)
    return Lab(loaded, draft=draft, confidence=confidence, width=width)


@dataclass(slots=True)
class Lab:
    """A target and whoever drafts for it.

    lab = open_lab()
    trace = lab.record("Why is the sky blue?", method="draft", max_new_tokens=48)
    trace.text
    """

    loaded: LoadedModel
    draft: str | None = None
    width: int = 1
    confidence: float = 0.0
    target: Target = field(init=False)
    _drafters: dict[str, Drafter] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.target = Target(self.loaded.model, width=self.width, clock=self.clock)

    @property
    def model(self) -> Any:
        return self.loaded.model

    @property
    def tokenizer(self) -> Any:
        return self.loaded.tokenizer

    @property
    def clock(self) -> Callable[[], float]:
        """Seconds, after the device has caught up."""
        device = torch.device(self.loaded.device)

        def now() -> float:
            synchronise(device)
            return time.perf_counter()

        return time.perf_counter if device.type == "cpu" else now

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Ids that end a reply, from the tokenizer and the model's generation settings."""
        return self.loaded.eos_ids

    def tokens(self, prompt: str, *, chat: bool = True) -> list[int]:
        """Token ids of a prompt; with ``chat``, as one user turn in the model's chat template.

        Raises:
            BadInput: an empty prompt.
        """
        if not prompt.strip():
            raise BadInput(
                "prompt", expected="some text", got=repr(prompt), next_step="type a prompt"
            )
        if chat and self.tokenizer.chat_template:
            turn = [{"role": "user", "content": prompt}]
            ids = self.tokenizer.apply_chat_template(
                turn, add_generation_prompt=True, tokenize=True, return_dict=True
            )["input_ids"]
            return list(ids)
        return list(self.tokenizer(prompt)["input_ids"])

    def text(self, ids: Sequence[int]) -> str:
        """Text of some ids, special tokens left out."""
        return str(
            self.tokenizer.decode(
                list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
        )

    def token_text(self, token: int) -> str:
        """Text of one id, special tokens shown."""
        return str(self.tokenizer.decode([token], clean_up_tokenization_spaces=False))

    def drafter(self, method: str) -> Drafter:
        """The drafter of a method, made once per session.

        Raises:
            BadInput: an unknown method. ModelUnavailable: no draft model for this target.
        """
        check_method(method, available=AVAILABLE)
        if method not in self._drafters:
            makers: dict[str, Callable[[], Drafter]] = {
                "ar": Nothing,
                "ngram": NGram,
                "draft": self._draft_model,
            }
            self._drafters[method] = makers[method]()
        return self._drafters[method]

    def _draft_model(self) -> DraftModel:
        source = self.draft or str(_WEIGHTS / f"{self.loaded.name}-draft")
        vocab_size = self.target.vocab_size
        if (Path(source) / "config.json").exists() and _is_ours(Path(source)):
            weights = load_draft_checkpoint(
                Path(source),
                target_model=self.model,
                dtype=self.loaded.dtype,
                device=self.loaded.device,
            )
            return DraftModel(
                weights.model,
                vocab_size=vocab_size,
                ids=weights.vocab_ids,
                confidence=self.confidence,
                clock=self.clock,
            )
        if self.draft is None:
            raise ModelUnavailable(
                f"draft model for {self.loaded.name!r}",
                expected="one that comes with the lab, or one you name",
                got="neither",
                next_step="name a smaller model with the same tokenizer (--draft), or train one "
                "with `labkit train draft`",
            )
        other = load_model(
            source,
            dtype=str(self.loaded.dtype).removeprefix("torch."),
            device=str(self.loaded.device),
        )
        return DraftModel(
            other.model,
            vocab_size=vocab_size,
            tokenizers=(self.tokenizer, other.tokenizer),
            confidence=self.confidence,
            clock=self.clock,
        )

    def config(self, **settings: Any) -> DecodeConfig:
        """A `DecodeConfig` that ends at this model's end-of-text ids, changed by ``settings``."""
        return DecodeConfig(**{"eos": self.eos_ids, **settings})

    def events(
        self,
        prompt: str | Sequence[int],
        *,
        method: str = "draft",
        drafter: Drafter | None = None,
        chat: bool = True,
        processors: Sequence[Processor] = (),
        **settings: Any,
    ) -> Iterator[AnyEvent]:
        """The events of one run, one at a time.

        Args:
            prompt: text, or token ids as they are.
            drafter: use this one instead of the method's.
            settings: fields of `DecodeConfig`; the draft length is by default the one that pays
                for this method on a CPU (`DRAFT_LENGTH`).
        """
        if drafter is None:
            check_method(method, available=AVAILABLE)
            settings = {"draft_length": DRAFT_LENGTH[method], **settings}
        config = self.config(**settings)
        ids = self.tokens(prompt, chat=chat) if isinstance(prompt, str) else list(prompt)
        return speculate(
            self.target,
            drafter or self.drafter(method),
            ids,
            config=config,
            processors=processors,
            text=TextStream(self.text, stop_strings=config.stop_strings),
            clock=self.clock,
        )

    def record(self, prompt: str | Sequence[int], **options: Any) -> Trace:
        """Run to the end and keep everything; see `events` for the options."""
        return self.trace(self.events(prompt, **options), **options)

    def trace(self, events: Iterable[AnyEvent], **options: Any) -> Trace:
        """Events of one of this session's runs, with the facts a reader needs."""
        return Trace.record(events, header=self.header(**options), token_text=self.token_text)

    def header(self, **options: Any) -> dict[str, Any]:
        """What a reader of a trace needs to know about the run."""
        plain = {k: v for k, v in options.items() if isinstance(v, str | int | float | bool)}
        return {
            "model": self.loaded.name,
            "dtype": str(self.loaded.dtype).removeprefix("torch."),
            "device": torch.device(self.loaded.device).type,
            "labkit": labkit.__version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "settings": plain,
        }


def _is_ours(folder: Path) -> bool:
    """Was this folder written by ``labkit train draft``?"""
    return '"labkit-draft"' in (folder / "config.json").read_text(encoding="utf-8")
