"""Exercises that answer back: right, or which mistake it probably is.

Owns: the cases and the likely mistakes. Does not know: lessons; how answers are compared; the
words, which are in ``strings/``.
Invariants: a check never raises because of what a learner wrote; an exercise that has not been
begun is neither right nor wrong.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from labkit.lab import broken
from labkit.lab.judging import Exercise, Result, copies, same_number, same_row, short
from labkit.lab.laws import first_token, largest_gap
from labkit.lab.wording import say
from labkit.trace import Round, Trace

# --- lesson 00: read one round ------------------------------------------------------------------


def read_round(
    trace: Trace,
    *,
    number: int,
    drafted: int | None,
    accepted: int | None,
    own: str | None,
    lang: str = "en",
) -> Result:
    """What a learner read off round ``number``: how many tokens were drafted and accepted, and
    the text of the target's own token."""
    if drafted is None or accepted is None or own is None:
        return Result("read_round", None, say("checks.not_answered", lang=lang))
    rounds = {r.index: r for r in trace.rounds}
    if number not in rounds:
        told = say("checks.read_round.no_round", lang=lang, round=number, rounds=len(rounds))
        return Result("read_round", False, told)
    round_ = rounds[number]
    mistake = _misread(trace, round_, drafted, accepted, own)
    told = say(
        f"checks.read_round.{mistake or 'passed'}",
        lang=lang,
        round=number,
        drafted=drafted,
        accepted=accepted,
        own=repr(_own(trace, round_)),
    )
    return Result("read_round", mistake is None, told)


def _own(trace: Trace, round_: Round) -> str:
    return trace.token_text(round_.committed.tokens[-1]) if round_.committed else ""


def _misread(trace: Trace, round_: Round, drafted: int, accepted: int, own: str) -> str | None:
    nodes = round_.drafted.tokens
    if drafted != len(nodes) - 1:
        return "drafted"
    if accepted != round_.accepted:
        return "own_counted" if accepted == round_.accepted + 1 else "accepted"
    if own.strip() == _own(trace, round_).strip():
        return None
    refused = nodes[round_.accepted + 1 : round_.accepted + 2]
    return (
        "own_rejected" if own.strip() in (trace.token_text(t).strip() for t in refused) else "own"
    )


# --- lesson 01: tokens per round ----------------------------------------------------------------

_EXPECTED = Exercise(
    "expected_tokens",
    cases=[(0.8, 4), (0.5, 1), (0.3, 3), (0.0, 5), (1.0, 2), (0.6, 0)],
    right=lambda a, k: sum(a**i for i in range(k + 1)),
    mistakes={
        "no_own": lambda a, k: sum(a**i for i in range(1, k + 1)),
        "independent": lambda a, k: 1 + a * k,
        "independent_no_own": lambda a, k: a * k,
        "too_long": lambda a, k: sum(a**i for i in range(k + 2)),
        "last_only": lambda a, k: a**k,
    },
    same=same_number,
    show=short,
)


def expected_tokens(learner: Callable[[float, int], float], *, lang: str = "en") -> Result:
    """Tokens that a round adds on average: ``learner(alpha, K)``."""
    return _EXPECTED.judge(learner, lang=lang)


# --- lesson 02: the accept rule -----------------------------------------------------------------

_ACCEPT = Exercise(
    "accept",
    cases=[
        (0.5, 0.2, 0.99),
        (0.2, 0.5, 0.39),
        (0.2, 0.5, 0.41),
        (0.2, 0.5, 0.25),
        (0.0, 0.4, 0.0),
        (0.3, 1.0, 0.31),
        (0.3, 1.0, 0.29),
        (0.1, 0.1, 0.95),
        (0.9, 0.3, 0.4),
    ],
    right=lambda p, q, u: u < min(1.0, p / q),
    mistakes={
        "swapped": lambda p, q, u: p == 0 or u < min(1.0, q / p),
        "threshold": lambda p, q, u: p >= q,
        "ignores_q": lambda p, q, u: u < p,
        "reversed": lambda p, q, u: u > min(1.0, p / q),
        "chance": lambda p, q, u: min(1.0, p / q),
        "always": lambda p, q, u: True,
        "never": lambda p, q, u: False,
    },
    same=same_number,
    show=short,
)


def accept(learner: Callable[[float, float, float], bool], *, lang: str = "en") -> Result:
    """The accept test: ``learner(p, q, u)`` for one drafted token."""
    return _ACCEPT.judge(learner, lang=lang)


def _row(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


_PAIRS = [
    (_row(0.6, 0.3, 0.1), _row(0.2, 0.5, 0.3)),
    (_row(0.1, 0.2, 0.7), _row(0.7, 0.2, 0.1)),
    (_row(0.25, 0.25, 0.25, 0.25), _row(0.4, 0.3, 0.2, 0.1)),
    (_row(0.0, 1.0), _row(0.5, 0.5)),
    (_row(0.05, 0.9, 0.05), _row(0.3, 0.3, 0.4)),
]


def _negative(p: Tensor, q: Tensor) -> Tensor:
    return p - q


_RESIDUAL = Exercise(
    "residual",
    cases=_PAIRS,
    right=broken.RIGHT.after,
    mistakes={
        "swapped": lambda p, q: broken.RIGHT.after(q, p),
        "negative": _negative,
        "absolute": broken.FAULTS["no_clip"].after,
        "not_normalised": lambda p, q: (p - q).clamp(min=0),
        "from_p": broken.FAULTS["from_p"].after,
        "softmax": lambda p, q: torch.softmax(p - q, -1),
    },
    same=same_row,
    show=short,
)


def residual(learner: Callable[[Tensor, Tensor], Tensor], *, lang: str = "en") -> Result:
    """What a rejection leaves: ``learner(p, q)`` for two rows of probabilities."""
    result = _RESIDUAL.judge(learner, lang=lang, digits=_digits(learner))
    if result.passed is False and _has_negative(learner):
        return Result("residual", False, say("checks.residual.negative", lang=lang))
    return result


def _has_negative(learner: Callable[[Tensor, Tensor], Tensor]) -> bool:
    """Negative or infinite numbers, however they came about (p - q sums to 0)."""
    try:
        rows = [torch.as_tensor(learner(*copies(pair))) for pair in _PAIRS]
        return any(bool((row < -1e-9).any() or not row.isfinite().all()) for row in rows)
    except Exception:  # the ordinary judgement has told the learner already
        return False


def _digits(learner: Callable[[Tensor, Tensor], Tensor]) -> int:
    """To how many decimal places the round's law equals p, with the learner's residual in it."""
    rule = broken.Rule("learner's", broken.RIGHT.accept, learner)
    try:
        laws = [(first_token(rule, p=p.tolist(), q=q.tolist()), p.tolist()) for p, q in _PAIRS]
        gap = max(largest_gap(ours, right) for ours, right in laws)
    except Exception:  # not a residual at all: the ordinary judgement says so
        return 0
    return next((n for n in (12, 9, 6, 3) if gap < 0.5 * 10**-n), 0)


# --- lesson 03: who is guilty -------------------------------------------------------------------

SUSPECTED = ("swapped", "threshold", "from_p", "no_clip")


def guilty(suspect: str | None, fault: str | None, *, lang: str = "en") -> Result:
    """Which of the four verifiers is wrong, and how."""
    if suspect is None or fault is None:
        return Result("guilty", None, say("checks.not_answered", lang=lang))
    letter = suspect.strip().upper()
    key = "passed" if fault == "from_p" else fault
    if letter != "C":
        key = "innocent" if letter in broken.suspects() else "unknown"
    elif fault not in SUSPECTED:
        key = "unknown_fault"
    told = say(f"checks.guilty.{key}", lang=lang, suspect=letter, faults=", ".join(SUSPECTED))
    return Result("guilty", key == "passed", told)


# --- lesson 04: slots after a round -------------------------------------------------------------

Slots = tuple[list[int], list[int]]


def _after_round(committed: list[int], nodes: list[int], path: list[int]) -> Slots:
    kept = [nodes[i] for i in path]
    return committed + kept, [slot for slot in nodes if slot not in kept]


def _with_own_token(committed: list[int], nodes: list[int], path: list[int]) -> Slots:
    beyond = next((s for i, s in enumerate(nodes) if i not in path), max(nodes) + 1)
    kept = [nodes[i] for i in path] + [beyond]
    return committed + kept, [slot for slot in nodes if slot not in kept]


def _sorted(committed: list[int], nodes: list[int], path: list[int]) -> Slots:
    kept, freed = _after_round(committed, nodes, path)
    return sorted(kept), freed


_AFTER_ROUND = Exercise(
    "after_round",
    cases=[
        ([0, 1, 2], [3, 4, 5, 6], [0, 1, 2]),
        ([0, 1, 2], [3, 4, 5, 6], [0]),
        ([0, 1, 2], [3, 4, 5, 6], [0, 1, 2, 3]),
        ([0, 1, 5, 3], [2, 4, 6, 7, 8], [0, 2, 4]),
        ([4, 2], [0, 1, 3], [0, 2]),
    ],
    right=_after_round,
    mistakes={
        "no_root": lambda c, n, p: _after_round(c, n, p[1:]),
        "own_token": _with_own_token,
        "keeps_all": lambda c, n, p: (c + n, []),
        "first_ones": lambda c, n, p: _after_round(c, n, list(range(len(p)))),
        "sorted": _sorted,
    },
    same=lambda ours, answer: [list(x) for x in ours] == [list(x) for x in answer],
    show=short,
)


def after_round(
    learner: Callable[[list[int], list[int], list[int]], Slots], *, lang: str = "en"
) -> Result:
    """Slots after a round: ``learner(committed, node_slots, path) -> (committed, freed)``."""
    kept, _ = _after_round(*_AFTER_ROUND.cases[3])
    result = _AFTER_ROUND.judge(learner, lang=lang, length=len(kept))
    if result.passed is not False:
        return result
    try:
        answers = [learner(*copies(case)) for case in _AFTER_ROUND.cases]
        pairs = [(list(kept), list(freed)) for kept, freed in answers]
    except (TypeError, ValueError):
        return Result("after_round", False, say("checks.after_round.shape", lang=lang))
    except Exception:  # the ordinary judgement has told the learner already
        return result
    rights = [_after_round(*case) for case in _AFTER_ROUND.cases]
    if all(kept == right for (kept, _), (right, _) in zip(pairs, rights, strict=True)):
        return Result("after_round", False, say("checks.after_round.freed", lang=lang))
    return result


# --- lesson 05: the mask of a tree --------------------------------------------------------------

Mask = list[list[bool]]


def _above(parents: Sequence[int], node: int) -> list[int]:
    """The node, its parent, and so on up to the root."""
    path = []
    while node != -1:
        path.append(node)
        node = parents[node]
    return path


def _mask(parents: Sequence[int], sees: Callable[[int, int], bool]) -> Mask:
    return [[sees(i, j) for j in range(len(parents))] for i in range(len(parents))]


def _depths(parents: Sequence[int]) -> list[int]:
    return [len(_above(parents, node)) for node in range(len(parents))]


_TREE_MASK = Exercise(
    "tree_mask",
    cases=[
        ([-1, 0, 1, 2],),
        ([-1, 0, 0, 1, 2],),
        ([-1, 0, 0, 1, 1, 2],),
        ([-1, 0, 0, 0, 1, 1, 2, 4, 4, 7],),
        ([-1],),
    ],
    right=lambda t: _mask(t, lambda i, j: j in _above(t, i)),
    mistakes={
        "causal": lambda t: _mask(t, lambda i, j: j <= i),
        "not_itself": lambda t: _mask(t, lambda i, j: j != i and j in _above(t, i)),
        "parent_only": lambda t: _mask(t, lambda i, j: j in (i, t[i])),
        "no_root": lambda t: _mask(t, lambda i, j: j == i or (j > 0 and j in _above(t, i))),
        "by_depth": lambda t: _mask(t, lambda i, j: j == i or _depths(t)[j] < _depths(t)[i]),
        "transposed": lambda t: _mask(t, lambda i, j: i in _above(t, j)),
    },
    same=lambda ours, answer: [[bool(x) for x in row] for row in answer] == ours,
    show=lambda value: short(value).replace("True", "1").replace("False", "0"),
)


def tree_mask(learner: Callable[[list[int]], Mask], *, lang: str = "en") -> Result:
    """Who may look at whom in a tree: ``learner(parents) -> rows of True and False``."""
    return _TREE_MASK.judge(learner, lang=lang)


# --- lesson 06: what a head reads, and what its words mean ---------------------------------------

Triples = list[tuple[int, int, int]]

_PAIRS_READ = Exercise(
    "pairs",
    cases=[(4,), (2,), (7,), (1,)],
    right=lambda n: [(t - 1, t, t + 1) for t in range(1, n)],
    mistakes={
        "same_place": lambda n: [(t, t, t + 1) for t in range(n - 1)],
        "same_place_late": lambda n: [(t, t, t + 1) for t in range(1, n)],
        "first_token": lambda n: [(t - 1, t, t + 1) for t in range(n)],
        "last_pair": lambda n: [(t - 1, t, t + 1) for t in range(1, n - 1)],
        "guesses_itself": lambda n: [(t - 1, t, t) for t in range(1, n)],
        "swapped": lambda n: [(t, t - 1, t + 1) for t in range(1, n)],
    },
    same=lambda ours, answer: [tuple(row) for row in answer] == ours,
    show=short,
)


def pairs(learner: Callable[[int], Triples], *, lang: str = "en") -> Result:
    """What a head reads of n tokens: ``learner(n) -> [(state, token, guessed token), ...]``."""
    return _PAIRS_READ.judge(learner, lang=lang)


_TO_TARGET = Exercise(
    "to_target",
    cases=[
        (0, [3, 6, 9, 17]),
        (2, [3, 6, 9, 17]),
        (3, [3, 6, 9, 17]),
        (1, [0, 0, 0]),
        (2, [0, 5, 5]),
    ],
    right=lambda i, d2t: i + d2t[i],
    mistakes={
        "absolute": lambda i, d2t: d2t[i],
        "same": lambda i, d2t: i,
        "minus": lambda i, d2t: d2t[i] - i,
    },
    same=same_number,
    show=short,
)


def to_target(learner: Callable[[int, list[int]], int], *, lang: str = "en") -> Result:
    """The target's id of a head's word: ``learner(draft_id, d2t)``."""
    draft_id, d2t = _TO_TARGET.cases[2]
    right = _TO_TARGET.right(draft_id, d2t)
    return _TO_TARGET.judge(learner, lang=lang, word=draft_id, target=right)


# --- lesson 07: what a column of the training-time test reads ------------------------------------

_UNROLLED = Exercise(
    "unrolled",
    cases=[(0, 0), (3, 0), (3, 1), (0, 2), (5, 3)],
    right=lambda c, s: (c + 1 + s, c + 2 + s, c + 1 + s),
    mistakes={
        "reads_itself": lambda c, s: (c + s, c + 1 + s, c + 1 + s),
        "guesses_itself": lambda c, s: (c + 1 + s, c + 1 + s, c + 1 + s),
        "stands_still": lambda c, s: (c + 1, c + 2, c + 1 + s),
        "true_only": lambda c, s: (c + 1 + s, c + 2 + s, c + 1),
        "not_itself": lambda c, s: (c + 1 + s, c + 2 + s, c + s),
    },
    same=lambda ours, answer: tuple(answer) == ours,
    show=short,
)


def unrolled(learner: Callable[[int, int], tuple[int, int, int]], *, lang: str = "en") -> Result:
    """Column c in step s: ``learner(c, s) -> (token read, token guessed, pairs seen)``."""
    return _UNROLLED.judge(learner, lang=lang)


# --- lesson 08: what a head hands on -------------------------------------------------------------

Rows = tuple[Tensor, Tensor]


def _rms(x: Tensor) -> Tensor:
    return x / x.pow(2).mean().sqrt()


_HANDED_ON = Exercise(
    "handed_on",
    cases=[
        (torch.tensor(x, dtype=torch.float64), torch.tensor(w, dtype=torch.float64), switch)
        for x, w in (((3.0, 4.0), (1.0, 1.0)), ((-1.0, 2.0, 2.0), (0.5, 1.0, 2.0)))
        for switch in (False, True)
    ],
    right=lambda x, w, switch: (_rms(x) * w, _rms(x) * w if switch else x),
    mistakes={
        "swapped": lambda x, w, switch: (_rms(x) * w, x if switch else _rms(x) * w),
        "always": lambda x, w, switch: (_rms(x) * w, _rms(x) * w),
        "never": lambda x, w, switch: (_rms(x) * w, x),
        "output_too": lambda x, w, switch: (_rms(x) * w,) * 2 if switch else (x, x),
        "no_weight": lambda x, w, switch: (_rms(x), _rms(x) if switch else x),
        "length": lambda x, w, switch: (x / x.norm() * w, x / x.norm() * w if switch else x),
    },
    same=lambda ours, answer: all(same_row(a, b) for a, b in zip(ours, answer, strict=True)),
    show=lambda value: ", ".join(map(short, value)) if isinstance(value, tuple) else short(value),
)


def handed_on(learner: Callable[[Tensor, Tensor, bool], Rows], *, lang: str = "en") -> Result:
    """``learner(x, weight, norm_output) -> (row for the output layer, row for the next step)``."""
    return _HANDED_ON.judge(learner, lang=lang)


# --- lesson 09: what a recurrent layer reads again -----------------------------------------------

_READ_AGAIN = Exercise(
    "read_again",
    cases=[(4, 2), (4, 4), (4, 0), (1, 1), (3, 1), (1, 0)],
    right=lambda drafted, accepted: 0 if accepted == drafted else accepted + 1,
    mistakes={
        "always": lambda drafted, accepted: accepted + 1,
        "no_pending": lambda drafted, accepted: 0 if accepted == drafted else accepted,
        "no_pending_always": lambda drafted, accepted: accepted,
        "rejected": lambda drafted, accepted: drafted - accepted,
        "all": lambda drafted, accepted: 0 if accepted == drafted else drafted + 1,
        "never": lambda drafted, accepted: 0,
    },
    same=same_number,
    show=short,
)


def read_again(learner: Callable[[int, int], int], *, lang: str = "en") -> Result:
    """Tokens that a recurrent layer reads a second time: ``learner(drafted, accepted)``."""
    return _READ_AGAIN.judge(learner, lang=lang)


# --- lesson 12: a drafter of one's own -----------------------------------------------------------


def _copied(tokens: list[int], k: int, *, among: Callable[[list[int]], int]) -> list[int]:
    """What followed one of the earlier places of the last token; ``among`` says which."""
    places = [i for i, token in enumerate(tokens[:-1]) if token == tokens[-1]]
    return tokens[among(places) + 1 :][:k] if places else []


_COPYCAT = Exercise(
    "copycat",
    cases=[
        ([5, 6, 7, 5, 6], 2),
        ([1, 2, 3, 1, 4, 4, 1], 1),
        ([8, 9, 8, 9, 8], 3),
        ([1, 2, 3], 4),
        ([4], 2),
    ],
    right=lambda tokens, k: _copied(tokens, k, among=max),
    mistakes={
        "earliest": lambda tokens, k: _copied(tokens, k, among=min),
        "with_itself": lambda tokens, k: [tokens[-1], *_copied(tokens, k, among=max)][:k],
        "too_long": lambda tokens, k: _copied(tokens, len(tokens), among=max),
        "found_itself": lambda tokens, k: [],
        "repeats": lambda tokens, k: _copied(tokens, k, among=max) or [tokens[-1]] * k,
    },
    same=lambda ours, answer: list(answer) == ours,
    show=short,
)


def copycat(learner: Callable[[list[int], int], list[int]], *, lang: str = "en") -> Result:
    """A drafter: ``learner(tokens, k) -> at most k guesses``, copied from what followed the latest
    earlier place of the last token."""
    return _COPYCAT.judge(learner, lang=lang)
