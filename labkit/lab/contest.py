"""Be the drafter: you type what comes next, and the target judges you like any other drafter.

    from labkit.lab import contest
    game = contest.open(lab, "Tell me why the sky is blue.", against=("ngram", "draft", "eagle3"))
    game.guess("The sky appears")     # token by token: its p, accepted or where you parted
    game.guess("")                    # no idea: the target writes its next token
    game.score                        # you beside the others, at the same places of the same text
    game.widget

At each place every rival drafts as many tokens as you typed, its draft is judged by the same
target under the same law, and nothing of it stays: the text goes on with yours.

Owns: turns and the score. Does not know: how drafts are judged (the workbench), widgets.
Invariants: everybody guesses at the same places, of the same text; a turn in which nothing was
typed counts for nobody. Above temperature 0 a person's words are judged as one-hot, since nobody
knows what they were drawn from, while a model's drafts are judged by their own q.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from labkit.config import AVAILABLE, check_method
from labkit.drafters.human import Human
from labkit.errors import BadInput, ModelUnavailable, require
from labkit.lab.cards import interactive
from labkit.lab.live import Workbench
from labkit.lab.session import Lab
from labkit.lab.standing import or_back
from labkit.lab.tables import Table
from labkit.lab.told import shown, verdict, verdicts
from labkit.lab.typed import ids_after
from labkit.metrics import Acceptance, acceptance
from labkit.sampling import TorchRng
from labkit.trace import Round, Trace
from labkit.viz.sentences import rate

YOU = "you"
RIVALS = ("ngram", "draft", "eagle3")


@dataclass(frozen=True, slots=True)
class Turn:
    """One place of the text. typed: the words; rounds: who -> the round it had there."""

    typed: str
    rounds: dict[str, Round]

    @property
    def counts(self) -> bool:
        """Was anything guessed?"""
        return len(self.rounds[YOU].drafted.tokens) > 1


def open(lab: Lab, prompt: str | Sequence[int], **options: Any) -> "Contest":
    """A contest on ``prompt``; see `Contest` for the options."""
    return Contest(lab, prompt, **options)


class Contest:
    """See the module.

    ``question`` is the prompt as its reader sees it, outside of any chat template.

    Args:
        against: methods; those for which this target has no weights are left out, see ``absent``.
        temperature: 0 is greedy; above it, tokens are drawn.
        options: of `labkit.lab.live.Workbench`: ``max_new_tokens``, ``seed``, ``chat``, ...

    Raises:
        BadInput: an unknown method or setting.
    """

    def __init__(
        self,
        lab: Lab,
        prompt: str | Sequence[int],
        *,
        against: Sequence[str] = RIVALS,
        temperature: float = 0.0,
        **options: Any,
    ) -> None:
        self.you = Human()
        prompt = prompt if isinstance(prompt, str) else lab.ids(prompt)
        self.question = prompt if isinstance(prompt, str) else lab.text(prompt)
        rivals = _listed(against)
        for method in rivals:
            check_method(method, available=AVAILABLE)
        options = {"max_new_tokens": 64, **options}
        self.bench = Workbench(lab, prompt, drafter=self.you, temperature=temperature, **options)
        self.turns: tuple[Turn, ...] = ()
        self.absent: dict[str, str] = {}
        self.rivals = tuple(method for method in rivals if self._is_there(method))
        self._face: Any = None

    def _is_there(self, method: str) -> bool:
        try:
            self.bench.lab.drafter(method)
        except ModelUnavailable as error:
            self.absent[method] = str(error)
            return False
        return True

    # --- playing ----------------------------------------------------------------------------------

    @property
    def text(self) -> str:
        """The new text so far."""
        return self.bench.text

    @property
    def over(self) -> str | None:
        """Why the text has ended, or None."""
        return self.bench.ended

    def guess(self, typed: str) -> Table:
        """Your next words; nothing for a pass. What the target says of each of their tokens.

        Raises:
            BadInput: the text has ended, or the words cannot be written in its vocabulary.
        """
        require(isinstance(typed, str), "typed words", "text; empty for a pass", typed)
        turns = self.turns

        def back() -> None:
            self.turns = turns

        return or_back(back, lambda: self.bench.standing.act(lambda: self._guess(typed)))

    def _guess(self, typed: str) -> Table:
        bench = self.bench
        if bench.ended:
            raise BadInput(
                "text",
                expected="one that goes on",
                got=f"one that has ended ({bench.ended})",
                next_step="begin another contest",
            )
        so_far = (*bench.prompt, *bench.tokens)
        ids = ids_after(bench.lab.tokenizer, so_far, typed) if typed.strip() else ()
        self.you.offer(so_far, ids)
        bench.set(draft_length=len(ids))
        others = {name: self._trial(name, len(ids)) for name in self.rivals} if ids else {}
        bench.step()
        self.turns = (*self.turns, Turn(typed, {YOU: bench.trace.rounds[-1], **others}))
        return self.said

    def _trial(self, method: str, length: int) -> Round:
        """What another drafter would have had here, with draws of its own."""
        seed = self.bench.settings.config.seed + 1_000 * (len(self.turns) + 1)
        return self.bench.trial(method, draft_length=length, rng=TorchRng(seed))

    # --- seeing -----------------------------------------------------------------------------------

    @property
    def said(self) -> Table:
        """The last turn, token by token."""
        if not self.turns:
            raise BadInput(
                "turn", expected="one that was played", got="none so far", next_step="guess first"
            )
        told = verdicts(self.turns[-1].rounds[YOU], self.bench.lab.token_text)
        return Table(told.columns, told.rows, f"{told.sentence}{self._hint()}")

    def _hint(self) -> str:
        """Was the last word only begun, and right so far?"""
        round_ = self.turns[-1].rounds[YOU]
        trials = round_.verified.trials if round_.verified else ()
        if not trials or trials[-1].accepted or trials[-1].node != len(round_.drafted.tokens) - 1:
            return ""
        words, own = self.bench.lab.token_text, round_.verified
        typed, said = round_.drafted.tokens[-1], own.next_token if own else -1
        begun, whole = words(typed), words(said)
        if not begun.strip() or begun == whole or not whole.startswith(begun):
            return ""
        return (
            f" Your last piece {shown(words, typed)} begins the target's {shown(words, said)}: it "
            "is another token all the same. Finish the word next time."
        )

    @property
    def figures(self) -> dict[str, Acceptance]:
        """Acceptance of everybody, over the turns in which you guessed."""
        played = [turn for turn in self.turns if turn.counts]
        return {name: _pooled(turn.rounds[name] for turn in played) for name in self._players}

    @property
    def _players(self) -> tuple[str, ...]:
        return (YOU, *self.rivals)

    @property
    def score(self) -> Table:
        """You beside the others."""
        figures = self.figures
        rows = tuple(
            (
                name,
                str(found.drafted),
                str(found.accepted),
                rate(found.rate),
                rate(found.mean_accepted_length),
            )
            for name, found in figures.items()
        )
        heads = ("drafter", "guessed", "accepted", "share right", "tokens per round")
        return Table(heads, rows, self._standing(figures))

    def _standing(self, figures: dict[str, Acceptance]) -> str:
        played = figures[YOU].rounds
        away = "".join(f" No {name} here: it needs weights." for name in self.absent)
        if not played:
            return f"Nobody has guessed yet.{away}"
        best = max(found.accepted for found in figures.values())
        names = [name for name, found in figures.items() if found.accepted == best]
        leads = "lead" if len(names) > 1 or names == [YOU] else "leads"
        who = " and ".join(names)
        places = "1 place" if played == 1 else f"{played} places"
        return (
            f"At {places} of one text, with as many guesses each as you typed: {who[0].upper()}"
            f"{who[1:]} {leads} with {best} accepted.{away}"
        )

    @property
    def trace(self) -> Trace:
        """Your rounds, for every picture of `labkit.viz`."""
        return self.bench.trace

    @property
    def widget(self) -> Any:
        """The contest as a field to type into; made once, and anew where it has been closed."""
        if self._face is None or self._face.box.comm is None:
            from labkit.lab.contest_face import ContestFace

            self._face = ContestFace(self)
        return self._face.box

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from labkit.lab.contest_face import still

        return interactive(self.widget, html=still(self), text=repr(self))

    def __repr__(self) -> str:
        if not self.turns:
            return f"Be the drafter: what comes next? {self.bench.law}"
        said = verdict(self.turns[-1].rounds[YOU], self.bench.lab.token_text).replace("`", "'")
        end = f" The text ends here ({self.over})." if self.over else ""
        return f"{said}{end} {self.score!r}"


def _listed(methods: Sequence[str]) -> tuple[str, ...]:
    is_list = isinstance(methods, Sequence) and not isinstance(methods, str)
    require(is_list, "against", "a list of methods", methods)
    return tuple(methods)


def _pooled(rounds: Any) -> Acceptance:
    events = [e for r in rounds for e in (r.drafted, r.scored, r.verified, r.committed)]
    return acceptance(Trace(tuple(events)))
