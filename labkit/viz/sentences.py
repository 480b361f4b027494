"""Every state, round and run in one plain sentence.

Owns: the words. Does not know: drawing.
Invariants: a sentence holds counts, tokens and probabilities of two decimals, so that it is the
same on every machine; only `timing` speaks of seconds.
"""

from reprlib import repr as short

from labkit.cost import verdict
from labkit.errors import BadInput
from labkit.metrics import Acceptance, acceptance, cost
from labkit.trace import Round, Trace
from labkit.trace_check import LONGEST, SHORTEST
from labkit.viz.states import SlotUse, State, Story, node_statuses, own_token, tree_of
from labkit.viz.svg import probability, visible
from labkit.viz.theme import LOOKS, Status

_LISTED = 8


def quoted(trace: Trace, token: int) -> str:
    """A token in quotes, with its spaces as they are and other white space visible."""
    return "'" + visible(trace.token_text(token)).replace("␣", " ") + "'"


def counted(count: int, noun: str) -> str:
    """ "1 token", "2 tokens"."""
    return f"{count} {noun if count == 1 else noun + 's'}"


def rate(value: float | None) -> str:
    """Two decimals, or n/a where there is nothing to divide by."""
    return "n/a" if value is None else f"{value:.2f}"


def duration(seconds: float) -> str:
    """Three digits at most, in milliseconds below one second."""
    if seconds >= 1:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds < 0.1 else f"{seconds * 1e3:.0f} ms"


def state_sentence(story: Story, state: State) -> str:
    """What has just happened."""
    if state.phase == "start":
        return _start(story)
    if state.phase == "finish":
        return run_sentence(story)
    round_ = story.rounds[state.at]
    words = {
        "draft": _draft,
        "score": _score,
        "verify": lambda story, round_: _verify(story, round_, state),
        "commit": _commit,
        "forget": _forget,
    }[state.phase](story, round_)
    return f"{_place(story, state)}, {state.phase}: {words}{_cut_short(story, state)}"


def round_sentence(story: Story, at: int) -> str:
    """A whole round: "Round 3 of 9: 4 drafted, 3 accepted, ...; KV 41 → 46 → 45 slots."."""
    round_ = story.rounds[at]
    state = story.last_of_round(at + 1)
    statuses = node_statuses(round_, state)[1:]
    parts = [f"{len(statuses)} drafted"] if statuses else ["nothing drafted"]
    cut = _pruned(round_)
    parts += [f"{counted(cut, 'candidate')} pruned"] if cut else []
    order: tuple[Status, ...] = ("accepted", "rejected", "dropped", "pending")
    for status in order:
        count = statuses.count(status)
        if count or (statuses and status == "accepted"):
            parts.append(f"{count} {LOOKS[status].word}")
    parts += _own(story, round_)
    kv = f"; KV {_slots(round_)} slots" if round_.scored else ""
    return f"{_place(story, state)}: {', '.join(parts)}{kv}.{_cut_short(story, state)}"


def tree_sentence(story: Story, at: int) -> str:
    """A whole draft: "Round 3 of 9: 9 nodes drafted, 14 candidates pruned, path 'a' → 'b'
    accepted, ...; the target adds ★ 'c'."."""
    round_, tree = story.rounds[at], story.trees[at]
    state = story.last_of_round(at + 1)
    statuses = node_statuses(round_, state)
    parts = [f"{counted(len(tree) - 1, 'node')} drafted, {tree.depth} deep"]
    cut = _pruned(round_)
    parts += [f"{counted(cut, 'candidate')} pruned"] if cut else []
    kept = [node for node, status in enumerate(statuses) if status == "accepted"]
    words = " → ".join(quoted(story.trace, tree.tokens[node]) for node in kept)
    if round_.verified:
        parts.append(f"path {words} accepted" if kept else "no node accepted")
    rejected = statuses.count("rejected")
    parts += [f"{rejected} rejected"] if rejected else []
    own = own_token(round_)
    added = f"; the target adds {' '.join(_own(story, round_))}" if own else ""
    return f"{_place(story, state)}: {', '.join(parts)}{added}.{_stopped(round_)}"


def mask_sentence(story: Story, at: int) -> str:
    """Who sees whom in the target's one forward over a draft."""
    round_, tree = story.rounds[at], story.trees[at]
    state = story.last_of_round(at + 1)
    if not round_.scored:
        return f"{_place(story, state)}: the target has not read the draft."
    pairs = sum(map(sum, tree.mask))
    return (
        f"{_place(story, state)}, attention mask: {counted(len(tree), 'node')} in one forward; "
        f"each sees the {counted(round_.scored.context, 'committed token')}, its ancestors and "
        f"itself: {pairs} of {len(tree) ** 2} pairs of nodes."
    )


def run_sentence(story: Story) -> str:
    """The whole run in counts."""
    numbers, finished = acceptance(story.trace), story.trace.finished
    end = f"Finished ({finished.reason})" if finished else "The recording was cut short"
    made = counted(len(story.trace.tokens), "new token")
    head = f"{end}: {made} in {counted(numbers.rounds, 'round')}."
    if not numbers.drafted:
        return f"{head} Nothing was drafted: acceptance n/a, {_per_round(numbers)}."
    return (
        f"{head} Drafted {numbers.drafted} ({rate(numbers.drafted_per_round)} per round), accepted "
        f"{numbers.accepted} (rate {rate(numbers.rate)}); {_per_round(numbers)}."
    )


def slots_title(story: Story) -> str:
    """Whose slots they are: recurrent layers have none."""
    return "KV slots of the attention layers" if _recurrent(story) else "KV slots of the target"


def slots_sentence(story: Story, state: State) -> str:
    """How many slots are in use, and what sits in them."""
    uses = [slot.use for slot in story.slots(state)]
    names: dict[SlotUse, str] = {
        "committed": "committed",
        "kept": "kept in this round",
        "speculative": "speculative",
        "forgotten": "just forgotten",
        "free": "free",
    }
    parts = [f"{uses.count(use)} {name}" for use, name in names.items() if uses.count(use)]
    used = len(uses) - uses.count("free") - uses.count("forgotten")
    where = _place(story, state) if state.at >= 0 and state.phase != "finish" else state.phase
    told = f"{where[0].lower()}{where[1:]}: {used} in use ({', '.join(parts) or 'none'})."
    return f"KV slots, {told}{_without_slots(story)}"


def _recurrent(story: Story) -> int:
    return story.trace.prefilled.recurrent_layers if story.trace.prefilled else 0


def _without_slots(story: Story) -> str:
    count = _recurrent(story)
    have = "has no slots: it carries" if count == 1 else "have no slots: each carries"
    return f" {counted(count, 'recurrent layer')} {have} one state." if count else ""


def timing(trace: Trace, *, ar_seconds: float | None) -> str:
    """How long decoding took, beside plain decoding of the same tokens.

    Args:
        ar_seconds: seconds per token of plain decoding, or None when it is not known.
    """
    tokens, spent = len(trace.tokens), cost(trace).decode
    head = f"{counted(tokens, 'token')} in {duration(spent)} (the prompt not counted)"
    if ar_seconds is None or not spent or not tokens:
        return head + "; plain decoding was not measured."
    plain = ar_seconds * tokens
    ratio = plain / spent
    told = f"plain decoding: {duration(plain)}, {duration(ar_seconds)} per token. {verdict(ratio)}"
    slower = "Slower here: " if round(ratio, 2) < 1 else ""
    return f"{slower}{head}; {told}."


def plain_seconds(ar: Trace | float | None) -> float | None:
    """Seconds per token of plain decoding: a number as it is, or measured on a trace.

    Raises:
        BadInput: a number that no clock can have measured.
    """
    if ar is None:
        return None
    if isinstance(ar, Trace):
        spent = cost(ar).decode
        return spent / len(ar.tokens) if ar.tokens and spent else None
    seconds = 0.0 if isinstance(ar, bool) else ar
    if not isinstance(seconds, int | float) or not SHORTEST <= seconds <= LONGEST:
        raise BadInput(
            "seconds per token of plain decoding",
            expected=f"a trace, or a number from {SHORTEST:g} to {LONGEST:g}",
            got=short(ar),
            next_step="give the trace of a run with method 'ar'",
        )
    return float(seconds)


def _place(story: Story, state: State) -> str:
    return f"Round {story.rounds[state.at].index} of {len(story.rounds)}"


def _cut_short(story: Story, state: State) -> str:
    last = story.trace.finished is None and state.index == story.states[-1].index
    return " The recording ends here." if last else ""


def _per_round(numbers: Acceptance) -> str:
    return (
        f"accepted per round {rate(numbers.accepted_per_round)}, committed per round "
        f"{rate(numbers.mean_accepted_length)} (mean accepted length)"
    )


def _start(story: Story) -> str:
    trace, begun = story.trace, story.trace.started
    cached = trace.prefilled.tokens if trace.prefilled else 0
    depth, longest = begun.draft_length, story.longest_tree
    how = f"{begun.method!r} drafts up to {counted(depth, 'token')} deep per round"
    pending = f"; {cached} in the cache, {quoted(trace, trace.prompt[-1])} pending"
    return (
        f"Start: {counted(len(trace.prompt), 'prompt token')}{pending if trace.prompt else ''}. "
        f"Wanted: {counted(begun.max_new_tokens, 'new token')}; "
        f"{how if longest else 'nothing is drafted'}."
    )


def _draft(story: Story, round_: Round) -> str:
    tokens = round_.drafted.tokens[1:]
    if not tokens:
        return "nothing is drafted." + _stopped(round_)
    names = ", ".join(quoted(story.trace, t) for t in tokens[:_LISTED])
    more = f" and {len(tokens) - _LISTED} more" if len(tokens) > _LISTED else ""
    tree = tree_of(round_)
    shape = "" if tree.is_chain else f" in a tree {tree.depth} deep"
    cut = _pruned(round_)
    pruned = f" {counted(cut, 'more candidate')} {'was' if cut == 1 else 'were'} pruned."
    told = f"the drafter proposes {counted(len(tokens), 'token')}{shape}: {names}{more}."
    return told + (pruned if cut else "") + _stopped(round_)


def _pruned(round_: Round) -> int:
    """Candidates that did not become nodes."""
    listed = sum(node < 0 for _, _, _, node in round_.drafted.considered)
    return listed + round_.drafted.unlisted


def _stopped(round_: Round) -> str:
    why = {
        "confidence": " The draft stopped early: the head was not sure enough.",
        "cost": " The draft was kept small: more nodes would have cost more than they bring.",
    }
    return why.get(round_.drafted.stopped, "")


def _score(story: Story, round_: Round) -> str:
    assert round_.scored
    seats = round_.scored.node_slots
    drafted = len(seats) - 1
    read = f"the pending {quoted(story.trace, round_.drafted.tokens[0])}"
    read += f" and {drafted} drafted" if drafted else ""
    return (
        f"one forward of the target reads {read} into {_listed('slot', seats)}; "
        f"KV {round_.scored.slots_before} → {round_.scored.slots_after} slots."
    )


def _verify(story: Story, round_: Round, state: State) -> str:
    assert round_.verified
    trial = round_.verified.trials[state.trials - 1]
    look = LOOKS["accepted" if trial.accepted else "rejected"]
    compared = "is below" if trial.accepted else "is not below"
    return (
        f"test {state.trials}, {quoted(story.trace, round_.drafted.tokens[trial.node])}: "
        f"p {probability(trial.p)}, q {probability(trial.q)}, threshold "
        f"{probability(trial.threshold)}; the draw u {probability(trial.u)} {compared} it. "
        f"{look.glyph} {look.word}."
    )


def _commit(story: Story, round_: Round) -> str:
    assert round_.committed
    own = own_token(round_)
    parts = []
    if len(round_.drafted.tokens) > 1:
        joins = "join" if round_.accepted > 1 else "joins"
        who = counted(round_.accepted, "drafted token") if round_.accepted else "no drafted token"
        parts.append(f"{who} {joins} the text")
    if own and own[1] == "forced":
        parts.append(f"{LOOKS['forced'].glyph} {quoted(story.trace, own[0])} is forced by hand")
    elif own:
        why = "drawn from p, because no draft was rejected here" if parts else "drawn from p"
        if own[1] == "resampled":
            why = "drawn from what p has over q, because the draft was rejected here"
        parts.append(f"the target adds {LOOKS[own[1]].glyph} {quoted(story.trace, own[0])}, {why}")
    else:
        parts.append("the text ends with a drafted token, so the target adds none")
    kept = "" if round_.committed.freed_slots else " All slots of the round stay."
    return "; ".join(parts) + "." + _near_ties(story, round_) + kept + _replayed(round_)


def _replayed(round_: Round) -> str:
    """What recurrent layers had to do because the draft was not accepted whole."""
    assert round_.committed
    count = round_.committed.replayed
    told = counted(count, "token")
    return f" Recurrent layers go back and read {told} again." if count else ""


def _near_ties(story: Story, round_: Round) -> str:
    """Tokens that another order of adding up might have changed."""
    assert round_.committed
    pairs = zip(round_.committed.tokens, round_.committed.near_ties, strict=False)
    names = [quoted(story.trace, token) for token, tie in pairs if tie]
    return f" Near tie: the two best were almost equal at {', '.join(names)}." if names else ""


def _forget(story: Story, round_: Round) -> str:
    assert round_.committed
    freed = round_.committed.freed_slots
    return (
        f"{_listed('slot', freed)} {'is' if len(freed) == 1 else 'are'} forgotten; "
        f"KV {_slots(round_)} slots."
    )


def _own(story: Story, round_: Round) -> list[str]:
    own = own_token(round_)
    if not own:
        return []
    look = LOOKS[own[1]]
    return [f"{look.glyph} {quoted(story.trace, own[0])} {look.word}"]


def _slots(round_: Round) -> str:
    assert round_.scored
    counts = [round_.scored.slots_before, round_.scored.slots_after]
    if round_.committed:
        counts.append(round_.committed.slots_after)
    return " → ".join(map(str, counts))


def _listed(noun: str, numbers: tuple[int, ...]) -> str:
    """ "slot 7", "slots 7–11" when they follow each other, else "slots 7, 9, 12"."""
    if len(numbers) == 1:
        return f"{noun} {numbers[0]}"
    if numbers == tuple(range(numbers[0], numbers[0] + len(numbers))):
        return f"{noun}s {numbers[0]}–{numbers[-1]}"
    return f"{noun}s {', '.join(map(str, numbers))}"
