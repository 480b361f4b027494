"""The present round of a workbench, in pictures and in one sentence.

Owns: which pictures, and the words. Does not know: how anything is decoded, drawn or kept.
Invariants: both tell of the same moment; looking changes nothing.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from labkit.errors import BadInput
from labkit.events import AnyEvent
from labkit.lab.courses import Step
from labkit.lab.retold import retold
from labkit.lab.told import verdict
from labkit.trace import Round, Trace
from labkit.viz.sentences import counted
from labkit.viz.views import draft_tree, kv_slots, ribbon

if TYPE_CHECKING:
    from labkit.lab.live import Workbench


def trace(bench: "Workbench", steps: Sequence[Step], *more: AnyEvent) -> Trace:
    """``steps`` of the bench as a recorded run. more: events of a round that is not over."""
    return retold(
        bench.lab,
        bench.prompt,
        steps,
        settings=bench.settings,
        prefilled=bench.prefilled,
        asked=bench.asked,
        chat=bench.chat,
        more=more,
    )


def last_round(bench: "Workbench") -> Round:
    """The round after which we stand. BadInput: there was none yet."""
    if not bench.steps:
        raise BadInput(
            "round",
            expected="a round that was judged",
            got="none so far",
            next_step="draft and verify one",
        )
    step = bench.steps[-1]
    return Round(bench.at, step.drafted, step.scored, step.verified, step.committed)


def pictures(bench: "Workbench", *, slots: bool, width: int, lines: int) -> list[Any]:
    """The end of the ribbon, the draft as a tree where it branches, and the KV slots where they
    are asked for; of the text up to here and the draft that waits."""
    waiting = [bench.pending.drafted] if bench.pending else []
    now = trace(bench, bench.steps, *waiting)
    drawn = [ribbon(now, width=width, lines=lines)]
    tree = now.rounds[-1].drafted.parents if now.rounds else (-1,)
    if tree != tuple(range(-1, len(tree) - 1)):
        drawn.append(draft_tree(now, round=len(now.rounds), width=width))
    if slots:
        drawn.append(kv_slots(now, width=width))
    return drawn


def sentence(bench: "Workbench") -> str:
    """Where we stand, what the last round brought, whether a draft waits, and the law."""
    said = f" {verdict(last_round(bench), bench.lab.token_text)}" if bench.steps else ""
    waits = " A draft waits for its verdict." if bench.pending else ""
    end = f" The text ends here ({bench.ended})." if bench.ended else ""
    return f"{_where(bench)}.{said}{waits}{end} {bench.law}".replace("`", "'")


def _where(bench: "Workbench") -> str:
    rounds = bench.branches[bench.here]
    if not rounds:
        return f"Branch {bench.here}: nothing decoded yet"
    if not bench.at:
        return f"Branch {bench.here}, back at the prompt: {counted(rounds, 'round')} still ahead"
    made = counted(len(bench.tokens), "new token")
    return f"Branch {bench.here}, after round {bench.at} of {rounds}: {made}"
