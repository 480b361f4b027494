"""Tokens to text, as they come, without ever taking a character back.

Owns: which characters are complete, and where a stop string ends.
Does not know: models. Invariants: the pieces joined are the decoded text, cut after the first
stop string; no piece ends inside a character.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Decode = Callable[[Sequence[int]], str]
_UNFINISHED = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True, slots=True)
class Piece:
    """New text, and whether a stop string ended in it (the text is then cut right after it)."""

    text: str
    stopped: bool = False


class TextStream:
    """Decodes one sequence token by token.

    Args:
        decode: list of ids -> text, e.g. a tokenizer's ``decode`` with special tokens skipped.
        stop_strings: texts that end the run.
    """

    def __init__(self, decode: Decode, *, stop_strings: Sequence[str] = ()) -> None:
        self._decode = decode
        self.stop_strings = tuple(stop_strings)
        self._ids: list[int] = []
        self._anchor = 0  # ids before this are decoded and done with
        self._told = 0  # ids before this have been turned into text
        self._tail = ""  # recent text, enough to find a stop string that began earlier

    @property
    def is_fresh(self) -> bool:
        """Has it seen no token yet?"""
        return not self._ids

    def push(self, token: int) -> Piece:
        """Add a token; the text that became complete with it."""
        self._ids.append(token)
        text = self._pending()
        if text.endswith(_UNFINISHED):
            return Piece("")
        if text:  # a token without text (a special one) gives the next one no context
            self._anchor = self._told
        self._told = len(self._ids)
        return self._stop_at(text)

    def flush(self) -> Piece:
        """The text of tokens that never became whole characters."""
        text = self._pending()
        self._anchor = self._told = len(self._ids)
        return self._stop_at(text)

    def _pending(self) -> str:
        # Decoded together with the tokens before, since a tokenizer may join them (spaces, bytes).
        before = self._decode(self._ids[self._anchor : self._told])
        return self._decode(self._ids[self._anchor :])[len(before) :]

    def _stop_at(self, text: str) -> Piece:
        seen = self._tail + text
        ends = [seen.find(stop) + len(stop) for stop in self.stop_strings if stop in seen]
        longest = max(map(len, self.stop_strings), default=1)
        self._tail = seen[-(longest - 1) :] if longest > 1 else ""
        if not ends:
            return Piece(text)
        return Piece(text[: max(0, min(ends) - (len(seen) - len(text)))], stopped=True)
