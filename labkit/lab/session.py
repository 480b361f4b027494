"""One model on the bench: prompts in, traces out.

Owns: the loaded model, its target, and the drafters made for it.
Does not know: widgets, notebooks, the command line.
Invariants: every run of a session starts from a fresh sequence; two sessions share nothing.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

import labkit
from labkit.config import AVAILABLE, DecodeConfig, check_confidence, check_method
from labkit.decode import speculate
from labkit.devices import dtype_name, is_gpu, synchronise
from labkit.drafters.base import Drafter, check_drafter
from labkit.drafters.draft_model import DraftModel
from labkit.drafters.ngram import NGram
from labkit.drafters.nothing import Nothing
from labkit.drafters.shapes import Chain, Shape, check_shape
from labkit.errors import BadInput, ModelUnavailable
from labkit.events import AnyEvent
from labkit.heads.draft_checkpoint import load_draft_checkpoint
from labkit.ids import flat_ids
from labkit.kernels import use_skinny_linear
from labkit.lab.heads import HEADS, head_for, shipped
from labkit.lab.load import LoadedModel, load_model
from labkit.lab.memory import step_safely
from labkit.lab.presets import DEFAULT
from labkit.lab.readings import QUESTIONS
from labkit.lab.settings import check_names
from labkit.sampling import Processor, processor_name
from labkit.streaming import TextStream
from labkit.target import Target
from labkit.trace import Trace

# Draft lengths that pay on 2 CPU cores, where every drafted token costs a tenth of a target step
# and copying costs nothing; used when a run does not name its own.
DRAFT_LENGTH = {"ar": 0, "ngram": 3, "draft": 1} | {name: row.length for name, row in HEADS.items()}

_READ = 16  # texts whose states are kept


def open_lab(
    model: str = DEFAULT,
    *,
    dtype: str = "auto",
    device: str = "auto",
    draft: str | None = None,
    head: str | None = None,
    shape: Shape | None = None,
    confidence: float = 0.0,
    width: int = 1,
) -> "Lab":
    """Load a model and put it on the bench.

    Args:
        model: preset name, local folder, GGUF file or hub id; see `load_model`.
        draft: draft model for the method "draft": a folder written by ``labkit train draft``, or
            any model name with the same tokenizer; None takes the one made for ``model``.
        head: for the methods with a head: its folder, EAGLE and Medusa in any of the public
            formats, MTP in the lab's own or beside its target's weights; None takes the one made
            for ``model``.
        shape: how heads draft; None: a dynamic tree for "eagle2" and "medusa", chains for the
            others.
        confidence: draft models and heads stop drafting below this cumulative probability; see
            `DraftModel` and `HeadDrafter`.
        width: fewest rows of every forward of the target; see `Target`.
    """
    loaded = load_model(model, dtype=dtype, device=device)
    return Lab(loaded, draft=draft, head=head, shape=shape, confidence=confidence, width=width)


@dataclass(slots=True)
class Lab:
    """A target and whoever drafts for it.

    lab = open_lab()
    trace = lab.record("Why is the sky blue?", method="draft", max_new_tokens=48)
    trace.text
    """

    loaded: LoadedModel
    draft: str | None = None
    head: str | None = None
    shape: Shape | None = None
    width: int = 1
    confidence: float = 0.0
    target: Target = field(init=False)
    _with_states: dict[tuple[str, ...], Target] = field(init=False, default_factory=dict)
    _read: dict[Any, dict[str, Tensor]] = field(init=False, default_factory=dict)
    _drafters: dict[str, Drafter] = field(init=False, default_factory=dict)
    _makers: dict[str, Callable[..., Drafter]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        check_confidence(self.confidence)
        check_shape(self.shape)
        self.target = Target(self.loaded.model, width=self.width)

    @property
    def model(self) -> Any:
        return self.loaded.model

    @property
    def tokenizer(self) -> Any:
        return self.loaded.tokenizer

    @property
    def clock(self) -> Callable[[], float]:
        """Seconds, after the device has caught up."""
        device = self.loaded.device

        def now() -> float:
            synchronise(device)
            return time.perf_counter()

        return now if is_gpu(device) else time.perf_counter

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Ids that end a reply, from the tokenizer and the model's generation settings."""
        return self.loaded.eos_ids

    def tokens(self, prompt: str, *, chat: bool = True) -> list[int]:
        """Token ids of a prompt; with ``chat``, as one user turn in the model's chat template.

        Raises:
            BadInput: an empty prompt.
        """
        if not isinstance(prompt, str) or not prompt.strip():
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

    def ids(self, prompt: str | Iterable[int], *, chat: bool = True) -> list[int]:
        """What to decode: the `tokens` of a text, or token ids as they are.

        Raises:
            BadInput: a prompt that cannot be decoded; see `Target.check_tokens`.
        """
        given = self.tokens(prompt, chat=chat) if isinstance(prompt, str) else prompt
        return self.target.check_tokens(given)

    def text(self, ids: Iterable[int]) -> str:
        """Text of some ids, special tokens left out. BadInput: something else than ids."""
        listed = _listed(ids)
        return str(
            self.tokenizer.decode(
                listed, skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
        )

    def token_text(self, token: int) -> str:
        """Text of one id, special tokens shown. BadInput: something else than an id."""
        listed = _listed([token])
        return str(self.tokenizer.decode(listed, clean_up_tokenization_spaces=False))

    def drafter(self, method: str) -> Drafter:
        """The drafter of a method, made once per session.

        Raises:
            BadInput: an unknown method. ModelUnavailable: no draft model for this target.
        """
        check_method(method, available=AVAILABLE)
        if method not in self._drafters:
            self._drafters[method] = self.new_drafter(method)
        return self._drafters[method]

    def new_drafter(self, method: str, *, shape: Shape | None = None) -> Drafter:
        """A drafter with caches of its own, on weights that are loaded once per session.

        Args:
            shape: for the methods with a head; None: as the session drafts.

        Raises:
            BadInput: an unknown method, or one that drafts in no such shape. ModelUnavailable: no
            draft model or head for this target.
        """
        check_method(method, available=AVAILABLE)
        check_shape(shape)
        row = HEADS.get(method)
        options: dict[str, Any] = {}
        if row is not None:
            options["shape"] = shape or self.shape or row.shape
            self._check_shape(method, options["shape"])
        elif shape not in (None, Chain()):
            raise BadInput(
                f"drafts of method {method!r}",
                expected="chains",
                got=f"a tree ({type(shape).__name__})",
                next_step="choose a method with a head: " + ", ".join(HEADS),
            )
        if method not in self._makers:
            plain: dict[str, Callable[[], Callable[..., Drafter]]] = {
                "ar": lambda: Nothing,
                "ngram": lambda: NGram,
                "draft": self._draft_model,
            }
            find = plain.get(method) or (lambda: self._on_states(method))
            self._makers[method] = find()
        return self._makers[method](**options)

    def _on_states(self, method: str) -> Callable[..., Drafter]:
        row = HEADS[method]
        dtype, device = self.loaded.dtype, self.loaded.device
        head = head_for(
            method,
            self.model,
            source=self.head,
            prompts=lambda: [self.tokens(question) for question in QUESTIONS],
            dtype=dtype,
            device=device,
            folder=self.loaded.path,
        )
        if self.loaded.linear == "skinny":
            use_skinny_linear(head)
        return partial(row.drafter, head, confidence=self.confidence, name=method)

    def _check_shape(self, method: str, shape: Shape) -> None:
        count = self.target.recurrent_layers
        if count and not isinstance(shape, Chain):
            raise BadInput(
                f"drafts of method {method!r}",
                expected=f"chains: {count} layer{'s' * (count > 1)} of the target cannot undo "
                "a rejected branch",
                got=f"a tree ({type(shape).__name__})",
                next_step="ask for chains (--chain, or shape=Chain())",
            )

    def target_for(self, drafter: Drafter) -> Target:
        """The target that brings what this drafter needs: one for all that need nothing, and one
        with its own cache, on the same weights, for every other set of states."""
        if not drafter.needs:
            return self.target
        if drafter.needs not in self._with_states:
            self._with_states[drafter.needs] = Target(
                self.model, needs=drafter.needs, width=self.width
            )
        return self._with_states[drafter.needs]

    def states(self, ids: Sequence[int], *, drafter: Drafter) -> dict[str, Tensor]:
        """What ``drafter`` needs of the target for a text: {name: [len(ids) - 1, D]}, the last
        token not read. The latest texts are remembered, so that others on the same states cost
        no forward."""
        ids = _listed(ids)
        key = (drafter.needs, tuple(ids))
        found = self._read.pop(key, None)
        if found is None:
            found = self.target_for(drafter).prefill(ids)
        self._read[key] = found
        while len(self._read) > _READ:
            del self._read[next(iter(self._read))]
        return found

    def _draft_model(self) -> Callable[..., Drafter]:
        source = self.draft or shipped(self.model, kind="draft")
        if source is None:
            raise ModelUnavailable(
                f"draft model for {self.loaded.name!r}",
                expected="one that comes with the lab, or one you name",
                got="neither",
                next_step="name a smaller model with the same tokenizer (--draft), or train one "
                "with `labkit train draft`",
            )
        dtype, device = self.loaded.dtype, self.loaded.device
        shared: dict[str, Any] = {
            "vocab_size": self.target.vocab_size,
            "confidence": self.confidence,
        }
        if _is_ours(Path(source)):
            weights = load_draft_checkpoint(
                Path(source), target_model=self.model, dtype=dtype, device=device
            )
            if self.loaded.linear == "skinny":
                use_skinny_linear(weights.model)
            return partial(DraftModel, weights.model, ids=weights.vocab_ids, **shared)
        other = load_model(source, dtype=dtype, device=device)
        tokenizers = (self.tokenizer, other.tokenizer)
        return partial(DraftModel, other.model, tokenizers=tokenizers, **shared)

    def config(self, **settings: Any) -> DecodeConfig:
        """A `DecodeConfig` that ends at this model's end-of-text ids, changed by ``settings``.

        Raises:
            BadInput: a setting that there is not, or a value that cannot be used.
        """
        check_names(settings)
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

        Raises:
            OutOfMemory: when a round does not fit; the session then begins with empty caches.
        """
        config = self._run_config(method, drafter, settings)
        ids = self.ids(prompt, chat=chat)
        drafter = self.drafter(method) if drafter is None else check_drafter(drafter)
        events = speculate(
            self.target_for(drafter),
            drafter,
            ids,
            config=config,
            processors=processors,
            text=TextStream(self.text, stop_strings=config.stop_strings),
            # waiting for the device at every phase is for looking, not for speed
            clock=self.clock if config.detail == "full" else time.perf_counter,
        )
        return step_safely(events, "this run", let_go=partial(self.let_go, drafter))

    def let_go(self, drafter: Drafter) -> None:
        """Forget the caches of every target and drafter, ``drafter``'s too; weights stay, and so
        does plain decoding's drafter, by whose runs a race sees that a newer one has begun."""
        drafter.let_go()
        self._read.clear()
        self._with_states.clear()
        self._drafters = {name: one for name, one in self._drafters.items() if name == "ar"}
        self.target = Target(self.model, width=self.width)

    def _run_config(
        self, method: str, drafter: Drafter | None, settings: dict[str, Any]
    ) -> DecodeConfig:
        if drafter is None:
            check_method(method, available=AVAILABLE)
            settings = {"draft_length": DRAFT_LENGTH[method], **settings}
        return self.config(**settings)

    def record(self, prompt: str | Sequence[int], **options: Any) -> Trace:
        """Run to the end and keep everything; see `events` for the options."""
        return self.trace(self.events(prompt, **options), prompt, **options)

    def trace(
        self,
        events: Iterable[AnyEvent],
        prompt: str | Sequence[int],
        *,
        method: str = "draft",
        drafter: Drafter | None = None,
        chat: bool = True,
        processors: Sequence[Processor] = (),
        **settings: Any,
    ) -> Trace:
        """Events of one of this session's runs, with the facts a reader needs."""
        config = self._run_config(method, drafter, settings)
        told = {f.name: getattr(config, f.name) for f in fields(config)}
        header = {
            "model": self.loaded.name,
            "drafter": drafter.name if drafter else method,
            "draft_model": self.draft or "",
            "head": self.head or "",
            "shape": repr(self.shape) if self.shape else "",
            "confidence": self.confidence,
            "prompt": prompt if isinstance(prompt, str) else "",
            "chat": chat,
            "processors": [*map(processor_name, processors)],
            "dtype": dtype_name(self.loaded.dtype),
            "device": self.loaded.device.type,
            "seed": config.seed,
            "settings": told
            | {"eos": sorted(config.eos_ids), "stop_strings": [*config.stop_strings]},
            "labkit": labkit.__version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        }
        return Trace.record(events, header=header, token_text=self.token_text)


def _listed(ids: Iterable[int]) -> list[int]:
    step = "use ids of the target's own tokenizer"
    return [*flat_ids(ids, name="token ids", expected="whole numbers", next_step=step)]


def _is_ours(folder: Path) -> bool:
    """Was this folder written by ``labkit train draft``?"""
    config = folder / "config.json"
    return config.is_file() and '"labkit-draft"' in config.read_text(encoding="utf-8")
