"""The branches of one text, and where one stands on them.

Owns: which rounds each branch has, the present place, the names of branches.
Does not know: what a round is made of, models, settings.
Invariants: nothing is ever lost: a round that is written where a later one stands begins a new
branch; the present place is on the present branch.

    main       1   2   3   4          rewind(2), and a round is written there
    branch 2   1   2   3'
"""

from collections.abc import Callable

from labkit.errors import BadInput, one_of, require
from labkit.ids import numbered
from labkit.lab.courses import Step


class Growth:
    """A text of no rounds, at first; it grows by `write`.

    Attributes:
        here: the branch one stands on. at: rounds up to there.
    """

    def __init__(self) -> None:
        self.here, self.at = "main", 0
        self._courses: dict[str, tuple[Step, ...]] = {self.here: ()}

    @property
    def steps(self) -> tuple[Step, ...]:
        """The rounds up to where one stands."""
        return self._courses[self.here][: self.at]

    @property
    def sizes(self) -> dict[str, int]:
        """Every branch and how many rounds it has."""
        return {name: len(steps) for name, steps in self._courses.items()}

    def of(self, name: str) -> tuple[Step, ...]:
        """All rounds of a branch. BadInput: there is none of that name."""
        known = one_of(self._courses, name, name="branch", next_step="choose one of these")
        return self._courses[known]

    def write(self, step: Step) -> None:
        """The text goes on with ``step``: on this branch, or where later rounds stand, on a new
        one."""
        course = (*self.steps, step)
        if self.at < len(self._courses[self.here]):
            self.here = self._free_name()
        self._courses[self.here] = course
        self.at = len(course)

    def rewind(self, round: int) -> None:
        """Stand after ``round`` of this branch. BadInput: it has none of that number."""
        last = len(self._courses[self.here])
        help_ = "choose a round of this branch, or switch to another one"
        self.at = numbered(round, first=0, last=last, name="round", next_step=help_)

    def branch(self, name: str | None) -> str:
        """Begin a branch where one stands; its name. BadInput: the name is taken, or no text."""
        require(name is None or isinstance(name, str), "name of a branch", "text", name)
        name = name or self._free_name()
        if name in self._courses:
            raise BadInput(
                "name of a branch",
                expected="a new one",
                got=repr(name),
                next_step=f"choose another than {', '.join(self._courses)}",
            )
        self._courses[name] = self.steps
        self.here = name
        return name

    def switch(self, name: str) -> None:
        """Stand at the end of another branch. BadInput: there is none of that name."""
        self.at, self.here = len(self.of(name)), name

    def mark(self) -> Callable[[], None]:
        """Remember this moment: what comes back, called, makes everything as it is now."""
        courses, here, at = dict(self._courses), self.here, self.at

        def back() -> None:
            self._courses, self.here, self.at = courses, here, at

        return back

    def _free_name(self) -> str:
        number = len(self._courses) + 1
        while f"branch {number}" in self._courses:
            number += 1
        return f"branch {number}"
