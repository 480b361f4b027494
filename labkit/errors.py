"""The one family of errors that a user is meant to read.

Owns: the shape of a message: what went wrong, what was expected, what was found, what to do next.
Does not know: who raises or who shows. The command line prints ``str(error)`` and exits with 2.
Invariants: every field is a non-empty string; a message never needs the traceback to be understood;
errors are raised before any work and leave nothing half-written.
"""

from collections.abc import Collection


class LabError(Exception):
    """Something that the user can put right.

    ``str(error)`` reads ``what: expected ..., got .... Next: ....``

    Args:
        what: the setting, file or step that is wrong, by name.
        expected: what would have been right.
        got: what was found instead.
        next_step: one action that helps.
    """

    def __init__(self, what: str, *, expected: str, got: str, next_step: str) -> None:
        self.what = what
        self.expected = expected
        self.got = got
        self.next_step = next_step
        super().__init__(what, expected, got, next_step)

    def __str__(self) -> str:
        next_step = self.next_step.rstrip(".")
        return f"{self.what}: expected {self.expected}, got {self.got}. Next: {next_step}."

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions are rebuilt from positional arguments; ours are keywords.
        return _rebuild, (type(self), self.what, self.expected, self.got, self.next_step)


class BadInput(LabError, ValueError):
    """An argument, setting, prompt or data file that cannot be used as it stands."""


class ModelUnavailable(LabError):
    """Model files that could not be fetched, are not there, or may not be read."""


class BadCheckpoint(LabError):
    """Model files that are there but are broken, incomplete or of a refused format."""


class UnsupportedModel(LabError):
    """A sound model that this lab cannot decode with, and the layer or setting that is why."""


class OutOfMemory(LabError):
    """The device has too little memory for what was asked."""


def require(holds: bool, name: str, expected: str, got: object) -> None:
    """Raise `BadInput` for the setting ``name`` unless ``holds``."""
    if not holds:
        raise BadInput(name, expected=expected, got=repr(got), next_step=f"change {name}")


def one_of(known: Collection[str], given: object, *, name: str, next_step: str) -> str:
    """``given``, if it is known; else `BadInput` for the setting ``name`` that lists what is."""
    if not isinstance(given, str) or given not in known:
        raise BadInput(
            name,
            expected="one of " + ", ".join(known),
            got=repr(given),
            next_step=next_step,
        )
    return given


def _rebuild(kind: type[LabError], what: str, expected: str, got: str, next_step: str) -> LabError:
    return kind(what, expected=expected, got=got, next_step=next_step)
