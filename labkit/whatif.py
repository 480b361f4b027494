"""What if: the speed-up model at one setting, with a machine's numbers where there are some.

Owns: what a setting means, and where speculation stops paying. Does not know: drawing.
Invariants: the formula is `labkit.cost.round_speedup`, here and in the browser (a test compares).

A round of B sequences that draft n nodes each is one forward of B (n + 1) tokens; a plain step is
one of B tokens:

    speed = tokens(n) / (drafter's forwards (n) x c + f(B (n + 1)) / f(B))

f is the machine's measured forward time. While reading the weights takes longer than computing, f
is level and verifying costs a step; when computing takes longer, every drafted token is paid for.
Left out: that a batch has contexts of different lengths, and that its rounds wait for each other.
"""

from dataclasses import dataclass
from functools import cached_property

from labkit.cost import expected_tokens, round_speedup
from labkit.errors import BadInput, require
from labkit.machine import MOST, Drafting, Machine

BATCHES = (1, 2, 4, 8, 16, 32, 64)
CHANCE = "chance"  # every drafted token is accepted with the same chance alpha
MEASURED, FREE = "measured", "free"  # what verifying costs: f, or nothing at all


@dataclass(frozen=True)
class Setting:
    """The sliders.

    drafting: `CHANCE`, or the name of a measured way to draft, which then takes alpha's place.
    draft_length: drafted nodes per round. cost_ratio: one forward of the drafter in steps.
    verify: `MEASURED`, or `FREE` as in the published formula.
    """

    drafting: str = CHANCE
    alpha: float = 0.6
    draft_length: int = 4
    cost_ratio: float = 0.1
    batch: int = 1
    verify: str = MEASURED

    def __post_init__(self) -> None:
        require(0 <= self.alpha <= 1, "alpha", "a number in [0, 1]", self.alpha)
        require(0 <= self.draft_length <= MOST, "draft_length", f"0 to {MOST}", self.draft_length)
        require(self.cost_ratio >= 0, "cost_ratio", "0 or more", self.cost_ratio)
        require(self.batch in BATCHES, "batch", f"one of {BATCHES}", self.batch)
        require(self.verify in (MEASURED, FREE), "verify", f"{MEASURED} or {FREE}", self.verify)


@dataclass(frozen=True)
class Answer:
    """The model at one setting on one machine."""

    setting: Setting
    machine: Machine

    def __post_init__(self) -> None:
        if self.setting.verify == MEASURED and not self.machine.forward:
            raise BadInput(
                "verify",
                expected=f"{FREE!r}, for no forward was measured",
                got=repr(MEASURED),
                next_step="measure the machine first (labkit.lab.machine)",
            )
        _ = self.way

    @property
    def way(self) -> Drafting | None:
        """The measured way to draft, None for a chance alpha."""
        name = self.setting.drafting
        return None if name == CHANCE else self.machine.way(name)

    def tokens(self, n: int) -> float:
        """Tokens that a round with n drafted nodes adds to each sequence."""
        if self.way:
            return self.way.tokens[n]
        return expected_tokens(alpha=self.setting.alpha, draft_length=n)

    def draft(self, n: int) -> float:
        """Plain steps that drafting n nodes takes."""
        return (self.way.steps[n] if self.way else n) * self.setting.cost_ratio

    def check(self, n: int) -> float:
        """Plain steps that the target's forward over n drafted nodes takes."""
        if self.setting.verify == FREE:
            return 1.0
        batch = self.setting.batch
        return self.machine.steps(batch * (n + 1)) / self.machine.steps(batch)

    def speed(self, n: int) -> float:
        """Over plain decoding of the same batch."""
        return round_speedup(tokens=self.tokens(n), draft=self.draft(n), verify=self.check(n))

    @cached_property
    def speeds(self) -> tuple[float, ...]:
        """For 0, 1, ... `MOST` drafted nodes."""
        return tuple(self.speed(n) for n in range(MOST + 1))

    @property
    def best(self) -> int:
        """The number of drafted nodes with the highest speed; of equals the smallest."""
        return max(range(MOST + 1), key=lambda n: (self.speeds[n], -n))

    @property
    def pays_to(self) -> int:
        """The largest batch up to which some draft pays; 0 when none pays even alone."""
        paying = 0
        for batch in BATCHES:
            other = Answer(replace_batch(self.setting, batch), self.machine)
            if max(other.speeds) <= 1:
                break
            paying = batch
        return paying

    @property
    def beyond(self) -> bool:
        """Is the chosen forward wider than any that was measured?"""
        tokens = self.setting.batch * (self.setting.draft_length + 1)
        return self.setting.verify == MEASURED and tokens > self.machine.widest


def replace_batch(setting: Setting, batch: int) -> Setting:
    """The same setting for another batch."""
    return Setting(**{**vars(setting), "batch": batch})
