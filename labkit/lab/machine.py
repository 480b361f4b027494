"""Measure this machine for the speed-up model: forwards by width, and runs of some drafters.

Owns: what is run, and in which order. Does not know: what the numbers are used for.
Invariants: plain decoding is timed beside every other run of the same prompt, so that a machine
that slows down slows all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from labkit.devices import device_label, dtype_name
from labkit.drafters.shapes import DynamicTree
from labkit.errors import require
from labkit.lab.measure import forward_seconds
from labkit.lab.readings import QUESTIONS
from labkit.lab.session import Lab
from labkit.machine import Machine, machine_of
from labkit.progress import Progress, silent
from labkit.trace import Trace

WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True, slots=True)
class Way:
    """A way to draft: its method, K, and for a tree (children of each node, nodes)."""

    method: str
    draft_length: int
    tree: tuple[int, int] | None = None

    @property
    def name(self) -> str:
        """As charts call it: "eagle3", or "eagle2 tree"."""
        return f"{self.method} tree" if self.tree else self.method


WAYS = (Way("ngram", 3), Way("draft", 4), Way("eagle3", 4), Way("eagle2", 5, (4, 16)))


def measure_machine(
    lab: Lab,
    *,
    ways: Sequence[Way] = WAYS,
    prompts: Sequence[str] = QUESTIONS[:2],
    new_tokens: int = 48,
    widths: Sequence[int] = WIDTHS,
    repeats: int = 5,
    progress: Progress = silent,
) -> Machine:
    """Time the target's forward at every width, then every way to draft on every prompt.

    Args:
        widths: numbers of tokens in one forward; 1 must be among them.
        repeats: the median of so many forwards is taken.

    Raises:
        BadInput: a width below 1, or a way that drafted nothing.
    """
    names = [way.name for way in ways]
    require(len(set(names)) == len(names), "ways", "every way to draft once", names)
    total = 1 + len(prompts) * (1 + len(ways))
    progress("forward times", 0, total)
    forward = forward_seconds(lab, widths, repeats=repeats)
    plain: list[Trace] = []
    runs: dict[str, list[Trace]] = {way.name: [] for way in ways}
    benches = {way.name: _bench(lab, way) for way in ways}
    for i, prompt in enumerate(prompts):
        progress("plain decoding", 1 + i * (1 + len(ways)), total)
        plain.append(lab.record(prompt, method="ar", eos=None, max_new_tokens=new_tokens))
        for j, way in enumerate(ways):
            progress(way.name, 2 + i * (1 + len(ways)) + j, total)
            run = benches[way.name].record(
                prompt,
                method=way.method,
                draft_length=way.draft_length,
                eos=None,
                max_new_tokens=new_tokens,
            )
            runs[way.name].append(run)
    device = lab.loaded.device
    about = f"{lab.loaded.name}, {device_label(device)}, {dtype_name(lab.loaded.dtype)}"
    return machine_of(runs, plain=plain, forward=forward, about=about)


def _bench(lab: Lab, way: Way) -> Lab:
    if way.tree is None:
        return lab
    children, nodes = way.tree
    return Lab(lab.loaded, shape=DynamicTree(top_k=children, nodes=nodes))
