"""Break it: one fault at a time on the model in front of you, with the healthy run beside it.

Owns: running both, and what is told of them. Does not know: what the faults are
(`labkit.lab.breaks`), what the checks compare (`labkit.lab.catching`), widgets.
Invariants: everything runs on targets and drafters of its own, so that nothing of the lab's is
touched by a broken run; both runs have the same prompt, settings and seed.

    breaking.catalogue()                              # the eight faults
    result = breaking.show(lab, "no_rollback", prompt)
    result                                            # both runs side by side, and who noticed
    Stepper(result.broken.trace)
"""

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from labkit.decode import speculate
from labkit.drafters.base import Drafter, check_drafter
from labkit.drafters.nothing import Nothing
from labkit.drafters.on_head import HeadDrafter
from labkit.errors import BadInput, one_of, require
from labkit.events import AnyEvent
from labkit.heads.eagle import EagleHead
from labkit.lab import faults
from labkit.lab.breaks import BREAKS, Break
from labkit.lab.broken import stops_late
from labkit.lab.catching import (
    CHECKS,
    Evidence,
    Finding,
    counting,
    plain_probabilities,
    state_distance,
)
from labkit.lab.compare import first_difference, parting
from labkit.lab.memory import step_safely
from labkit.lab.paired import Paired, known_texts, paired
from labkit.lab.rehearse import check_text
from labkit.lab.session import Lab
from labkit.lab.tables import Table
from labkit.metrics import acceptance, cost
from labkit.streaming import TextStream
from labkit.target import Target
from labkit.trace import Trace
from labkit.viz.sentences import counted

__all__ = ["BREAKS", "CHECKS", "Break", "Breakage", "Ran", "catalogue", "show"]

_DRAWN = {"temperature": 1.0, "top_k": 5}


def catalogue(keys: Sequence[str] = ()) -> Table:
    """The faults of ``keys`` in a table; without any, all eight.

    Raises:
        BadInput: an unknown key.
    """
    require(not isinstance(keys, str), "keys", "a list of keys", keys)
    rows = tuple(
        (
            f"`{f.key}`",
            f.title,
            f"{f.wrong} {f.effect}",
            ", ".join(f.breaks),
            _caught_by(f),
            f.source,
        )
        for f in map(_fault, keys or BREAKS)
    )
    header = ("key", "fault", "what is wrong", "breaks", "caught by", "who had it")
    return Table(header, rows, f"{len(rows)} faults, each with the checks that show it.")


def _caught_by(fault: Break) -> str:
    return ", ".join(CHECKS[key].title for key in fault.caught_by)


@dataclass(frozen=True, slots=True)
class Ran:
    """One of the two runs. pieces: its text, up to the first difference and from there on."""

    evidence: Evidence
    findings: tuple[Finding, ...]
    pieces: tuple[str, str]

    @property
    def trace(self) -> Trace:
        """For `labkit.viz.Stepper`."""
        return self.evidence.trace

    @property
    def caught(self) -> tuple[str, ...]:
        """Keys of the checks that caught something."""
        return tuple(f.check for f in self.findings if f.caught)

    @property
    def tokens_per_round(self) -> float:
        """Mean accepted length, the target's own token counted."""
        return acceptance(self.trace).mean_accepted_length or 0.0


@dataclass(frozen=True, slots=True)
class Breakage:
    """A fault, and both runs. parted: place of the first token that differs, None: nowhere; more:
    both heads on more text than one run, None where the fault is not one of the head."""

    fault: Break
    healthy: Ran
    broken: Ran
    parted: int | None
    more: Paired | None = None

    @property
    def caught_by(self) -> tuple[str, ...]:
        """Keys of the checks that caught the broken run."""
        return self.broken.caught

    @property
    def table(self) -> Table:
        """Both runs in numbers, and what each check said."""
        rows = [*_numbers(self), *_checks(self)]
        return Table(("", "healthy", "broken"), tuple(rows), self.sentence)

    @property
    def sentence(self) -> str:
        """What broke, what did not, and who noticed; no seconds in it."""
        caught = [CHECKS[key].title for key in self.caught_by]
        who = f"Caught by: {', '.join(caught)}." if caught else "No check noticed on this prompt."
        return f"{self.fault.title}. {_told(self)} {who}"

    @property
    def html(self) -> str:
        """Fault, texts side by side, numbers."""
        return self.fault.card.html + self.comparison

    @property
    def comparison(self) -> str:
        """Texts side by side and numbers, for a page that has told of the fault already."""
        return _texts(self) + self.table.html

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": self.html, "text/plain": repr(self)}

    def __repr__(self) -> str:
        return self.sentence


def show(
    lab: Lab,
    key: str,
    prompt: str | Sequence[int],
    *,
    drafter: Drafter | None = None,
    head: EagleHead | None = None,
    texts: Sequence[Trace] | None = None,
    max_new_tokens: int = 40,
    draft_length: int = 4,
    seed: int = 0,
) -> Breakage:
    """Run the same prompt healthy and with one fault.

    Args:
        key: of `BREAKS`.
        prompt: text, put into the chat template, or token ids.
        drafter: another drafter than the fault's usual one; not one that a run is using.
        head: an EAGLE head of your own, for the fault of the head.
        texts: on which both heads rehearse, for the fault of the head; None: those that the gallery
            has of this model.

    Raises:
        BadInput: before any run: an unknown key, impossible settings, a head that cannot have the
            fault; after the healthy one: no end to stop at inside a round. ModelUnavailable: no
            drafter for this target.
    """
    fault = _fault(key)
    check_given(drafter, head, texts)
    bench = _Bench(lab, fault, lab.ids(prompt), {
        "max_new_tokens": max_new_tokens, "draft_length": draft_length, "seed": seed,
        "detail": "full", **(_DRAWN if fault.drawn else {}),
    })  # fmt: skip
    lab.config(**bench.settings)
    drafters = _drafters(lab, fault, drafter, head)
    ends = frozenset(lab.eos_ids)
    if fault.stops_late:
        ends |= {bench.end_inside(drafters[0])}
    plain = () if fault.drawn else bench.plain(ends)
    both = [bench.run(who, ends, broken=i == 1) for i, who in enumerate(drafters)]
    parted = parting(both[0][0].tokens, both[1][0].tokens)
    ran = [
        bench.ran(trace, read, ends=ends, plain=plain, broken=i == 1, heads=drafters, at=parted)
        for i, (trace, read) in enumerate(both)
    ]
    known = () if not fault.head else known_texts(lab) if texts is None else texts
    more = paired(lab, known, drafters=drafters, draft_length=draft_length)
    return Breakage(fault, ran[0], ran[1], parted, more)


def _fault(key: str) -> Break:
    return BREAKS[one_of(BREAKS, key, name="fault", next_step="choose a key of the catalogue")]


def check_given(drafter: object, head: object, texts: Sequence[Trace] | None) -> None:
    """BadInput: something that `show` cannot take."""
    if drafter is not None:
        check_drafter(drafter)
    require(head is None or isinstance(head, EagleHead), "head", "an EagleHead, or None", head)
    listed: object = () if texts is None else texts
    require(isinstance(listed, Sequence), "texts", "a list of recorded runs, or None", listed)
    for text in texts or ():
        check_text(text)


def _drafters(
    lab: Lab, fault: Break, drafter: Drafter | None, head: EagleHead | None
) -> tuple[Drafter, Drafter]:
    """(healthy, broken)."""
    if fault.head:
        pair = [
            faults.drafter(lab, key, method=fault.method, head=head)
            for key in (faults.HEALTHY, fault.head)
        ]
        return pair[0], pair[1]
    one = drafter or lab.new_drafter(fault.method)
    return one, one


@dataclass(frozen=True, slots=True)
class _Bench:
    """Runs of one prompt, each on a target of its own."""

    lab: Lab
    fault: Break
    ids: list[int]
    settings: dict[str, Any]

    def target(self, *, needs: Sequence[str] = ()) -> Target:
        return Target(self.lab.model, needs=needs, width=self.lab.width)

    def run(self, drafter: Drafter, ends: frozenset[int], *, broken: bool) -> tuple[Trace, int]:
        """The recorded run, and how many tokens the target's forwards read for it."""
        target = self.target(needs=drafter.needs)
        late = broken and self.fault.stops_late
        events = self._events(
            self.fault.target(target) if broken else target,
            drafter,
            ends=frozenset() if late else ends,
            rule=self.fault.rule if broken else None,
        )
        with counting(self.lab.model) as widths:
            trace = self._trace(stops_late(events, eos=ends) if late else events, drafter)
        return trace, sum(widths)

    def plain(self, ends: frozenset[int]) -> tuple[int, ...]:
        """What plain decoding writes."""
        nobody = Nothing()
        events = self._events(self.target(), nobody, ends=ends, rule=None)
        return self._trace(events, nobody).tokens

    def end_inside(self, drafter: Drafter) -> int:
        """A token that is accepted before the last place of a round and does not stand earlier in
        the text: the end to be passed over."""
        trace, _ = self.run(drafter, frozenset(self.lab.eos_ids), broken=False)
        made: list[int] = []
        found: list[int] = []
        for committed in (r.committed for r in trace.rounds if r.committed):
            for place, token in enumerate(committed.tokens):
                if place < len(committed.tokens) - 1 and token not in (*made, *found):
                    found.append(token)
                made.append(token)
        if not found:
            raise BadInput(
                "prompt",
                expected="one whose run has a round with an accepted draft",
                got="none in this text",
                next_step="choose another prompt, or more new tokens",
            )
        return found[len(found) // 2]

    def _events(
        self, target: Target, drafter: Drafter, *, ends: frozenset[int], rule: Any
    ) -> Iterator[AnyEvent]:
        config = self.lab.config(**{**self.settings, "eos": sorted(ends)})
        text, clock = TextStream(self.lab.text), self.lab.clock
        events = speculate(
            target, drafter, self.ids, config=config, text=text, clock=clock, rule=rule
        )
        return step_safely(events, "this run")

    def _trace(self, events: Iterator[AnyEvent], drafter: Drafter) -> Trace:
        return self.lab.trace(events, self.ids, drafter=drafter, **self.settings)

    def ran(
        self,
        trace: Trace,
        read: int,
        *,
        ends: frozenset[int],
        plain: Sequence[int],
        broken: bool,
        heads: tuple[Drafter, Drafter],
        at: int | None,
    ) -> Ran:
        """Gather the evidence of a run and put it through every check."""
        drawn, target, new = self.fault.drawn, self.target(), trace.tokens
        evidence = Evidence(
            trace=trace,
            drawn=drawn,
            difference=None if drawn else first_difference(target, self.ids, plain, new),
            truths=plain_probabilities(target, self.ids, new),
            rule=self.fault.rule if broken else None,
            read=read,
            width=self.lab.width,
            states=self._states(heads, broken=broken),
            ends=ends,
            tolerance=torch.finfo(self.lab.loaded.dtype).eps ** 0.5,
        )
        cut = len(new) if at is None else at
        pieces = self.lab.text(new[:cut]), self.lab.text(new)[len(self.lab.text(new[:cut])) :]
        return Ran(evidence, tuple(check.of(evidence) for check in CHECKS.values()), pieces)

    def _states(self, heads: tuple[Drafter, Drafter], *, broken: bool) -> float | None:
        right, given = heads[0], heads[1 if broken else 0]
        if not isinstance(right, HeadDrafter) or not isinstance(right.head, EagleHead):
            return None
        return state_distance(self.lab.model, self.ids, given=given.needs, right=right.needs)


# --- what is told of both


def _told(result: Breakage) -> str:
    """Text, law, acceptance and work, in this order."""
    healthy, broken = result.healthy, result.broken
    if result.fault.drawn:
        text = "The text is drawn, so a difference in it proves nothing."
    elif result.parted is None:
        text = f"The text is the same, all {len(broken.trace.tokens)} tokens."
    elif result.parted == len(healthy.trace.tokens):
        beyond = len(broken.trace.tokens) - result.parted
        text = f"The text goes on for {counted(beyond, 'token')} where it should have ended."
    else:
        text = f"The text parts from the healthy one at token {result.parted + 1}."
    law = f"Law of a token: off by up to {broken.evidence.law_gap:.3f} "
    law += f"(healthy {healthy.evidence.law_gap:.3f})."
    rounds = f"{broken.tokens_per_round:.2f} tokens per round (healthy "
    rounds += f"{healthy.tokens_per_round:.2f})."
    read = f"{broken.evidence.read:,} positions computed (healthy {healthy.evidence.read:,})."
    more = f" {result.more.told}" if result.more else ""
    return f"{text} {law} {rounds} {read}{more}"


def _numbers(result: Breakage) -> Iterator[tuple[str, str, str]]:
    def row(name: str, healthy: str, broken: str) -> tuple[str, str, str]:
        return name, healthy, broken if broken == healthy else f"*{broken}*"

    one, other = result.healthy, result.broken
    laws = [f"{ran.evidence.law_gap:.3f}" for ran in (one, other)]
    yield row("law of a token: off by up to", *laws)
    yield row("tokens per round", *(f"{ran.tokens_per_round:.2f}" for ran in (one, other)))
    if result.more:
        yield row(result.more.title, *result.more.cells)
    yield row("new tokens", *(str(len(ran.trace.tokens)) for ran in (one, other)))
    costs = [cost(ran.trace) for ran in (one, other)]
    yield row("forwards of the target", *(str(c.target_forwards) for c in costs))
    yield row("positions computed", *(f"{ran.evidence.read:,}" for ran in (one, other)))
    yield "seconds of decoding", f"{costs[0].decode:.2f}", f"{costs[1].decode:.2f}"


def _checks(result: Breakage) -> Iterator[tuple[str, str, str]]:
    for one, other in zip(result.healthy.findings, result.broken.findings, strict=True):
        yield f"check: {CHECKS[one.check].title}", _said(one), _said(other)


def _said(finding: Finding) -> str:
    sign = {True: "✗ *caught*: ", False: "✓ ", None: "– "}[finding.caught]
    return sign + finding.told


_PANE = (
    "flex:1 1 20em;min-width:0;border:1px solid #999999;border-radius:6px;padding:.6em .8em;"
    "line-height:1.6;overflow-wrap:anywhere;white-space:pre-wrap"
)


def _texts(result: Breakage) -> str:
    panes = [
        _pane("Healthy", result.healthy, "healthy"),
        _pane("Broken", result.broken, _mark(result)),
    ]
    return f'<div style="display:flex;flex-wrap:wrap;gap:.8em;margin:.6em 0">{"".join(panes)}</div>'


def _mark(result: Breakage) -> Literal["wrong", "drawn"]:
    return "drawn" if result.fault.drawn else "wrong"


def _pane(name: str, ran: Ran, kind: Literal["healthy", "wrong", "drawn"]) -> str:
    same, rest = (html.escape(piece) for piece in ran.pieces)
    if rest and kind == "wrong":
        rest = (
            '<b aria-label="the first difference">✗</b><span style="text-decoration:underline wavy '
            f'#D55E00 2px;text-underline-offset:4px">{rest}</span>'
        )
    elif rest:
        rest = f'<span style="border-bottom:2px dotted #999999">{rest}</span>'
    return f'<div style="{_PANE}"><b>{name}</b><br>{same}{rest}</div>'
