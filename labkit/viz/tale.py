"""What the live and the static stepper have in common: one trace, its states, its pictures.

Owns: the checks of steps and grains, and what a reader without a browser sees.
Does not know: widgets.
Invariants: a step that does not exist is refused by name.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from labkit.errors import BadInput
from labkit.trace import Trace
from labkit.viz.board import WIDTHS, Board, board, folds, projector_board
from labkit.viz.film import pack
from labkit.viz.notes import Note, Passage, passages
from labkit.viz.picture import Picture
from labkit.viz.sentences import plain_seconds, state_sentence
from labkit.viz.states import Story

Grain = Literal["round", "phase"]
TITLE = "Speculative decoding, step by step"


@dataclass(frozen=True, slots=True)
class Tale:
    """story; ar_seconds: pace of plain decoding or None; widths: page widths to draw for; title:
    the heading; tree: see `labkit.viz.board.board`; notes: passages that point at the pictures."""

    story: Story
    ar_seconds: float | None
    widths: tuple[int, ...]
    title: str
    tree: bool | None = None
    notes: tuple[Passage, ...] = ()

    @classmethod
    def of(
        cls,
        trace: Trace,
        *,
        compare: Trace | float | None,
        width: int | None,
        title: str | None,
        tree: bool | None = None,
        notes: Sequence[Note] = (),
    ) -> "Tale":
        """See `labkit.viz.Stepper`."""
        widths = WIDTHS if width is None else (width,)
        story = Story.of(trace)
        told = passages(story, notes)
        return cls(story, plain_seconds(compare), widths, title or TITLE, tree, told)

    def check_step(self, step: int) -> int:
        """``step``, or the one that a negative number counts from the end.

        Raises:
            BadInput: there is no such step.
        """
        count = len(self.story.states)
        if not -count <= step < count:
            raise BadInput(
                "step",
                expected=f"a number from 0 to {count - 1}",
                got=repr(step),
                next_step="ask stepper.steps how many there are",
            )
        return step % count

    def step_of_round(self, number: int) -> int:
        """The last step of round ``number``.

        Raises:
            BadInput: there is no such round.
        """
        if not 1 <= number <= len(self.story.rounds):
            raise BadInput(
                "round",
                expected=f"a number from 1 to {len(self.story.rounds)}",
                got=repr(number),
                next_step="choose one of the recorded rounds",
            )
        return self.story.last_of_round(number).index

    def film(self) -> str:
        """Every step, drawn for every width, for a room, and with large trees unfolded."""
        boards = [self._board(width) for width in self.widths]
        if folds(self.story, self.tree):
            boards += [self._board(width, unfolded=True) for width in self.widths]
        boards.append(projector_board(self.story, ar_seconds=self.ar_seconds, tree=self.tree))
        return pack(self.story, boards, title=TITLE, label=self.title, notes=self.notes)

    def _board(self, width: int, *, unfolded: bool = False) -> Board:
        return board(
            self.story,
            width=width,
            ar_seconds=self.ar_seconds,
            tree=self.tree,
            unfolded=unfolded,
        )

    def picture(self, step: int, *, note: str = "") -> Picture:
        """All panels at ``step``."""
        state = self.story.states[self.check_step(step)]
        drawn = self._board(self.widths[0]).scene(state)
        sentence = state_sentence(self.story, state)
        told = tuple((p.place, p.note.words) for p in self.notes)
        return Picture(drawn.svg(title=TITLE, description=sentence), sentence, note, told)

    def still(self, step: int, *, note: str = "") -> Picture:
        """What stands on a page that cannot step: at step 0, where there is nothing to see yet,
        the last draft that was judged instead, and how the run ended."""
        judged = 0 if step else self._judged()
        if not judged:
            return self.picture(step or -1, note=note)
        shown = self.picture(judged, note=note)
        end = state_sentence(self.story, self.story.states[-1])
        return replace(shown, sentence=f"{end} In the picture: {shown.sentence}")

    def _judged(self) -> int:
        """The end of the last round with a draft; 0: there is none, or nobody judged it."""
        tests = [state.at + 1 for state in self.story.states if state.phase == "verify"]
        return self.step_of_round(tests[-1]) if tests else 0


def check_grain(grain: str) -> str:
    """``grain`` if it is one.

    Raises:
        BadInput: it is not.
    """
    if grain not in get_args(Grain):
        raise BadInput(
            "grain",
            expected=" or ".join(get_args(Grain)),
            got=repr(grain),
            next_step="choose one of the two",
        )
    return grain
