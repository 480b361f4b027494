"""Drafts and verdicts of one round in words and tables.

Owns: the words. Does not know: models, settings, widgets.
Invariants: pure functions of recorded events; numbers have two decimals.
"""

from collections.abc import Callable

from labkit.events import Drafted
from labkit.lab.tables import Table
from labkit.trace import Round
from labkit.viz.states import node_statuses, own_token, tree_of
from labkit.viz.svg import probability, visible
from labkit.viz.theme import LOOKS

Words = Callable[[int], str]
"""Token id -> its text."""


def shown(words: Words, token: int) -> str:
    """A token as it is shown, spaces visible: `␣the`."""
    return f"`{visible(words(token)).replace('`', chr(39))}`"


def guesses(drafted: Drafted, words: Words, *, by: str) -> Table:
    """A draft that nobody has judged yet, node by node.

    Args:
        by: who drafted.
    """
    rows = []
    for node, token in enumerate(drafted.tokens):
        parent = drafted.parents[node]
        if not node:
            rows.append(("0", shown(words, token), "the text so far ends here", ""))
            continue
        after = f"after {parent} {shown(words, drafted.tokens[parent])}"
        rows.append((str(node), shown(words, token), after, _q(drafted, node)))
    count = len(drafted.tokens) - 1
    listed = " ".join(shown(words, token) for token in drafted.tokens[1:])
    who = "You offer" if by == "you" else f"{by} offers"
    many = "1 guess" if count == 1 else f"{count} guesses"
    sentence = (
        f"{who} {many}: {listed}. The target has not judged this draft."
        if count
        else f"{who} nothing. The target writes its next token alone."
    )
    return Table(("node", "guess", "place", "the drafter's own probability"), tuple(rows), sentence)


def _q(drafted: Drafted, node: int) -> str:
    if not drafted.q_top or not drafted.q_top[node]:
        return "not told"
    found = dict(drafted.q_top[node]).get(drafted.tokens[node])
    return "small" if found is None else probability(found)


def verdicts(round_: Round, words: Words) -> Table:
    """What the target said of every guess of a round, and what it would have said itself."""
    tree, rows = tree_of(round_), []
    trials = {t.node: t for t in round_.verified.trials} if round_.verified else {}
    tops = round_.scored.p_top if round_.scored else ()
    for node, status in enumerate(node_statuses(round_, None)):
        if not node:
            continue
        top = tops[tree.parents[node]] if tops else ()
        token, trial = tree.tokens[node], trials.get(node)
        test = "not reached"
        if trial:
            test = f"chance {probability(trial.threshold)}, draw u {probability(trial.u)}"
        said = f"{shown(words, top[0][0])} {probability(top[0][1])}" if top else ""
        p = dict(top).get(token)
        shown_p = probability(p) if p is not None else _less(top)
        look = LOOKS[status]
        rows.append(
            (f"{node} {shown(words, token)}", shown_p, test, f"{look.glyph} {look.word}", said)
        )
    heads = ("guess", "the target's p", "accept test", "verdict", "its likeliest token there")
    return Table(heads, tuple(rows), verdict(round_, words))


def _less(top: tuple[tuple[int, float], ...]) -> str:
    least = probability(top[-1][1]) if top else "<0.01"
    return least if least.startswith("<") else f"below {least}"


def verdict(round_: Round, words: Words) -> str:
    """A round in one sentence."""
    own = own_token(round_)
    if round_.forced and own:
        said = _likeliest(round_, words)
        return (
            f"Round {round_.index}: you wrote {LOOKS['forced'].glyph} {shown(words, own[0])} by "
            f"hand. It is not drawn from the target{said}."
        )
    drafted = len(round_.drafted.tokens) - 1
    kept = f"{round_.accepted} of {drafted} guesses stay" if drafted else "nothing was guessed"
    added = (
        f"; the target adds {LOOKS[own[1]].glyph} {shown(words, own[0])} {LOOKS[own[1]].word}"
        if own
        else "; the text ends with a guess"
    )
    return f"Round {round_.index}: {kept}{added}."


def _likeliest(round_: Round, words: Words) -> str:
    tops = round_.scored.p_top if round_.scored else ()
    if not tops or not tops[0]:
        return ""
    token, p = tops[0][0]
    mine = dict(tops[0]).get(round_.committed.tokens[0] if round_.committed else -1)
    gave = probability(mine) if mine is not None else _less(tops[0])
    return f", which gave it {gave}; its likeliest was {shown(words, token)} {probability(p)}"
