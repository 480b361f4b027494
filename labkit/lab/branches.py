"""Two ways on from one prompt, side by side.

Owns: where two branches part and what each is worth. Does not know: models, caches.
Invariants: probabilities are the target's own at temperature 1, whatever law a text was drawn
under, so that texts written under different settings can be compared.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from labkit.lab.courses import Step
from labkit.lab.tables import Table
from labkit.metrics import Acceptance, acceptance
from labkit.trace import Trace
from labkit.viz.sentences import counted, rate


@dataclass(frozen=True, slots=True)
class Way:
    """One branch in numbers.

    acceptance: rounds with a forced token left out. logprob: natural log of the probability that
    the target itself, at temperature 1, writes ``tokens`` behind the prompt.
    """

    name: str
    tokens: tuple[int, ...]
    text: str
    acceptance: Acceptance
    forced: int
    logprob: float

    @classmethod
    def of(cls, name: str, steps: Sequence[Step]) -> "Way":
        committed = [step.committed for step in steps]
        return cls(
            name,
            tuple(t for c in committed for t in c.tokens),
            "".join(c.text for c in committed),
            acceptance(Trace(tuple(e for step in steps for e in step.events))),
            sum(step.how == "forced" for step in steps),
            sum(value for c in committed for value in c.logprobs),
        )

    @property
    def perplexity(self) -> float | None:
        """exp(-logprob / tokens): how many equally likely tokens the target was torn between."""
        return math.exp(-self.logprob / len(self.tokens)) if self.tokens else None


@dataclass(frozen=True, slots=True)
class Comparison:
    """left and right; shared: new tokens that both begin with; words: token id -> how to show it.

    Displayed, it is a table; its ``repr`` is one sentence.
    """

    left: Way
    right: Way
    shared: int
    words: Callable[[int], str]

    @classmethod
    def of(cls, left: Way, right: Way, *, words: Callable[[int], str]) -> "Comparison":
        pairs = enumerate(zip(left.tokens, right.tokens, strict=False))
        shorter = min(len(left.tokens), len(right.tokens))
        return cls(left, right, next((i for i, (a, b) in pairs if a != b), shorter), words)

    @property
    def parted(self) -> tuple[int | None, int | None] | None:
        """The token of each where they part (None: this one ends there); None if they are equal."""
        if self.left.tokens == self.right.tokens:
            return None
        ends = [way.tokens[self.shared : self.shared + 1] for way in (self.left, self.right)]
        return (*ends[0], None)[0], (*ends[1], None)[0]

    @property
    def table(self) -> Table:
        """Both branches, line by line."""
        ways = (self.left, self.right)
        rows = [
            ("new tokens", *(str(len(way.tokens)) for way in ways)),
            ("where they part", *(self._told(token) for token in self.parted or (None, None))),
            ("text", *(way.text.replace("*", "∗").replace("`", "'") for way in ways)),
            ("rounds (forced apart)", *(str(way.acceptance.rounds) for way in ways)),
            ("drafted", *(str(way.acceptance.drafted) for way in ways)),
            ("accepted", *(str(way.acceptance.accepted) for way in ways)),
            ("accepted / drafted", *(rate(way.acceptance.rate) for way in ways)),
            ("tokens per round", *(rate(way.acceptance.mean_accepted_length) for way in ways)),
            ("forced by hand", *(str(way.forced) for way in ways)),
            ("log probability under the target", *(f"{way.logprob:.2f}" for way in ways)),
            ("perplexity", *(rate(way.perplexity) for way in ways)),
        ]
        return Table(("", *(way.name for way in ways)), tuple(rows), self._sentence())

    def _told(self, token: int | None) -> str:
        if token is None:
            return "they do not part" if self.parted is None else "ends here"
        return self.words(token)

    def _sentence(self) -> str:
        left, right = self.left, self.right
        if self.parted is None:
            return f"{left.name} and {right.name} hold the same text, {self._shared()}."
        one, other = (self._told(token) for token in self.parted)
        gap = left.logprob - right.logprob
        likelier = left.name if gap > 0 else right.name
        return (
            f"{left.name} and {right.name} share {self._shared()} and part at {one} or {other}. "
            f"Under the target at temperature 1 the text of {likelier} is e^{abs(gap):.2f} times "
            "as likely as the other."
        )

    def _shared(self) -> str:
        return counted(self.shared, "new token")

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/html": self.table.html, "text/plain": repr(self)}

    def __repr__(self) -> str:
        return repr(self.table)
