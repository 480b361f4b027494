"""Hand-written runs for the picture tests: events only, no model.

`Script` plays the engine's bookkeeping (lowest free slot first, the root always kept), so that a
test says only what was drafted, what was accepted and what the target added.
"""

import heapq
import itertools
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from labkit.events import (
    Committed,
    Drafted,
    Event,
    Finished,
    Prefilled,
    Scored,
    Started,
    Trial,
    Verified,
)
from labkit.trace import Trace
from labkit.tree import DraftTree

PROMPT = ("The", " cat", " sat", " on", " the")


@dataclass
class Script:
    """A run being written. Tokens are words; ids are given in the order of first use."""

    prompt: Sequence[str] = PROMPT
    method: str = "draft"
    draft_length: int = 4
    max_new_tokens: int = 64
    full: bool = False
    trials: bool = True
    ids: dict[str, int] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    length: int = 0  # committed tokens in the cache
    free: list[int] = field(default_factory=lambda: list(range(2048)))
    made: int = 0
    dice: random.Random = field(default_factory=lambda: random.Random(7))

    def __post_init__(self) -> None:
        prompt = tuple(map(self.id, self.prompt))
        self.pending = prompt[-1]
        self.length = len(prompt) - 1
        del self.free[: self.length]
        self.events += [
            Started(
                round=0,
                method=self.method,
                prompt=prompt,
                max_new_tokens=self.max_new_tokens,
                draft_length=self.draft_length,
            ),
            Prefilled(round=0, tokens=self.length, seconds=0.05, slots_after=self.length),
        ]

    def id(self, word: str) -> int:
        return self.ids.setdefault(word, len(self.ids) + 10)

    def round(
        self,
        drafted: Sequence[str] = (),
        *,
        accept: int | Sequence[int] = 0,
        own: str | None = " and",
        parents: Sequence[int] | None = None,
        stop_after: str | None = None,
        seconds: tuple[float, float] = (0.008, 0.045),
        greedy: bool = False,
        grown: dict[str, Any] | None = None,
    ) -> "Script":
        """One round.

        accept: how many of the chain, or the accepted nodes of a tree. own: the target's token,
        None when a stop was met before it. stop_after: the last event that is recorded.
        grown: what a head says of a tree that it grew (confidence, considered, stopped).
        """
        index = 1 + sum(isinstance(e, Drafted) for e in self.events)
        nodes = (self.pending, *map(self.id, drafted))
        tree = DraftTree(nodes, (-1, *(parents if parents is not None else range(len(drafted)))))
        path = (0, *range(1, accept + 1)) if isinstance(accept, int) else (0, *accept)
        trials = self._trials(tree, path, greedy=greedy)
        resampled = bool(trials) and not trials[-1].accepted
        seats = tuple(heapq.heappop(self.free) for _ in nodes)
        before, after = self.length, self.length + len(nodes)
        common = {"round": index}
        new = tuple(nodes[i] for i in path[1:]) + (() if own is None else (self.id(own),))
        kept_nodes = path[: len(new)]
        kept = tuple(seats[i] for i in kept_nodes)
        q = (None, *(t.q for t in self._by_node(tree, trials)))
        events = [
            Drafted(
                **common,
                tokens=tree.tokens,
                parents=tree.parents,
                deterministic=greedy,
                limit=self.draft_length,
                q=q if self.full else (),
                q_top=self._tops(tree, q, drafted=True) if self.full and len(tree) > 1 else (),
                seconds=seconds[0] if drafted else 0.0,
                forwards=len(drafted),
                slots_before=before,
                slots_after=before,
                **(grown or {}),
            ),
            Scored(
                **common,
                node_slots=seats,
                context=before,
                p_top=self._tops(tree, q, drafted=False) if self.full else (),
                seconds=seconds[1],
                forwards=1,
                slots_before=before,
                slots_after=after,
            ),
            Verified(
                **common,
                path=path,
                next_token=self.id(own or " never"),
                resampled=resampled,
                trials=trials if self.trials else (),
                residual_top=self._top(self.id(own or " never"), 0.6) if self.full else (),
                seconds=0.0008,
                slots_before=after,
                slots_after=after,
            ),
            Committed(
                **common,
                tokens=new,
                sources=("draft",) * (len(path) - 1) + (("target",) if own is not None else ()),
                text="".join(drafted[i - 1] for i in path[1:]) + (own or ""),
                kept_slots=kept,
                freed_slots=tuple(s for s in seats if s not in kept),
                seconds=0.0004,
                slots_before=after,
                slots_after=before + len(kept),
            ),
        ]
        names = [e.kind for e in events]
        self.events += events[: names.index(stop_after) + 1] if stop_after else events
        for seat in events[-1].freed_slots:
            heapq.heappush(self.free, seat)
        self.length += len(kept)
        self.made += len(new)
        self.pending = new[-1]
        return self

    def end(self, reason: str | None = "max_new_tokens") -> Trace:
        """The trace; ``reason`` None cuts the recording short."""
        rounds = sum(isinstance(e, Committed) for e in self.events)
        if reason:
            self.events.append(
                Finished(
                    round=rounds,
                    reason=reason,
                    new_tokens=self.made,
                    slots_before=self.length,
                    slots_after=self.length,
                )
            )
        names = {i: word for word, i in self.ids.items()}
        return Trace(tuple(self.events), {"model": "scripted"}, names)

    def _trials(self, tree: DraftTree, path: Sequence[int], *, greedy: bool) -> tuple[Trial, ...]:
        trials = []
        for node, chosen in zip(path, (*path[1:], None), strict=True):
            for child in tree.children[node]:
                q = 1.0 if greedy else round(0.3 + 0.65 * self.dice.random(), 3)
                good = child == chosen
                p = float(good) if greedy else q * (0.5 + 0.7 * good * self.dice.random())
                p = min(1.0, round(p, 3))
                limit = min(1.0, p / q)
                spread = self.dice.random()
                u = limit * spread * 0.98 if good else limit + (1 - limit) * spread
                trials.append(Trial(child, p, q, round(u, 4), good))
                if good:
                    break
        return tuple(trials)

    def _by_node(self, tree: DraftTree, trials: Sequence[Trial]) -> list[Trial]:
        known = {t.node: t for t in trials}
        rest = [
            Trial(i, 0.2, round(0.2 + 0.5 * self.dice.random(), 3), 0.0, False)
            for i in range(len(tree))
        ]
        return [known.get(i, rest[i]) for i in range(1, len(tree))]

    def _tops(
        self, tree: DraftTree, q: Sequence[float | None], *, drafted: bool
    ) -> tuple[tuple[tuple[int, float], ...], ...]:
        rows = []
        for node in range(len(tree)):
            if drafted:
                rows.append(self._top(tree.tokens[node], q[node] or 0.5) if node else ())
            else:
                below = tree.children[node]
                rows.append(self._top(tree.tokens[below[0] if below else node], 0.45))
        return tuple(rows)

    def _top(self, token: int, mass: float) -> tuple[tuple[int, float], ...]:
        """Eight tokens, ``token`` among them with ``mass``, likeliest first."""
        others = [i for i in self.ids.values() if i != token][-7:]
        left = 1 - mass
        pairs = [(token, mass)]
        for other in others:
            left *= 0.55
            pairs.append((other, round(left * 0.8, 4)))
        return tuple(sorted(pairs, key=lambda pair: (-pair[1], pair[0])))


WORDS = re.findall(
    r"\w+",
    """quick brown fox jumps over a lazy dog while seven small wizards quietly brew some very
    strong coffee in their tower and argue about whether speculation is really worth its extra
    cost today""",
)


def chain(*, full: bool = True) -> Trace:
    """All four fates: rejected after two, all accepted, none accepted, two rejected tails."""
    script = Script(full=full)
    script.round([" mat", ",", " and", " then"], accept=2, own=" purr")
    script.round([" ing", " very", " softly", "."], accept=4, own=" It")
    script.round([" was", " a", " big", " dog"], accept=0, own=" is")
    script.round([" not", " a", " dog", "."], accept=3, own="!")
    return script.end("max_new_tokens")


def corrected() -> Trace:
    """Two accepted, then a correction: draft, draft, target."""
    return Script(full=True).round([" mat", ",", " big"], accept=2, own=" small").end("eos")


def tree() -> Trace:
    """Branching drafts, siblings tried one after the other."""
    script = Script(method="eagle2", full=True)
    script.round(
        [" mat", " rug", " is", " was", ","], parents=(0, 0, 1, 1, 2), accept=(1, 4), own=" old"
    )
    script.round([" and", " but", " soft"], parents=(0, 0, 1), accept=(2,), own=" warm")
    return script.round([".", " in", " at"], parents=(0, 0, 0), accept=(), own=" for").end()


def grow(
    script: Script, *, depth: int, top_k: int = 4, nodes: int = 15, choices: Sequence[str] = ()
) -> tuple[list[str], list[int], dict[str, Any]]:
    """A draft as EAGLE-2 grows one, from made-up probabilities: words, parents (1-based nodes, 0
    the root), and what a head would say of it."""
    dice, words = script.dice, [" " + w for w in WORDS] + [",", "."]
    rows: list[tuple[str, int, float]] = [("", -1, 1.0)]
    level = [0]
    for d in range(depth):
        found = []
        for parent in level:
            left = 1.0
            taken = dice.sample(words, top_k)
            if parent == level[0] and d < len(choices):
                taken = [choices[d], *(w for w in taken if w != choices[d])][:top_k]
            for word in taken:
                share = left * (0.5 + 0.35 * dice.random())
                left -= share
                found.append(len(rows))
                rows.append((word, parent, rows[parent][2] * share))
        level = sorted(sorted(found, key=lambda i: -rows[i][2])[:top_k])
    kept = [0, *sorted(sorted(range(1, len(rows)), key=lambda i: -rows[i][2])[:nodes])]
    node = {number: i for i, number in enumerate(kept)}
    considered = tuple(
        (script.id(word) if i else script.pending, parent, sure, node.get(i, -1))
        for i, (word, parent, sure) in enumerate(rows)
    )
    told = {"considered": considered, "confidence": tuple(rows[i][2] for i in kept)}
    return [rows[i][0] for i in kept[1:]], [node[rows[i][1]] for i in kept[1:]], told


def dynamic(rounds: int = 4, *, depth: int = 5, nodes: int = 15, full: bool = True) -> Trace:
    """Dynamic trees: paths of every length, pruned candidates, one draft cut short."""
    script = Script(method="eagle2", draft_length=depth, full=full)
    text = itertools.cycle(WORDS)
    for i in range(rounds):
        stop = "confidence" if i % 4 == 2 else ""
        choices = [" " + next(text) for _ in range(depth)]
        drafted, parents, told = grow(
            script, depth=2 if stop else depth, nodes=nodes, choices=choices
        )
        tree = DraftTree((0,) * (1 + len(parents)), (-1, *parents))
        deepest = tree.path(max(range(len(tree)), key=lambda n: (tree.depths[n], -n)))[1:]
        path = deepest[: (3, 1, 2, 0, 5)[i % 5]] if i % 5 != 1 else tree.children[0][1:2]
        script.round(
            drafted,
            parents=parents,
            accept=path,
            own=(" here", " now", " then", " slowly", " again")[i % 5],
            greedy=True,
            grown=told | {"stopped": stop},
        )
    return script.end()


def plain(count: int = 12) -> Trace:
    """Autoregressive: no round drafts."""
    script = Script(method="ar", draft_length=0)
    for i in range(count):
        script.round(own=" " + WORDS[i % len(WORDS)], seconds=(0.0, 0.0385))
    return script.end()


def nothing_drafted() -> Trace:
    """A drafter that offers nothing: K = 0 in every round."""
    script = Script(method="ngram", draft_length=0)
    return script.round(own=" mat").round(own=".").end("eos")


def cut_short(after: str = "scored") -> Trace:
    """The recording stops inside round 2."""
    script = Script().round([" mat", ",", " and"], accept=2, own=" purr")
    return script.round([" ing", " very"], accept=1, own=" so", stop_after=after).end(None)


def stopped_inside() -> Trace:
    """An end token among the accepted ones: what the target drew after it is not used."""
    return Script().round([" mat", "<|im_end|>"], accept=2, own=None).end("eos")


def odd_tokens() -> Trace:
    """White space, controls, emoji, accents, byte fragments, markup, right-to-left, very long."""
    script = Script(prompt=("<b>", "\n\n", "\t", "é", "日本語"), full=True)
    script.round([" ", "\u0301", "👩‍👩‍👧", "\ufffd"], accept=2, own='"&amp;"')
    script.round(["\x00\x1b", "\u202e", "\u200b", "مرحبا"], accept=3, own="]]>")
    script.round(["Donaudampfschifffahrtsgesellschaft", "", "\r\n", "  "], accept=2, own="\u00a0")
    return script.end()


def long_run(new: int = 64, *, prompt: int = 40) -> Trace:
    """About ``new`` tokens at full detail, drafts of four, fates from a fixed seed."""
    dice = random.Random(3)
    words = [" " + w for w in WORDS] + [",", ".", "\n"]
    script = Script(prompt=[words[i % len(words)] for i in range(prompt)], full=True)
    script.max_new_tokens = new
    while script.made < new:
        drafted = [dice.choice(words) for _ in range(4)]
        accept = dice.choice((0, 1, 2, 2, 3, 4))
        script.round(drafted, accept=accept, own=dice.choice(words))
    return script.end()


EVERY = {
    "chain": chain,
    "corrected": corrected,
    "tree": tree,
    "dynamic": dynamic,
    "plain": plain,
    "nothing_drafted": nothing_drafted,
    "cut_short": cut_short,
    "stopped_inside": stopped_inside,
    "odd_tokens": odd_tokens,
    "long_run": long_run,
}
