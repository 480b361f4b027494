"""Silent faults, one at a time: a head that is run wrongly still writes the right text.

Owns: drafters with a fault, and what a fault costs on a model.
Does not know: what the faults are and how they are made (`labkit.lab.gallery` for EAGLE heads,
`labkit.lab.gallery_mtp` for prediction modules).
Invariants: every drafter from here drafts chains, the healthy one too, so that two of them differ
in the fault alone; the texts that are compared are greedy.

    faults.GALLERY["stale_rows"]                                # what it is, who had it
    lab.record(prompt, drafter=faults.drafter(lab, "stale_rows", method="eagle3"))
    faults.measure(lab, prompts, method="eagle3")               # what each costs
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.drafters.eagle import eagle_drafter
from labkit.drafters.mtp import mtp_drafter
from labkit.drafters.on_head import HeadDrafter
from labkit.errors import BadInput, one_of, require
from labkit.heads.checkpoints.read import name_of
from labkit.heads.mtp import MtpHead
from labkit.lab.gallery import GALLERY, Fault
from labkit.lab.gallery_mtp import MODULES
from labkit.lab.heads import EAGLE
from labkit.lab.session import Lab
from labkit.lab.tables import Table
from labkit.metrics import acceptance, acceptance_by_depth
from labkit.progress import Progress, silent
from labkit.trace import Trace

__all__ = [
    "GALLERY",
    "HEALTHY",
    "MODULES",
    "Cost",
    "Costs",
    "Fault",
    "available",
    "catalogue",
    "drafter",
    "measure",
]

HEALTHY = "healthy"
_METHODS = (*EAGLE, "mtp")


def catalogue(gallery: Mapping[str, Fault] = GALLERY) -> Table:
    """All faults of one kind of head in a table: `GALLERY` or `MODULES`."""
    rows = tuple((f"`{f.key}`", f.title, f.wrong, f.heads, f.source) for f in gallery.values())
    return Table(
        ("key", "fault", "what is wrong", "heads", "who had it"),
        rows,
        f"{len(rows)} faults that no text shows.",
    )


def drafter(lab: Lab, key: str, *, method: str = "eagle3", head: Any = None) -> HeadDrafter:
    """A drafter with one fault, for ``lab.record(prompt, drafter=...)``; chains only.

    Args:
        key: of `GALLERY` (`MODULES` for prediction modules), or "healthy".
        method: an eagle method or "mtp"; its head is the one that ``lab`` would draft with.
        head: one of your own instead.

    Raises:
        BadInput: an unknown key, another method, a fault that this head cannot have.
    """
    head = head or _head_of(lab, method)
    if key == HEALTHY:
        return (
            mtp_drafter(head, name=HEALTHY) if _modules(head) else eagle_drafter(head, name=HEALTHY)
        )
    layers = _layers(lab)
    fault = _fault(key)
    if key not in _gallery(head) or not fault.exists(head, layers):
        raise BadInput(
            f"fault {key!r}",
            expected=f"a head that can have it: {fault.heads}",
            got=f"one of {', '.join(available(lab, method=method, head=head))}",
            next_step="choose one of these faults, or another head",
        )
    made = fault.drafter(head, layers)
    made.name = key
    return made


def available(lab: Lab, *, method: str = "eagle3", head: Any = None) -> tuple[str, ...]:
    """Keys of the faults that this head can have, with this tokenizer."""
    head, layers = head or _head_of(lab, method), _layers(lab)
    template = bool(lab.tokenizer.chat_template)
    return tuple(
        key
        for key, fault in _gallery(head).items()
        if fault.exists(head, layers) and (template or fault.chat)
    )


def _head_of(lab: Lab, method: str) -> Any:
    require(method in _METHODS, "method", "one of " + ", ".join(_METHODS), method)
    found = lab.drafter(method)
    assert isinstance(found, HeadDrafter)
    return found.head


def _modules(head: Any) -> bool:
    return isinstance(head, MtpHead)


def _gallery(head: Any) -> Mapping[str, Fault]:
    return MODULES if _modules(head) else GALLERY


def _layers(lab: Lab) -> int:
    return int(lab.model.config.get_text_config().num_hidden_layers)


def _all() -> dict[str, Fault]:
    return {**GALLERY, **MODULES}


def _fault(key: str) -> Fault:
    every = _all()
    return every[one_of(every, key, name="fault", next_step="choose a key of the gallery")]


@dataclass(frozen=True, slots=True)
class Cost:
    """What one drafter did, pooled over prompts.

    Attributes:
        key: of the gallery, or "healthy".
        same_text: are all tokens those of the healthy drafter? None where the prompt was another.
        mean_accepted_length: committed tokens / rounds, the target's own token counted.
        by_depth: share of guesses accepted at each depth, among those whose parents were accepted;
            None where no round came so far.
    """

    key: str
    same_text: bool | None
    rounds: int
    mean_accepted_length: float
    by_depth: tuple[float | None, ...]

    @property
    def first(self) -> float | None:
        """Share of first guesses that were right."""
        return self.by_depth[0] if self.by_depth else None


@dataclass(frozen=True, slots=True)
class Costs:
    """The healthy head and each fault, measured in one run. head: which kind; rows: healthy
    first."""

    head: str
    prompts: int
    max_new_tokens: int
    draft_length: int
    rows: tuple[Cost, ...]

    def __getitem__(self, key: str) -> Cost:
        return next(row for row in self.rows if row.key == key)

    @property
    def table(self) -> Table:
        deep = max(len(row.by_depth) for row in self.rows)
        depths = tuple(f"guess {i} right" for i in range(1, deep + 1))
        return Table(
            ("fault", "same text", "tokens per round", *depths),
            tuple(_cells(row, deep) for row in self.rows),
            self.sentence,
        )

    @property
    def sentence(self) -> str:
        healthy, *faulty = self.rows
        count = "1 prompt" if self.prompts == 1 else f"{self.prompts} prompts"
        told = (
            f"{self.head}, {count} of at most {self.max_new_tokens} new tokens, "
            f"chains of {self.draft_length}: the healthy head makes "
            f"{healthy.mean_accepted_length:.2f} tokens per round."
        )
        if faulty:
            worst = min(faulty, key=lambda row: row.mean_accepted_length)
            told += f" The costliest fault: {_title(worst.key)}, {worst.mean_accepted_length:.2f}."
        compared = [row for row in faulty if row.same_text is not None]
        others = [_title(row.key) for row in compared if not row.same_text]
        if others:
            told += " Another text came out under: " + ", ".join(others) + "."
        elif compared:
            under = "it" if len(compared) == 1 else f"all {len(compared)} of them"
            told += f" The text is the same, token for token, under {under}."
        return told

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return self.table._repr_mimebundle_()

    def __repr__(self) -> str:
        return repr(self.table)


def _title(key: str) -> str:
    return _fault(key).title if key in _all() else "healthy head"


def _cells(row: Cost, deep: int) -> tuple[str, ...]:
    same = {True: "✓ yes", False: "✗ no", None: "– another prompt"}[row.same_text]
    rates = [f"{rate:.0%}" if rate is not None else "–" for rate in row.by_depth]
    rates += ["–"] * (deep - len(rates))
    return (_title(row.key), same, f"{row.mean_accepted_length:.2f}", *rates)


def measure(
    lab: Lab,
    prompts: Sequence[str | Sequence[int]],
    *,
    keys: Sequence[str] | None = None,
    method: str = "eagle3",
    head: Any = None,
    max_new_tokens: int = 48,
    draft_length: int = 4,
    progress: Progress = silent,
) -> Costs:
    """What each fault costs: greedy texts of the same prompts, with the healthy head and with each
    faulty one.

    Args:
        prompts: texts, put into the chat template (but for the fault that leaves it out), or
            token ids, taken as they are.
        keys: which faults; None: all that this head can have, the missing template only where
            there are texts to put into one.
        method, head: as of `drafter`.
        draft_length: guesses per round.

    Raises:
        BadInput: before any run: no prompts, or what `drafter` refuses.
    """
    require(bool(prompts), "prompts", "at least one", list(prompts))
    head = head or _head_of(lab, method)
    if keys is None:
        texts_given = all(isinstance(prompt, str) for prompt in prompts)
        keys = [key for key in available(lab, head=head) if texts_given or _fault(key).chat]
    drafters = {key: drafter(lab, key, head=head) for key in (HEALTHY, *keys)}
    settings: dict[str, Any] = {"max_new_tokens": max_new_tokens, "draft_length": draft_length}
    lab.config(**settings)
    texts: list[tuple[int, ...]] = []
    rows = []
    for done, (key, one) in enumerate(drafters.items()):
        progress(key, done, len(drafters))
        chat = key == HEALTHY or _fault(key).chat
        traces = [lab.record(p, drafter=one, chat=chat, **settings) for p in prompts]
        found = [trace.tokens for trace in traces]
        texts = texts or found
        rows.append(_cost(key, traces, same=found == texts if chat else None))
    told = "MTP" if _modules(head) else name_of(head.config)
    return Costs(told, len(prompts), max_new_tokens, draft_length, tuple(rows))


def _cost(key: str, traces: Sequence[Trace], *, same: bool | None) -> Cost:
    counts = acceptance(*traces)
    return Cost(
        key=key,
        same_text=same,
        rounds=counts.rounds,
        mean_accepted_length=counts.mean_accepted_length or 0.0,
        by_depth=tuple(depth.rate for depth in acceptance_by_depth(*traces)),
    )
