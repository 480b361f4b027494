"""Rules, drafters and caches that are wrong in one known way, to learn from.

Owns: the faults. Does not know: which lesson shows which.
Invariants: everything here differs from the right thing in exactly the way its docstring names;
only what shows, runs or judges broken decoding imports this module.
"""

from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from labkit.draft import Draft
from labkit.drafters.base import Commit, Drafter
from labkit.events import AnyEvent, Committed, Finished, Trial
from labkit.sampling import Rng, Warp
from labkit.target import Scores, Target
from labkit.tree import DraftTree
from labkit.verify import Verdict

AcceptChance = Callable[[float, float], float]
"""(p of the drafted token, q of it) -> chance that it is accepted."""
AfterRejection = Callable[[Tensor, Tensor], Tensor]
"""(p [V], q [V]) -> distribution [V] that the target's own token is drawn from."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A verifier for chains of drawn tokens, put together from its two halves.

    Called like `labkit.verify.verify`; with the right halves it has the same law.
    """

    name: str
    accept: AcceptChance
    after: AfterRejection

    def __call__(self, draft: Draft, p: Tensor, rng: Rng) -> Verdict:
        path, trials, rest = [0], [], p[0]
        for node in range(1, len(draft.tree)):
            q, token = draft.q[node], draft.tree.tokens[node]
            assert q is not None, "this rule is for drawn tokens"
            p_x, q_x = float(p[path[-1]][token]), float(q[token])
            flip = rng.flip(self.accept(p_x, q_x))
            trials.append(Trial(node, p_x, q_x, flip.u, flip.accepted))
            if not flip.accepted:
                rest = self.after(p[path[-1]], q)
                break
            path.append(node)
            rest = p[node]
        return Verdict(tuple(path), int(rng.pick(rest)), tuple(trials), rest)


def _ratio(p: float, q: float) -> float:
    return min(1.0, p / q)


def _residual(p: Tensor, q: Tensor) -> Tensor:
    return _normalised((p - q).clamp(min=0), p)


def _normalised(rest: Tensor, otherwise: Tensor) -> Tensor:
    """``rest`` scaled to sum 1; ``otherwise`` where nothing is left of it."""
    return rest / rest.sum() if rest.sum() > 0 else otherwise


def _swapped(p: float, q: float) -> float:
    return min(1.0, q / p) if p > 0 else 1.0


RIGHT = Rule("right", _ratio, _residual)

FAULTS: Mapping[str, Rule] = {
    "swapped": Rule("swapped", _swapped, _residual),
    "threshold": Rule("threshold", lambda p, q: float(p >= q), _residual),
    "always": Rule("always", lambda p, q: 1.0, _residual),
    "from_p": Rule("from_p", _ratio, lambda p, q: p),
    "from_q": Rule("from_q", _ratio, lambda p, q: q),
    "no_clip": Rule("no_clip", _ratio, lambda p, q: _normalised((p - q).abs(), p)),
}
"""swapped: min(1, q/p). threshold: "reject when p < q", with certainty. always: every draft stays.
from_p, from_q: the own token is drawn from p, or q, instead of the residual. no_clip: the size of
p - q instead of its positive part."""


def suspects() -> dict[str, Rule]:
    """Four verifiers of which one is wrong, for lesson 03."""
    rules = {"A": RIGHT, "B": RIGHT, "C": FAULTS["from_p"], "D": RIGHT}
    return {letter: Rule(letter, rule.accept, rule.after) for letter, rule in rules.items()}


class Late(Drafter):
    """A drafter that reads one token too few, so every guess comes one place late.

    text     the cat sat        read as     the cat
    guesses  sat on  the        offered as  (sat) sat on the
    """

    name = "late"

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.needs = drafter.needs
        self._held: tuple[int, ...] = ()

    @property
    def context_limit(self) -> int | None:
        return self._drafter.context_limit

    def reset(self) -> None:
        self._drafter.reset()
        self._held = ()

    def propose(self, tokens: Sequence[int], rng: Rng, *, depth: int, warp: Warp) -> Draft:
        draft = self._drafter.propose(tokens[:-1], rng, depth=depth, warp=warp)
        tree = DraftTree((tokens[-1], *draft.tree.tokens[1:]), draft.tree.parents)
        return Draft(tree, draft.q, draft.forwards, draft.forward_seconds, draft.logits)

    def observe(self, commit: Commit) -> None:
        seen = (*self._held, *commit.tokens)
        self._drafter.observe(Commit(seen[:-1], commit.hidden))
        self._held = seen[-1:]

    def forget(self) -> None:
        self._drafter.forget()


class _Wrapped:
    """Everything that is not defined here is the target's own."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)


class NeverForgets(_Wrapped):
    """Keeps the slots of rejected tokens, so that later tokens read them, and stand at later
    positions than they have in the text."""

    def score(self, tree: DraftTree) -> Scores:
        self._nodes = len(tree)
        return self._target.score(tree)

    def commit(self, path: Sequence[int]) -> tuple[int, ...]:
        return self._target.commit(tuple(range(self._nodes)))


class Resets(_Wrapped):
    """Empties the cache after every round and computes the whole text again: right, and wasteful.
    ``recomputed`` counts the positions."""

    def prefill(self, tokens: Sequence[int]) -> dict[str, Tensor]:
        self._text, self.recomputed = list(tokens[:-1]), 0
        return self._target.prefill(tokens)

    def score(self, tree: DraftTree) -> Scores:
        self._tree = tree
        return self._target.score(tree)

    def commit(self, path: Sequence[int]) -> tuple[int, ...]:
        self._target.commit(path)
        self._text += [self._tree.tokens[node] for node in path]
        self._target.truncate(0)
        self._target.append(torch.tensor(self._text, device=self._target.device))
        self.recomputed += len(self._text)
        return self._target.committed_slots[-len(path) :]


class StalePositions(Target):
    """Forgets the slots of rejected tokens, and still counts them: after a rejection every token
    stands further on than it does in the text.

    text        a b c          d e        (x y were drafted after c and rejected)
    positions   0 1 2          5 6        should be 3 4
    """

    def prefill(self, tokens: Sequence[int]) -> dict[str, Tensor]:
        self._ahead = 0
        return super().prefill(tokens)

    def commit(self, path: Sequence[int]) -> tuple[int, ...]:
        rejected = len(self._slots) - len(path)
        kept = super().commit(path)
        self._ahead += rejected
        return kept

    def _padded(self, tree: DraftTree) -> tuple[Tensor, list[int], Tensor]:
        ids, positions, ancestors = super()._padded(tree)
        last = (self.context_limit or max(positions) + self._ahead + 1) - 1
        return ids, [min(at + self._ahead, last) for at in positions], ancestors


class NoTreeMask(Target):
    """Every node sees all nodes before it, its siblings and other branches too; a chain is as
    ever.

    parents -1 0 0 1      rows 1000 1100 1110 1111, should be 1000 1100 1010 1101
    """

    def _padded(self, tree: DraftTree) -> tuple[Tensor, list[int], Tensor]:
        ids, positions, ancestors = super()._padded(tree)
        n = len(tree)
        ancestors[:n, :n] = torch.ones(n, n, dtype=torch.bool).tril_()
        return ids, positions, ancestors


def fresh(kind: Callable[..., Target], target: Target) -> Target:
    """A target of another kind on the model of ``target``, with a cache of its own."""
    return kind(target.model, needs=target.needs, width=target.width)


def stops_late(
    events: Iterator[AnyEvent], *, eos: Collection[int] = (), stop_strings: Sequence[str] = ()
) -> Iterator[AnyEvent]:
    """A run whose stop test comes once per round and looks at where the round ended: at the last
    token, and at the text so far. What came before it in the round is not looked at, and text
    past a stop string stays.

    Args:
        events: a run that knows of no end, of `labkit.decode.speculate`; closed at the stop.
        eos, stop_strings: what should have ended it.
    """
    text, count = "", 0
    with closing(cast(Generator[AnyEvent, None, None], events)) as run:
        for event in run:
            yield event
            if not isinstance(event, Committed):
                continue
            text, count = text + event.text, count + len(event.tokens)
            ended = event.tokens[-1] in eos
            if ended or any(stop in text for stop in stop_strings):
                yield Finished(
                    round=event.round,
                    reason="eos" if ended else "stop_string",
                    new_tokens=count,
                    slots_before=event.slots_after,
                    slots_after=event.slots_after,
                )
                return
