"""Every word that the lab says to a learner, by language.

Owns: reading ``strings/``: a catalogue per language, and what is told of faults, in English alone.
Does not know: who says the words, or where.
Invariants: all languages have the same keys (a test holds them together).
"""

from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from typing import Any

import yaml

from labkit.errors import one_of

LANGUAGES = ("en", "fr")


def words(lang: str) -> dict[str, Any]:
    """The whole catalogue of one language. Callers must not change it.

    Raises:
        BadInput: a language that the lab does not speak.
    """
    known = one_of(LANGUAGES, lang, name="lang", next_step="choose one of these languages")
    return catalogue(known)


@lru_cache
def catalogue(name: str) -> dict[str, Any]:
    """``strings/<name>.yaml``: a language, or "faults". Callers must not change it."""
    text = (files("labkit.lab") / "strings" / f"{name}.yaml").read_text(encoding="utf-8")
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def filled(told: Mapping[str, str]) -> dict[str, Any]:
    """What is told of a fault, its {gaps} filled in from the phrases of "faults"."""
    phrases = catalogue("faults")["phrases"]
    return {name: text.format(**phrases) for name, text in told.items()}


def say(key: str, *, lang: str, **values: object) -> str:
    """One sentence: ``say("checks.not_written", lang="en")``; ``values`` fill its {gaps}."""
    found: Any = words(lang)
    for part in key.split("."):
        found = found[part]
    return str(found).strip().format(**values)
