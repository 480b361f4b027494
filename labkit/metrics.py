"""Numbers of a recorded run. Counts first, rates late; each definition stands in its docstring.

Owns: the definitions. Does not know: models, drawing.
Invariants: a rate whose denominator is zero is None, never a made-up number.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from labkit.events import Committed
from labkit.trace import Round, Trace
from labkit.tree import DraftTree


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Counts of drafting rounds, pooled over runs.

    ``histogram[j]``: rounds in which exactly j drafted tokens were accepted. Acceptance is a
    prefix count along the kept path: what follows a rejection is never accepted.
    ``drafted``: drafted tokens (tree nodes but for the root). ``committed``: tokens that joined
    the text, the target's own included.
    """

    histogram: tuple[int, ...]
    drafted: int
    committed: int

    @property
    def rounds(self) -> int:
        return sum(self.histogram)

    @property
    def accepted(self) -> int:
        """Drafted tokens that stayed."""
        return sum(j * count for j, count in enumerate(self.histogram))

    @property
    def rate(self) -> float | None:
        """accepted / drafted; None when nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def accepted_per_round(self) -> float | None:
        """accepted / rounds: the target's own token is not counted."""
        return self.accepted / self.rounds if self.rounds else None

    @property
    def mean_accepted_length(self) -> float | None:
        """committed / rounds, pooled: the target's own token is counted (vLLM's convention)."""
        return self.committed / self.rounds if self.rounds else None

    @property
    def standard_error(self) -> float | None:
        """Of `accepted_per_round`, as if rounds were independent: how far it is likely off because
        the rounds are few. None for fewer than two rounds."""
        mean = self.accepted_per_round
        if mean is None or self.rounds < 2:
            return None
        squares = sum(count * (j - mean) ** 2 for j, count in enumerate(self.histogram))
        return (squares / (self.rounds - 1) / self.rounds) ** 0.5

    @property
    def drafted_per_round(self) -> float | None:
        return self.drafted / self.rounds if self.rounds else None

    @property
    def by_position(self) -> tuple[float, ...]:
        """``by_position[i]``: share of all rounds that accepted more than i drafted tokens."""
        if not self.rounds:
            return ()
        return tuple(
            sum(self.histogram[i + 1 :]) / self.rounds for i in range(len(self.histogram) - 1)
        )

    def __add__(self, other: "Acceptance") -> "Acceptance":
        """The rounds of both, pooled."""
        counts = itertools.zip_longest(self.histogram, other.histogram, fillvalue=0)
        return Acceptance(
            histogram=tuple(map(sum, counts)),
            drafted=self.drafted + other.drafted,
            committed=self.committed + other.committed,
        )

    @classmethod
    def from_histogram(cls, histogram: Iterable[int], *, draft_length: int) -> "Acceptance":
        """Counts of a chain drafter that always drafts ``draft_length`` tokens."""
        counts = tuple(histogram)
        rounds = sum(counts)
        accepted = sum(j * n for j, n in enumerate(counts))
        return cls(counts, rounds * draft_length, rounds + accepted)


@dataclass(frozen=True, slots=True)
class RunCost:
    """Where the time of one or more runs went, in seconds, and how many forwards it took.

    ``inside``: the part of drafting, scoring and committing that was spent inside the models.
    ``replayed``: tokens that recurrent layers of the target had to read again, without a forward of
    the whole model.
    """

    prefill: float
    draft: float
    score: float
    verify: float
    commit: float
    inside: float
    target_forwards: int
    draft_forwards: int
    replayed: int = 0

    @property
    def decode(self) -> float:
        """Seconds of decoding, the prompt not counted."""
        return self.draft + self.score + self.verify + self.commit

    @property
    def outside_forwards(self) -> float | None:
        """Share of decoding time spent outside the forwards of target and draft model."""
        return 1 - self.inside / self.decode if self.decode else None


def acceptance(*traces: Trace) -> Acceptance:
    """Pool the rounds of ``traces``; a round whose token was forced says nothing of a drafter."""
    rounds = [r for trace in traces for r in trace.rounds if r.committed and not r.forced]
    counts = Counter(r.accepted for r in rounds)
    longest = max((DraftTree(r.drafted.tokens, r.drafted.parents).depth for r in rounds), default=0)
    return Acceptance(
        histogram=tuple(counts[j] for j in range(longest + 1)) if rounds else (),
        drafted=sum(len(r.drafted.tokens) - 1 for r in rounds),
        committed=sum(len(r.committed.tokens) for r in rounds if r.committed),
    )


@dataclass(frozen=True, slots=True)
class AtDepth:
    """How drafted nodes fared at one depth, given that everything above them was accepted.

    reached: rounds whose accepted path came to ``depth - 1`` where the draft went on below it.
    accepted: those of them whose path came to ``depth``.
    """

    depth: int
    reached: int
    accepted: int

    @property
    def rate(self) -> float | None:
        """accepted / reached; None when no round came so far."""
        return self.accepted / self.reached if self.reached else None


def acceptance_by_depth(*traces: Trace) -> tuple[AtDepth, ...]:
    """Pool the rounds of ``traces``: depth 1 first, up to the deepest that a round reached.

    Unlike `Acceptance.by_position`, which falls with depth by itself, this stays level for a
    drafter that is as good deep down as at the start.
    """
    reached: Counter[int] = Counter()
    accepted: Counter[int] = Counter()
    for tree, path in _verified_trees(traces):
        for depth, parent in enumerate(path, start=1):
            if tree.children[parent]:
                reached[depth] += 1
                accepted[depth] += depth < len(path)
    return tuple(AtDepth(d, reached[d], accepted[d]) for d in range(1, max(reached, default=0) + 1))


@dataclass(frozen=True, slots=True)
class Calibrated:
    """Drafted nodes whose predicted acceptance lies in [low, high). predicted: the sum of the
    drafter's own probabilities; accepted: how many were accepted in the end."""

    low: float
    high: float
    count: int
    predicted: float
    accepted: int


def calibration(*traces: Trace, bins: int = 10) -> tuple[Calibrated, ...]:
    """Is the drafter's confidence the chance of acceptance? (Li et al. 2024, arXiv 2406.16858)

    Every child of every accepted node counts once (of siblings at most one is accepted), with
    its own probability: its cumulative confidence over its parent's. Pooled over ``traces``;
    rounds whose drafter did not say its confidence are left out, as are bins without a node.
    """
    found: defaultdict[int, list[tuple[float, bool]]] = defaultdict(list)
    for trace in traces:
        for r in trace.rounds:
            if not r.verified or not r.drafted.confidence:
                continue
            sure, path = r.drafted.confidence, r.verified.path
            for node, parent in enumerate(r.drafted.parents):
                if node and parent in path and sure[parent] > 0:
                    own = min(1.0, sure[node] / sure[parent])
                    found[min(bins - 1, int(own * bins))].append((own, node in path))
    return tuple(
        Calibrated(
            low=place / bins,
            high=(place + 1) / bins,
            count=len(some),
            predicted=sum(own for own, _ in some),
            accepted=sum(kept for _, kept in some),
        )
        for place, some in sorted(found.items())
    )


def tokens_by_nodes(*traces: Trace, most: int) -> tuple[tuple[float, float], ...]:
    """What smaller trees would have brought: (tokens per round, depth) with 0 to ``most`` nodes.

    A dynamic tree keeps the candidates with the largest confidence, so the tree of n nodes lies
    inside every larger one: of each recorded round, the n surest nodes are taken, and the accepted
    path counts as far as it stays among them. The target's own token is counted. Exact at
    temperature 0; pooled over the rounds that said their confidence.
    """
    rounds = [
        (tree, path, r.drafted.confidence)
        for trace in traces
        for r, (tree, path) in zip(_verified(trace), _verified_trees([trace]), strict=True)
        if r.drafted.confidence
    ]
    if not rounds:
        return ()
    found = []
    for count in range(most + 1):
        tokens = depth = 0
        for tree, path, sure in rounds:
            nodes = sorted(range(1, len(tree)), key=lambda node: (-sure[node], node))[:count]
            tokens += 1 + sum(node in nodes for node in path[1:])
            depth += max((tree.depths[node] for node in nodes), default=0)
        found.append((tokens / len(rounds), depth / len(rounds)))
    return tuple(found)


def hedged(*traces: Trace) -> int:
    """Accepted nodes with an earlier sibling: guesses that came true and that a chain of first
    choices would not have held."""
    return sum(
        tree.children[tree.parents[node]][0] != node
        for tree, path in _verified_trees(traces)
        for node in path[1:]
    )


def _verified_trees(traces: Iterable[Trace]) -> Iterable[tuple[DraftTree, tuple[int, ...]]]:
    """(draft, accepted path from the root on) of every round that was verified."""
    for trace in traces:
        for r in _verified(trace):
            if r.verified:
                yield DraftTree(r.drafted.tokens, r.drafted.parents), r.verified.path


def _verified(trace: Trace) -> list[Round]:
    return [r for r in trace.rounds if r.verified]


def cost(*traces: Trace) -> RunCost:
    """Pool the phase times of ``traces``."""
    events = [event for trace in traces for event in trace.events]
    seconds: defaultdict[str, float] = defaultdict(float)
    inside: defaultdict[str, float] = defaultdict(float)
    forwards: Counter[str] = Counter()
    for event in events:
        seconds[event.kind] += event.seconds
        inside[event.kind] += event.forward_seconds
        forwards[event.kind] += event.forwards
    return RunCost(
        prefill=seconds["prefilled"],
        draft=seconds["drafted"],
        score=seconds["scored"],
        verify=seconds["verified"],
        commit=seconds["committed"],
        inside=inside["drafted"] + inside["scored"] + inside["committed"],
        target_forwards=forwards["prefilled"] + forwards["scored"],
        draft_forwards=forwards["drafted"],
        replayed=sum(event.replayed for event in events if isinstance(event, Committed)),
    )
