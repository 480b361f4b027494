"""A machine with round numbers: level forwards up to 8 tokens, then as steep as the work."""

from labkit.cost import expected_by_depth
from labkit.machine import MOST, Drafting, Machine, Ran


def chain(name: str, rates: tuple[float, ...], cost_ratio: float) -> Drafting:
    tokens = tuple(expected_by_depth(rates, draft_length=n) for n in range(MOST + 1))
    return Drafting(name, tokens, tuple(map(float, range(MOST + 1))), cost_ratio)


MACHINE = Machine(
    about="a made-up machine",
    forward=((1, 0.05), (8, 0.05), (16, 0.06), (32, 0.08), (64, 0.16), (128, 0.32)),
    drafting=(chain("eagle3", (0.55, 0.5, 0.45), 0.11), chain("draft", (0.5,), 0.125)),
    ran=(Ran("eagle3", 4, 1.25), Ran("draft", 4, 0.97)),
)
