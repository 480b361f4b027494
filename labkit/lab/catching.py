"""The checks of the lab that a broken run is put through, each a comparison with the truth.

Owns: what each check compares, and its words. Does not know: which fault it is looking at.
Invariants: a check that does not apply says so and catches nothing; none of them looks at how the
run was made, only at what it did.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from labkit.decode import Rule
from labkit.events import Committed
from labkit.lab.compare import Difference
from labkit.lab.laws import first_token, largest_gap, real_pair
from labkit.target import Target
from labkit.trace import Trace
from labkit.tree import DraftTree
from labkit.verify import verify

_ROUNDS = 6  # rounds whose law is enumerated


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One run, and what it is held against.

    Attributes:
        trace: recorded at full detail. drawn: at a temperature above 0?
        difference: first place where the text parts from that of plain decoding; None: nowhere.
        truths: probability of each new token in one plain forward over prompt and text.
        rule: the accept rule of the run, None for `labkit.verify.verify`.
        read: tokens that went through the target's forwards, the prompt included.
        width: fewest rows of a forward.
        states: relative distance of the states that the head got from those it was trained on;
            None where there is no head.
        ends: ids that end a text. tolerance: what rounding may change a probability by.
    """

    trace: Trace
    drawn: bool
    difference: Difference | None
    truths: tuple[float, ...]
    rule: Rule | None
    read: int
    width: int
    states: float | None
    ends: frozenset[int]
    tolerance: float

    @property
    def committed(self) -> list[Committed]:
        return [r.committed for r in self.trace.rounds if r.committed]

    @cached_property
    def gaps(self) -> tuple[float, ...]:
        """Per new token: how far the probability that the run gave it is from the truth."""
        said = [torch.tensor(e.logprobs).exp().tolist() for e in self.committed]
        pairs = zip((p for row in said for p in row), self.truths, strict=True)
        return tuple(abs(a - b) for a, b in pairs)

    @cached_property
    def rule_gap(self) -> float | None:
        """Largest difference between the law of a round's first token and p, with the p and q of
        the first few rounds; None where nothing is drawn."""
        if not self.drawn:
            return None
        numbers = [r.index for r in self.trace.rounds if len(r.drafted.tokens) > 1][:_ROUNDS]
        pairs = [real_pair(self.trace, number=number) for number in numbers]
        rule = self.rule or verify
        laws = [(first_token(rule, p=pair.p, q=pair.q), pair.p) for pair in pairs]
        return max((largest_gap(law, p) for law, p in laws), default=None)

    @property
    def law_gap(self) -> float:
        """The larger of both: how far the law of a token is from the target's own."""
        return max(*self.gaps, self.rule_gap or 0.0, 0.0)

    @property
    def needed(self) -> int:
        """Tokens that the target has to read: the prompt, and each round's nodes, once."""
        nodes = [max(len(r.drafted.tokens), self.width) for r in self.trace.rounds if r.scored]
        return len(self.trace.prompt) - 1 + sum(nodes)


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check says. caught: None where it does not apply."""

    check: str
    caught: bool | None
    told: str


def identity(run: Evidence) -> Finding:
    """Is the greedy text that of plain decoding, token by token?"""
    if run.drawn:
        return Finding("identity", None, "asks nothing here: the tokens are drawn")
    found = run.difference
    if found is None:
        return Finding("identity", False, f"all {len(run.trace.tokens)} tokens are the same")
    if found.verdict == "near tie":
        return Finding("identity", False, str(found))
    return Finding("identity", True, f"another token at place {found.index + 1}")


def law(run: Evidence) -> Finding:
    """Every way that a round could go, with its own p and q: is the law of its first token p?"""
    if run.rule_gap is None:
        return Finding("law", None, "asks nothing here: nothing is drawn")
    told = f"some token's probability is off by {run.rule_gap:.3f}"
    return Finding("law", run.rule_gap > 1e-6, told)


def slots(run: Evidence) -> Finding:
    """After every round: are there as many slots as tokens in the text, less the pending one?"""
    length = len(run.trace.prompt) - 1
    for event in run.committed:
        length += len(event.tokens)
        if event.slots_after != length:
            told = f"round {event.round}: {event.slots_after} slots for {length} tokens"
            return Finding("slots", True, told)
    return Finding("slots", False, "one slot for each token, after every round")


def nodes(run: Evidence) -> Finding:
    """Has each token the probability that one plain forward over the text gives it?"""
    worst = max(run.gaps, default=0.0)
    if worst <= run.tolerance:
        return Finding("nodes", False, f"no probability is off by more than {_bound(run)}")
    first = next(i for i, gap in enumerate(run.gaps) if gap > run.tolerance)
    told = f"off by up to {worst:.3f}, from token {first + 1} on"
    return Finding("nodes", True, told)


def _bound(run: Evidence) -> str:
    return f"{run.tolerance:.0e}".replace("e-0", "e-")


def work(run: Evidence) -> Finding:
    """Has the target read the prompt once, and each round's nodes once, and nothing else?"""
    told = f"{run.read:,} positions computed, {run.needed:,} needed"
    return Finding("work", run.read > run.needed, told)


def states(run: Evidence) -> Finding:
    """Are the states that the head gets those of the layers it was trained on?"""
    if run.states is None:
        return Finding("states", None, "asks nothing here: the drafter reads no states")
    told = f"{run.states:.1%} away from transformers' `hidden_states`"
    return Finding("states", run.states > run.tolerance, told)


def stop(run: Evidence) -> Finding:
    """Does nothing come after the first end?"""
    at = next((i for i, t in enumerate(run.trace.tokens) if t in run.ends), None)
    if at is None:
        return Finding("stop", False, "no end in the text")
    beyond = len(run.trace.tokens) - at - 1
    return Finding("stop", beyond > 0, f"{beyond} tokens after the end of the text")


@dataclass(frozen=True, slots=True)
class Check:
    """One check. title: a few words."""

    title: str
    of: Callable[[Evidence], Finding]

    @property
    def asks(self) -> str:
        """What it asks, in one sentence."""
        return (self.of.__doc__ or "").strip()


CHECKS: Mapping[str, Check] = {
    "identity": Check("greedy identity", identity),
    "law": Check("enumerated law", law),
    "slots": Check("KV slots", slots),
    "nodes": Check("node-by-node probabilities", nodes),
    "work": Check("positions computed", work),
    "states": Check("states of the head", states),
    "stop": Check("stop test", stop),
}


@contextmanager
def counting(model: Any) -> Iterator[list[int]]:
    """Counts the tokens of every forward of ``model`` while the scope lasts."""
    widths: list[int] = []

    def note(_model: Any, _args: Any, kwargs: dict[str, Any]) -> None:
        widths.append(int(kwargs["input_ids"].shape[-1]))

    handle = model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield widths
    finally:
        handle.remove()


def plain_probabilities(
    target: Target, prompt: Sequence[int], new: Sequence[int]
) -> tuple[float, ...]:
    """The probability of each new token, from one forward over them all."""
    if not new:
        return ()
    target.prefill(prompt)
    with target.speculation():
        logits = target.score(DraftTree.chain((prompt[-1], *new[:-1]))).logits.float()
    ids = torch.tensor(list(new), device=logits.device)[:, None]
    return tuple(torch.softmax(logits, -1).gather(-1, ids)[:, 0].tolist())


def state_distance(
    model: Any, prompt: Sequence[int], *, given: Sequence[str], right: Sequence[str]
) -> float:
    """How far the states that a head asks for are from those that it was trained on.

    Args:
        given, right: names of activations, in the order in which the head joins them.

    Returns:
        the largest relative distance, of transformers' own ``hidden_states`` of the prompt.
    """
    fed = Target(model, needs=tuple(dict.fromkeys(given))).prefill(prompt)
    ids = torch.tensor([list(prompt[:-1])], device=next(model.parameters()).device)
    with torch.inference_mode():
        told = model(input_ids=ids, output_hidden_states=True, use_cache=False).hidden_states
    pairs = [
        (fed[name].float(), told[-1 if real == "final" else int(real[1:])][0].float())
        for name, real in zip(given, right, strict=True)
    ]
    return max(float((a - b).norm() / b.norm()) for a, b in pairs)
