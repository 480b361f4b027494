"""How things stand with a text in the making, and who is told when that changes.

Owns: all that an action can change (branches, the draft that waits, settings, the source of draws),
taking it back as a whole, and the list of watchers.
Does not know: what the actions are, caches, widgets.
Invariants: an action that raises leaves everything as it found it, the draws to come included;
watchers are told once an action is over, once for all the actions that it was made of.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from labkit.draft import Draft
from labkit.errors import BadInput
from labkit.events import Drafted
from labkit.lab.courses import How, tokens_of
from labkit.lab.growth import Growth
from labkit.lab.settings import Settings
from labkit.sampling import Rng

T = TypeVar("T")
P = ParamSpec("P")
Call = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Pending:
    """A draft that waits for its verdict. draft: as it will be judged; drafted: as it is shown."""

    draft: Draft
    drafted: Drafted
    how: How


class Watchers:
    """Whoever wants to know that something has changed."""

    def __init__(self) -> None:
        self._calls: list[Call] = []

    def __len__(self) -> int:
        return len(self._calls)

    def join(self, call: Call) -> None:
        """From now on ``call`` is called after every change."""
        self._calls.append(call)

    def leave(self, call: Call) -> None:
        """No longer; harmless for one who never joined."""
        self._calls = [other for other in self._calls if other != call]

    def tell(self) -> None:
        """Something has changed. A watcher that fails is warned of: what was done stands, and the
        others are told all the same."""
        for call in tuple(self._calls):
            try:
                call()
            except Exception as error:
                warnings.warn(f"a watcher failed: {type(error).__name__}: {error}", stacklevel=2)


class Standing:
    """See the module.

    Args:
        settings: those of the first round.
        rng: source of every draw.
    """

    def __init__(self, settings: Settings, rng: Rng) -> None:
        self.grown = Growth()
        self.pending: Pending | None = None
        self.settings, self.rng = settings, rng
        self.watchers = Watchers()
        self._inside = False

    @property
    def tokens(self) -> tuple[int, ...]:
        """The new tokens up to where one stands."""
        return tokens_of(self.grown.steps)

    @property
    def ended(self) -> str | None:
        """Why the text ends where one stands, or None."""
        steps = self.grown.steps
        reason = steps[-1].reason if steps else None
        if reason not in (None, "max_new_tokens"):
            return reason
        # as of now: the number may have been changed where the text was shorter or longer
        full = len(self.tokens) >= self.settings.config.max_new_tokens
        return "max_new_tokens" if full else None

    def check_open(self) -> None:
        """BadInput: the text ends here."""
        if self.ended:
            raise BadInput(
                "text",
                expected="one that goes on",
                got=f"one that ends here ({self.ended})",
                next_step="rewind to an earlier round, or allow more with max_new_tokens",
            )

    def waiting(self) -> Pending:
        """The draft that waits. BadInput: there is none."""
        if self.pending is None:
            raise BadInput(
                "draft",
                expected="one that waits for its verdict",
                got="none",
                next_step="let the drafter draft first, or add a guess of your own",
            )
        return self.pending

    def act(self, work: Callable[[], T]) -> T:
        """``work()``, all of it or nothing; it is over when watchers have been told."""
        return self.together(work, back=self._mark())

    def together(self, work: Callable[[], T], *, back: Call = lambda: None) -> T:
        """``work()``, of which watchers are told once, when it is over. What a watcher does itself
        is not told again.

        Args:
            back: takes back what ``work`` did, where that or the telling raises.
        """
        if self._inside:
            return or_back(back, work)

        def told() -> T:
            made = work()
            self.watchers.tell()
            return made

        def untold() -> None:
            back()
            self.watchers.tell()

        self._inside = True
        try:
            return or_back(untold, told)
        finally:
            self._inside = False

    def _mark(self) -> Call:
        pending, settings, rng = self.pending, self.settings, self.rng
        growth, draws = self.grown.mark(), rng.mark()

        def back() -> None:
            self.pending, self.settings, self.rng = pending, settings, rng
            growth()
            draws()

        return back


def or_back(back: Call, work: Callable[[], T]) -> T:
    """``work()``; where that raises, ``back()`` first."""
    try:
        return work()
    except BaseException:
        back()
        raise


class Stands(Protocol):
    """Whoever has a standing."""

    @property
    def standing(self) -> Standing: ...


S = TypeVar("S", bound=Stands)


def action(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """A method that changes its object's standing: all of it or nothing; see `Standing.act`."""

    @wraps(method)
    def whole(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.standing.act(lambda: method(self, *args, **kwargs))

    return whole
