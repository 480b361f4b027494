"""What the lab's gallery holds: prompts, methods, settings.

Owns: the list. Does not know: models, how runs are recorded.
Invariants: names are file names; every prompt has a run of plain decoding to compare with.

A new method joins by its name in `METHODS`; then ``labkit trace record`` once more.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

METHODS = ("ar", "ngram", "draft", "eagle1", "eagle2", "eagle3", "eagle31", "mtp", "medusa")

CODE = "Write a Python function that returns the n-th Fibonacci number."
MATHS = "A shop sells 12 pens a day. How many pens does it sell in 3 weeks? Explain step by step."
CHAT = "Why is the sea salty?"
COPY = (
    "Repeat this list three times: red apple, green pear, yellow lemon, blue plum, "
    "white peach, black cherry."
)
SHORT = "What is the capital of France?"
GREEDY = MappingProxyType({"max_new_tokens": 48, "temperature": 0.0})
SAMPLED = MappingProxyType({"max_new_tokens": 32, "temperature": 1.0, "seed": 1})


@dataclass(frozen=True, slots=True)
class Scene:
    """One run to record.

    settings: fields of `labkit.config.DecodeConfig`. tree: (children of each node, nodes) of a
    dynamic tree; None is the method's own shape.
    """

    name: str
    title: str
    prompt: str
    method: str
    settings: Mapping[str, Any]
    tree: tuple[int, int] | None = None


def scenes(methods: tuple[str, ...] = METHODS) -> tuple[Scene, ...]:
    """The list: every method on code and on chat, and single runs worth a look."""
    code = [Scene(f"code-{m}", "Code: a Fibonacci function", CODE, m, GREEDY) for m in methods]
    chat = [Scene(f"chat-{m}", "Chat, sampled: the salty sea", CHAT, m, SAMPLED) for m in methods]
    return (*code, *chat, *(scene for scene in _SINGLE if scene.method in methods))


_SINGLE = (
    Scene("maths-ar", "Maths: pens in three weeks", MATHS, "ar", GREEDY),
    Scene("maths-draft", "Maths: pens in three weeks", MATHS, "draft", GREEDY),
    Scene("maths-eagle3", "Maths: pens in three weeks", MATHS, "eagle3", GREEDY),
    Scene("maths-big-tree", "Maths: a tree of 24 nodes, five deep", MATHS, "eagle2",
          GREEDY | {"draft_length": 5, "max_new_tokens": 32}, (4, 24)),
    Scene("copy-ar", "A list copied three times", COPY, "ar", GREEDY),
    Scene("copy-ngram", "A list copied three times: n-grams at their best", COPY, "ngram",
          GREEDY | {"draft_length": 6}),
    Scene("short-ar", "A short answer, ended by the model", SHORT, "ar", GREEDY),
    Scene("short-eagle3", "A short answer, ended by the model", SHORT, "eagle3", GREEDY),
)  # fmt: skip
