"""What was measured on a machine: forwards by width, ways to draft, runs.

Owns: the record and its file. Does not know: models, drawing; who measures (`labkit.lab.machine`).
Invariants: every number comes from a measurement; costs are in *steps*, one step being the
target's forward of a single token.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from labkit import trace_file
from labkit.cost import along, expected_by_depth
from labkit.errors import BadInput, require
from labkit.metrics import acceptance, acceptance_by_depth, cost, tokens_by_nodes
from labkit.trace import Trace
from labkit.tree import DraftTree

MOST = 16  # drafted tokens per round that the model speaks of


@dataclass(frozen=True, slots=True)
class Drafting:
    """How one way to draft fared.

    tokens[n]: tokens that a round with n drafted nodes adds, the target's own included; steps[n]:
    forwards of the drafter for them; both from n = 0 to `MOST`. cost_ratio: one such forward over a
    target step. tree: do drafts branch?
    """

    name: str
    tokens: tuple[float, ...]
    steps: tuple[float, ...]
    cost_ratio: float
    tree: bool = False

    def __post_init__(self) -> None:
        right = len(self.tokens) == len(self.steps) == MOST + 1
        counts = [len(self.tokens), len(self.steps)]
        require(right, f"drafting {self.name!r}", f"{MOST + 1} tokens and steps", counts)


@dataclass(frozen=True, slots=True)
class Ran:
    """A run. drafted: nodes per round; speedup: speed over plain decoding of the same prompts."""

    name: str
    drafted: int
    speedup: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """about: model, device and dtype in a few words. forward: (tokens in it, seconds) of the
    target's forward, ascending, from 1 token on; () when nothing was measured."""

    about: str = ""
    forward: tuple[tuple[int, float], ...] = ()
    drafting: tuple[Drafting, ...] = ()
    ran: tuple[Ran, ...] = ()

    def __post_init__(self) -> None:
        widths = [width for width, _ in self.forward]
        right = not widths or (widths[0] == 1 and widths == sorted(set(widths)))
        require(right, "forward", "(tokens, seconds) from 1 token on, ascending", widths)
        require(all(s > 0 for _, s in self.forward), "forward", "seconds above 0", self.forward)

    @property
    def widest(self) -> int:
        """Most tokens of a forward that was measured."""
        return self.forward[-1][0] if self.forward else 0

    def steps(self, tokens: float) -> float:
        """A forward of so many tokens, in forwards of a single one."""
        return along(self.forward, tokens) / self.forward[0][1]

    def way(self, name: str) -> Drafting:
        """The way to draft of that name.

        Raises:
            BadInput: there is none.
        """
        for drafting in self.drafting:
            if drafting.name == name:
                return drafting
        raise BadInput(
            "drafting",
            expected="one of " + (", ".join(d.name for d in self.drafting) or "none"),
            got=repr(name),
            next_step="choose one that was measured",
        )

    def save(self, path: str | Path) -> Path:
        """Write the record; see `labkit.trace_file.write`."""
        record = {"machine": 1, **asdict(self)}
        return trace_file.write(path, json.dumps(record, ensure_ascii=False, indent=1))

    @classmethod
    def load(cls, path: str | Path) -> "Machine":
        """Raises BadInput when the file is missing, or no record of a machine."""
        record = trace_file.read(path)
        try:
            if record.pop("machine") != 1:
                raise ValueError("another version")
            return cls(
                about=str(record["about"]),
                forward=tuple((int(n), float(s)) for n, s in record["forward"]),
                drafting=tuple(
                    Drafting(**{**d, "tokens": (*d["tokens"],), "steps": (*d["steps"],)})
                    for d in record["drafting"]
                ),
                ran=tuple(Ran(**r) for r in record["ran"]),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise BadInput(
                f"record of a machine {str(path)!r}",
                expected="a file written by Machine.save",
                got=f"{type(error).__name__}: {error}",
                next_step="measure the machine again",
            ) from error


def machine_of(
    runs: Mapping[str, Sequence[Trace]],
    *,
    plain: Sequence[Trace],
    forward: Mapping[int, float] | None = None,
    about: str = "",
) -> Machine:
    """Read recorded runs: one way to draft, and one measured point, for each name.

    Args:
        runs: recorded runs by name, of the same prompts as ``plain``.
        plain: plain decoding.
        forward: seconds of one target forward, by its tokens.
    """
    step = _seconds_per_token(plain)
    ways = tuple(_drafting(name, traces, step) for name, traces in runs.items())
    points = tuple(
        Ran(name, round(acceptance(*traces).drafted_per_round or 0),
            step / _seconds_per_token(traces))
        for name, traces in runs.items()
    )  # fmt: skip
    return Machine(
        about=about, forward=tuple(sorted((forward or {}).items())), drafting=ways, ran=points
    )


def _drafting(name: str, traces: Sequence[Trace], step: float) -> Drafting:
    trees = [DraftTree(r.drafted.tokens, r.drafted.parents) for t in traces for r in t.rounds]
    spent, drafted = cost(*traces), acceptance(*traces).drafted
    require(drafted > 0, f"runs of {name!r}", "at least one drafted token", drafted)
    # looking a text up takes no forward: then what a token takes
    ratio = spent.draft / (spent.draft_forwards or drafted) / step
    if all(tree.is_chain for tree in trees):
        # a depth that no round reached says nothing
        rates = [n.rate for n in acceptance_by_depth(*traces) if n.rate is not None]
        tokens = [expected_by_depth(rates, draft_length=n) for n in range(MOST + 1)]
        return Drafting(name, (*tokens,), (*map(float, range(MOST + 1)),), ratio)
    found = tokens_by_nodes(*traces, most=MOST)
    require(bool(found), f"runs of {name!r}", "trees that say their confidence", "none")
    added, forwards = (tuple(column) for column in zip(*found, strict=True))
    return Drafting(name, added, forwards, ratio, tree=True)


def _seconds_per_token(traces: Sequence[Trace]) -> float:
    count = sum(len(trace.tokens) for trace in traces)
    spent = cost(*traces).decode
    require(count > 0 and spent > 0, "runs", "recorded tokens and their seconds", count)
    return spent / count
