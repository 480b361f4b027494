"""Passages of a lesson that point at a part of the pictures.

Owns: the parts that can be pointed at, and when a passage is current.
Does not know: drawing, widgets, the lesson.
Invariants: a passage is plain text, so a page that cannot point still has it; a part or step that
cannot exist is refused by name, one that this run happens not to have is not.

    Note("The dot is the random draw.", "u", phase="verify")

Links in a markdown cell can point too: ``[the tree](#labkit-tree)`` outlines the draft tree of the
steppers in sight. Where outputs live in a frame of their own (Colab), and where no script runs,
such a link does nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

from labkit.errors import BadInput
from labkit.viz.states import Phase, State, Story

# what is pointed at: (the panel that it is in, its name for a reader)
PARTS: dict[str, tuple[str, str]] = {
    "ribbon": ("ribbon", "the text"),
    "tree": ("tree", "the draft tree"),
    "inspector": ("inspector", "the accept tests"),
    "threshold": ("inspector", "the threshold min(1, p/q)"),
    "u": ("inspector", "the random draw u"),
    "residual": ("inspector", "the residual"),
    "slots": ("slots", "the KV slots"),
    "mask": ("mask", "the attention mask"),
    "timeline": ("timeline", "the time"),
    "totals": ("totals", "the totals"),
}


@dataclass(frozen=True, slots=True)
class Note:
    """One short passage and the part that it speaks of.

    Args:
        words: plain text.
        part: one of `PARTS`.
        step: the step that it belongs to; negative numbers count from the end.
        phase: or every step of this phase ("draft", "score", "verify", "commit", "forget",
            "start", "finish"); without step, phase and round it belongs everywhere.
        round: only of this round (1 is the first).

    Raises:
        BadInput: no words, or a part or a phase that does not exist.
    """

    words: str
    part: str
    step: int | None = None
    phase: str | None = None
    round: int | None = None

    def __post_init__(self) -> None:
        _check("part of a note", self.part, PARTS)
        if self.phase is not None:
            _check("phase of a note", self.phase, get_args(Phase))
        if not self.words.strip():
            raise BadInput(
                "note", expected="words", got=repr(self.words), next_step="say something"
            )

    def holds_at(self, state: State, *, step: int | None) -> bool:
        """Does the passage belong to ``state``? step: its own, counted from the beginning."""
        if step is not None and state.index != step:
            return False
        if self.phase is not None and state.phase != self.phase:
            return False
        ours = state.at == (self.round or 0) - 1 and state.phase != "finish"
        return self.round is None or ours


@dataclass(frozen=True, slots=True)
class Passage:
    """A note in one run. states: where it is current; everywhere: is that every step?"""

    note: Note
    states: tuple[int, ...]
    everywhere: bool

    @property
    def place(self) -> str:
        """The part, in words, and where to find it."""
        name = PARTS[self.note.part][1]
        if self.everywhere:
            return name
        if not self.states:
            return f"{name}; does not happen in this run"
        return f"{name}, step {self.states[0]}"

    def record(self) -> dict[str, Any]:
        """For the film: words, place, panel, part and states (null is everywhere)."""
        return {
            "words": self.note.words,
            "place": self.place,
            "panel": PARTS[self.note.part][0],
            "part": self.note.part,
            "states": None if self.everywhere else list(self.states),
        }


def passages(story: Story, notes: Sequence[Note]) -> tuple[Passage, ...]:
    """``notes``, each with its steps in this run.

    Raises:
        BadInput: a step that the run does not have.
    """
    return tuple(_passage(story, note) for note in notes)


def _passage(story: Story, note: Note) -> Passage:
    count, step = len(story.states), note.step
    if step is not None:
        if not -count <= step < count:
            raise BadInput(
                "step of a note",
                expected=f"a number from 0 to {count - 1}",
                got=repr(step),
                next_step="name a phase instead, which every run has at its own steps",
            )
        step %= count
    states = tuple(
        s.index
        for s in story.states
        if note.holds_at(s, step=step) and _is_there(story, s, note.part)
    )
    anywhere = step is None and note.phase is None and note.round is None
    return Passage(note, states, anywhere and PARTS[note.part][0] == note.part)


def _is_there(story: Story, state: State, part: str) -> bool:
    """Panels always are; draws, thresholds and residuals when there is one."""
    if PARTS[part][0] == part:
        return True
    if state.at < 0 or state.phase in ("start", "draft", "finish"):
        return False
    verified = story.rounds[state.at].verified
    if part == "residual":
        drawn = verified is not None and verified.resampled and bool(verified.residual_top)
        return drawn and state.phase in ("commit", "forget")
    known = verified is not None and bool(verified.trials)
    return known and (part == "threshold" or state.phase != "score")


def _check(what: str, got: str, known: Any) -> None:
    if got not in known:
        raise BadInput(
            what,
            expected=", ".join(known),
            got=repr(got),
            next_step="choose one of these",
        )
