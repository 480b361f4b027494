"""Words that a person types, as the tokens they would be at that place of the text.

Owns: the space between text and typed words, and token ids in context.
Does not know: models, drafts.
Invariants: the ids, put behind the text's own, decode to the text and the typed words; the text's
ids are never changed, for they are committed.

    text ends       typed       joined      why
    "the sky"       is          " is"       words are set apart
    "the sky"       , and       ", and"     punctuation joins
    "explana"       +tion       "tion"      + goes on with the word
    "sky is "       blue        "blue"      there is a space already
    "the sky"       is␠         " is"       a space at the end belongs to the word that follows
"""

from collections.abc import Callable, Sequence
from typing import Any

from labkit.errors import BadInput
from labkit.ids import flat_ids, whole

GLUE = "+"
NEWLINE = "⏎"
_OPENING = "([{«“‘\"'/-–—_#@$"
_TAILS = (16, 8, 4, 2, 1, 0)  # tokens of context that are tokenised again


def joined(so_far: str, typed: str) -> str:
    """What is added to the text ``so_far`` when somebody types ``typed``.

    A leading space is kept as it is; ⏎ stands for a line break.
    """
    words = typed.replace(NEWLINE, "\n").rstrip(" \t")
    if words.startswith(GLUE) and len(words) > 1:
        return words[1:]
    apart = not so_far or so_far[-1].isspace() or so_far[-1] in _OPENING
    if apart or not words or not words[0].isalnum():
        return words
    return f" {words}"


def ids_after(tokenizer: Any, tokens: Sequence[int], typed: str) -> tuple[int, ...]:
    """Token ids of ``typed`` behind the text ``tokens``; see `joined`.

    The end of the text is tokenised together with the words, so that they come out as the model
    has learnt to see them there. Where that would change the text's own tokens, less of it is
    taken along.

    Raises:
        BadInput: nothing was typed, or the words cannot be written in this vocabulary.
    """
    words = joined(_decoded(tokenizer, tokens[-_TAILS[0] :]), typed)
    if not words:
        raise BadInput(
            "typed words",
            expected="at least one character",
            got=repr(typed),
            next_step="type the words that you expect next",
        )
    for count in _TAILS:
        tail = list(tokens[len(tokens) - count :]) if count <= len(tokens) else None
        if tail is None:
            continue
        before = _decoded(tokenizer, tail)
        ids = _encoded(tokenizer, before + words)
        if ids[: len(tail)] == tail and _decoded(tokenizer, ids) == before + words:
            return tuple(ids[len(tail) :])
    raise BadInput(
        "typed words",
        expected="words that this model's vocabulary can write behind the text",
        got=repr(words),
        next_step="type them in another way, or begin with a space",
    )


def ids_themselves(typed: int | Sequence[int], *, vocab_size: int) -> tuple[int, ...]:
    """Token ids given as numbers: one, or several.

    Raises:
        BadInput: none, or one that is no token of so large a vocabulary.
    """
    name, expected = "token", f"ids from 0 to {vocab_size - 1}, or text"
    help_ = "use the target's own ids"
    given = [typed] if whole(typed) is not None else typed
    ids = flat_ids(given, name=name, expected=expected, next_step=help_)
    wrong = next((i for i in ids if not 0 <= i < vocab_size), None)
    if wrong is not None or not ids:
        got = repr(wrong) if ids else "nothing"
        raise BadInput(name, expected=expected, got=got, next_step=help_)
    return ids


def only_one(ids: Sequence[int], *, shown: Callable[[int], str]) -> int:
    """The one id that there is.

    Args:
        shown: an id -> how it is shown.

    Raises:
        BadInput: there are several.
    """
    if len(ids) != 1:
        raise BadInput(
            "token to forbid",
            expected="one token",
            got=f"{len(ids)}: " + " ".join(map(shown, ids)),
            next_step="forbid one of them, by its text or its id",
        )
    return ids[0]


def _decoded(tokenizer: Any, ids: Sequence[int]) -> str:
    """With special tokens, which stand in the text too."""
    if not ids:
        return ""
    return str(tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))


def _encoded(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])
