"""A run as a list of states to look at: what is known, and what is where, at each of them.

Owns: the order of states, the status of every drafted token, the slot table at each state.
Does not know: how anything is drawn or worded.
Invariants: states depend on the recorded events alone; a trace and its saved copy give the same
states, because numbers are first brought to the precision of the file.

    start | draft  score  verify ... verify  commit  forget | draft ... | finish
            none    one forward  one accept test each        rejected slots become free

A phase that did nothing is left out: no draft without a drafted token, no forget without a freed
slot. A recording that was cut short ends where its last event stands.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from labkit.metrics import Acceptance, acceptance
from labkit.trace import Round, Trace
from labkit.tree import DraftTree
from labkit.viz.theme import Status

Phase = Literal["start", "draft", "score", "verify", "commit", "forget", "finish"]
SlotUse = Literal["free", "committed", "kept", "speculative", "forgotten"]


@dataclass(frozen=True, slots=True)
class State:
    """One moment of the run.

    index: its number, from 0. phase: what has just happened. at: place of the round in
    ``story.rounds`` (-1 at the start). trials: accept tests of the round seen so far.
    """

    index: int
    phase: Phase
    at: int
    trials: int = 0


@dataclass(frozen=True, slots=True)
class Slot:
    """One row of the target's KV table.

    use: free; committed (before this round); speculative (written by this round's forward);
    kept (joined this round); forgotten (freed this round). token, position: of the tenant, the
    last one when the slot is free; None when it never had any. tenants: how many it has had.
    node: the draft node in it while the round lasts, else -1.
    """

    use: SlotUse = "free"
    token: int | None = None
    position: int | None = None
    tenants: int = 0
    node: int = -1


@dataclass(frozen=True, slots=True)
class Span:
    """One phase of one round in time. lane: draft, score or rest (accept tests, bookkeeping)."""

    lane: Literal["draft", "score", "rest"]
    start: float
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class Story:
    """A trace prepared for drawing.

    rounds: the recorded rounds, and trees, the draft of each. states: every moment, in order.
    Then, before each round and once more after the last: before (new tokens committed so far),
    tables (the slot table), totals (acceptance so far). spans: three for each round, the prompt
    not counted.
    """

    trace: Trace
    rounds: tuple[Round, ...]
    trees: tuple[DraftTree, ...]
    states: tuple[State, ...]
    before: tuple[int, ...]
    tables: tuple[tuple[Slot, ...], ...]
    totals: tuple[Acceptance, ...]
    spans: tuple[Span, ...]

    @classmethod
    def of(cls, trace: Trace) -> "Story":
        """Raises BadInput when the events do not belong together; see `labkit.trace_check`."""
        trace = trace.as_saved()
        rounds = trace.rounds
        made = [0]
        tables = [_prefilled(trace)]
        for round_ in rounds:
            made.append(made[-1] + (len(round_.committed.tokens) if round_.committed else 0))
            tables.append(_settled(tables[-1], round_, _root_position(trace, made[-2])))
        moments = enumerate(_moments(trace, rounds))
        states = tuple(State(i, phase, at, trials) for i, (phase, at, trials) in moments)
        totals, spans = tuple(_totals(rounds)), tuple(_spans(rounds))
        trees = tuple(tree_of(round_) for round_ in rounds)
        return cls(trace, rounds, trees, states, tuple(made), tuple(tables), totals, spans)

    def last_of_round(self, number: int) -> State:
        """The last state of round ``number`` (1 is the first)."""
        return [s for s in self.states if s.at == number - 1 and s.phase != "finish"][-1]

    @property
    def round_ends(self) -> tuple[int, ...]:
        """Indices at which a reader who steps by whole rounds stops: start, each round, finish."""
        last = {state.at: state.index for state in self.states if state.phase != "finish"}
        end = self.states[-1].index
        return tuple(sorted({*last.values(), end}))

    def slots(self, state: State) -> tuple[Slot, ...]:
        """The whole slot table at ``state``; slots that the run uses later are free."""
        if state.at < 0 or state.phase == "finish":
            table = self.tables[state.at + 1]
        else:
            at = state.at
            root = _root_position(self.trace, self.before[at])
            table = _after(self.tables[at], self.rounds[at], root, phase=state.phase)
        return table + (Slot(),) * (len(self.tables[-1]) - len(table))

    @property
    def longest_tree(self) -> int:
        """Most drafted tokens of any round."""
        return max((len(r.drafted.tokens) - 1 for r in self.rounds), default=0)


def tree_of(round_: Round) -> DraftTree:
    """The round's draft."""
    return DraftTree(round_.drafted.tokens, round_.drafted.parents)


def node_statuses(round_: Round, state: State | None) -> tuple[Status, ...]:
    """The status of every node of the round's tree; node 0 is always "prompt" (it is text already).

    Args:
        state: a state of this round, or None when the round is long past.
    """
    if state is not None and state.phase in ("draft", "score"):
        return _judged_so_far(round_, 0)
    if state is not None and state.phase == "verify":
        return _judged_so_far(round_, state.trials)
    return _verdict(round_) if round_.committed else _judged_so_far(round_, _count_trials(round_))


def own_token(round_: Round) -> tuple[int, Status] | None:
    """The target's own token of the round and its status, or the one that a person forced in its
    place; None when the run stopped before it."""
    if round_.forced and round_.committed:
        return round_.committed.tokens[-1], "forced"
    if not round_.committed or not round_.verified or "target" not in round_.committed.sources:
        return None
    return round_.committed.tokens[-1], "resampled" if round_.verified.resampled else "bonus"


def _judged_so_far(round_: Round, trials: int) -> tuple[Status, ...]:
    """After some accept tests: what can no longer be reached is dropped."""
    tree = tree_of(round_)
    statuses: list[Status] = ["pending"] * len(tree)
    statuses[0] = "prompt"
    for trial in round_.verified.trials[:trials] if round_.verified else ():
        statuses[trial.node] = "accepted" if trial.accepted else "rejected"
        if trial.accepted:
            for sibling in tree.children[tree.parents[trial.node]]:
                if statuses[sibling] == "pending":
                    statuses[sibling] = "dropped"
    for node, parent in enumerate(tree.parents):
        if node and statuses[parent] in ("rejected", "dropped"):
            statuses[node] = "dropped"
    return tuple(statuses)


def _verdict(round_: Round) -> tuple[Status, ...]:
    """Statuses once the round is committed, from the path alone (trials may not be recorded).

    Children are tried in order, so the siblings before an accepted one were rejected; after the
    last accepted node all children were. An accepted token behind a stop is not in the text.
    """
    assert round_.verified
    assert round_.committed
    tree, path = tree_of(round_), round_.verified.path
    statuses: list[Status] = ["dropped"] * len(tree)
    statuses[0] = "prompt"
    for node, chosen in zip(path, (*path[1:], None), strict=True):
        for child in tree.children[node]:
            if child == chosen:
                break
            statuses[child] = "rejected"
    for node in path[1 : round_.accepted + 1]:
        statuses[node] = "accepted"
    return tuple(statuses)


def _moments(trace: Trace, rounds: tuple[Round, ...]) -> Iterator[tuple[Phase, int, int]]:
    yield "start", -1, 0
    for at, round_ in enumerate(rounds):
        if len(round_.drafted.tokens) > 1 or not round_.scored:
            yield "draft", at, 0
        if round_.scored:
            yield "score", at, 0
        for seen in range(1, _count_trials(round_) + 1):
            yield "verify", at, seen
        if round_.committed:
            yield "commit", at, _count_trials(round_)
            if round_.committed.freed_slots:
                yield "forget", at, _count_trials(round_)
    if trace.finished:
        yield "finish", len(rounds) - 1, 0


def _totals(rounds: tuple[Round, ...]) -> Iterator[Acceptance]:
    yield (total := acceptance())
    for r in rounds:
        total += acceptance(Trace(tuple(e for e in (r.drafted, r.committed) if e)))
        yield total


def _spans(rounds: tuple[Round, ...]) -> Iterator[Span]:
    now = 0.0
    for r in rounds:
        rest = sum(e.seconds for e in (r.verified, r.committed) if e)
        scored = r.scored.seconds if r.scored else 0.0
        yield Span("draft", now, r.drafted.seconds)
        yield Span("score", now + r.drafted.seconds, scored)
        yield Span("rest", now + r.drafted.seconds + scored, rest)
        now += r.drafted.seconds + scored + rest


def _count_trials(round_: Round) -> int:
    return len(round_.verified.trials) if round_.verified else 0


def _root_position(trace: Trace, made: int) -> int:
    """Text position of the pending token when ``made`` new tokens are committed."""
    return len(trace.prompt) - 1 + made


def _prefilled(trace: Trace) -> tuple[Slot, ...]:
    count = trace.prefilled.tokens if trace.prefilled else 0
    return tuple(
        Slot("committed", token, i, tenants=1) for i, token in enumerate(trace.prompt[:count])
    )


def _after(
    table: tuple[Slot, ...], round_: Round, root: int, *, phase: Phase = "forget"
) -> tuple[Slot, ...]:
    """The table in ``round_`` when ``phase`` has happened; ``root``: position of node 0."""
    if round_.scored is None or phase == "draft":
        return table
    seats = round_.scored.node_slots
    slots = list(table) + [Slot()] * (max(seats, default=-1) + 1 - len(table))
    tree = tree_of(round_)
    places = zip(seats, tree.tokens, tree.positions(root), strict=True)
    for node, (seat, token, position) in enumerate(places):
        use = _use(round_, seat, phase)
        slots[seat] = Slot(use, token, position, slots[seat].tenants + 1, node)
    return tuple(slots)


def _use(round_: Round, seat: int, phase: Phase) -> SlotUse:
    if round_.committed is None or phase in ("score", "verify"):
        return "speculative"
    if seat in round_.committed.kept_slots:
        return "kept"
    return "forgotten" if phase == "forget" else "speculative"


def _settled(table: tuple[Slot, ...], round_: Round, root: int) -> tuple[Slot, ...]:
    """What the next round finds: kept slots are committed, forgotten ones are free."""
    slots = list(_after(table, round_, root))
    uses: dict[SlotUse, SlotUse] = {"kept": "committed", "forgotten": "free"}
    for seat in round_.scored.node_slots if round_.scored else ():
        slots[seat] = replace(slots[seat], use=uses.get(slots[seat].use, slots[seat].use), node=-1)
    return tuple(slots)
