"""A workbench: one text in the making, and every lever of its decoding in your hand.

    from labkit.lab import live
    bench = live.open(lab, "Why is the sky blue?", method="draft", draft_length=4)
    bench.draft()                     # look at the next draft; nothing is judged yet
    bench.replace(2, "green")         # change a guess; also cut(3), add("of light", after=2)
    bench.verify()                    # what the target says of each
    bench.run(3)                      # three rounds in one go
    bench.force("because")            # write a token yourself; forbid("the") rules one out
    bench.set(temperature=0.8, draft_length=6, method="eagle3")
    bench.rewind(2)                   # after round 2 again; what comes next is a new branch
    bench.compare("main", "branch 2")
    bench.widget                      # all of it by clicking

Owns: what each action does to the text, and the draft that waits for its verdict.
Does not know: the round itself, which is the engine's (`labkit.decode.Run`); how branches are kept
(`labkit.lab.growth`); widgets.
Invariants: whatever is done, the next token follows `Workbench.law`, save where it was forced:
whoever may look at a draft and change it has it judged as one-hot. Choosing among texts after
reading them, by rewinding, is a choice of yours, and no law speaks of it. Nothing is ever lost: a
round that is written where a later one stands begins a new branch. An action that fails or is
interrupted leaves everything as it was, the draws to come included; of a `run`, the rounds that
were over stay. Views that are open are told of every change, whoever makes it.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from labkit.devices import is_gpu
from labkit.draft import Draft
from labkit.drafters.base import Drafter, check_drafter
from labkit.drafters.shapes import Shape
from labkit.errors import require
from labkit.events import Drafted, Prefilled
from labkit.ids import numbered
from labkit.lab import edits, sights
from labkit.lab.branches import Comparison, Way
from labkit.lab.cards import interactive
from labkit.lab.courses import How, Step
from labkit.lab.desk import Desk
from labkit.lab.session import Lab
from labkit.lab.settings import Settings
from labkit.lab.standing import Pending, Standing, action, or_back
from labkit.lab.tables import Table
from labkit.lab.told import guesses, shown, verdicts
from labkit.lab.typed import ids_after, ids_themselves, only_one
from labkit.sampling import Rng, TorchRng
from labkit.trace import Round, Trace
from labkit.tree import DraftTree

K = 4
"""Tokens drafted per round unless told otherwise: enough to have something to edit."""
Words = str | int | Sequence[int]
"""Text as one types it (see `labkit.lab.typed`), a token id, or several."""


def open(lab: Lab, prompt: str | Sequence[int], **options: Any) -> "Workbench":
    """A workbench on ``prompt``; see `Workbench` for the options."""
    return Workbench(lab, prompt, **options)


class Workbench:
    """See the module.

    Args:
        prompt: text, or token ids as they are.
        method: who drafts at first; drafter: somebody of your own instead.
        chat: put the prompt into the model's chat template.
        shape: of the drafts, for the methods with a head; None: the method's own.
        rng: source of every draw; by default seeded with ``seed``.
        slots: show the target's KV slots too.
        settings: fields of `DecodeConfig`.

    Raises:
        BadInput: a prompt, method or setting that cannot be used. ModelUnavailable: no draft
        model or head for this target.
    """

    def __init__(
        self,
        lab: Lab,
        prompt: str | Sequence[int],
        *,
        method: str = "draft",
        drafter: Drafter | None = None,
        chat: bool = True,
        shape: Shape | None = None,
        rng: Rng | None = None,
        slots: bool = False,
        **settings: Any,
    ) -> None:
        self.lab, self.chat, self._slots = lab, chat, slots
        self.asked = prompt if isinstance(prompt, str) else ""
        self.prompt = tuple(lab.ids(prompt, chat=chat))
        config = lab.config(**{"draft_length": K, "detail": "full", **settings})
        own = None if drafter is None else check_drafter(drafter)
        require(rng is None or isinstance(rng, Rng), "rng", "a labkit.sampling.Rng", rng)
        first = Settings(own.name if own else method, config, shape)
        self._desk = Desk(lab, self.prompt, own=own)
        self._desk.drafter(first)  # refused here, if it cannot be had
        draws = rng or TorchRng(config.seed, ahead=is_gpu(lab.target.device))
        self.standing = Standing(first, draws)
        self._face: Any = None

    # --- what is there ----------------------------------------------------------------------------

    @property
    def steps(self) -> tuple[Step, ...]:
        """The rounds up to where we stand."""
        return self.standing.grown.steps

    @property
    def at(self) -> int:
        """Rounds up to where we stand."""
        return self.standing.grown.at

    @property
    def here(self) -> str:
        """The branch we are on."""
        return self.standing.grown.here

    @property
    def branches(self) -> dict[str, int]:
        """Every branch and how many rounds it has."""
        return self.standing.grown.sizes

    @property
    def tokens(self) -> tuple[int, ...]:
        """The new tokens up to where we stand."""
        return self.standing.tokens

    @property
    def text(self) -> str:
        """Their text."""
        return "".join(step.committed.text for step in self.steps)

    @property
    def pending(self) -> Pending | None:
        """The draft that waits for its verdict, if there is one."""
        return self.standing.pending

    @property
    def settings(self) -> Settings:
        """Those of the next round."""
        return self.standing.settings

    @property
    def prefilled(self) -> Prefilled | None:
        """What was told of the prompt, once it has been read."""
        return self._desk.prefilled

    @property
    def law(self) -> str:
        """What the next token is drawn from, in one sentence."""
        return self.settings.law([self._named(token) for token in self.settings.forbidden])

    @property
    def ended(self) -> str | None:
        """Why the text ends where we stand, or None."""
        return self.standing.ended

    # --- rounds -----------------------------------------------------------------------------------

    @action
    def draft(self) -> Table:
        """Let the drafter propose, and stop there. A draft that you have seen is judged as one-hot,
        since you could have changed it; `step` keeps it sealed and judges it by its q."""
        self.standing.check_open()
        draft, drafted = self._desk.draft(self.settings, self.steps, self.standing.rng)
        self.standing.pending = Pending(edits.seen(draft), drafted, "seen")
        return self.guesses

    @action
    def replace(self, node: int, words: Words) -> Table:
        """Another guess at ``node``. Several tokens take the place of all that hangs below, too."""
        draft = self.standing.waiting().draft
        node = edits.check_node(draft, node, first=1)
        ids = self._ids(words, below=draft.tree.parents[node])
        if len(ids) == 1:
            return self._edit(edits.replaced(draft, node, ids[0]))
        return self._edit(edits.added(edits.cut(draft, node), draft.tree.parents[node], ids))

    @action
    def cut(self, node: int) -> Table:
        """Leave out ``node`` and everything below it."""
        return self._edit(edits.cut(self.standing.waiting().draft, node))

    @action
    def add(self, words: Words, *, after: int | None = None) -> Table:
        """More guesses, below node ``after``; None: below the last node. Without a draft, yours
        begins one."""
        if self.pending is None:
            self.standing.check_open()
            draft = Draft.deterministic(DraftTree.chain((*self.prompt, *self.tokens)[-1:]))
        else:
            draft = self.pending.draft
        last = len(draft.tree) - 1
        after = edits.check_node(draft, last if after is None else after, first=0)
        return self._edit(edits.added(draft, after, self._ids(words, below=after)))

    @action
    def drop(self) -> None:
        """Throw the waiting draft away."""
        self.standing.pending = None

    @action
    def verify(self) -> Table:
        """Have the waiting draft judged: what the target says of each guess."""
        pending = self.standing.waiting()
        return self._judged(pending.draft, how=pending.how, drafted=pending.drafted)

    @action
    def step(self) -> Table:
        """A whole round: the waiting draft if there is one, else a new one that stays sealed."""
        if self.pending:
            return self.verify()
        self.standing.check_open()
        draft, drafted = self._desk.draft(self.settings, self.steps, self.standing.rng)
        return self._judged(draft, how="run", drafted=drafted)

    def run(self, rounds: int = 1) -> Table:
        """Several rounds, or fewer where the text ends. Those that are over stay, whatever comes
        between."""
        help_ = "say how many rounds, or leave it out for one"
        count = numbered(rounds, first=1, name="rounds", next_step=help_)

        def work() -> Table:
            told = self.step()
            for _ in range(count - 1):
                if self.ended:
                    break
                told = self.step()
            return told

        return self.standing.together(work)

    @action
    def force(self, words: Words) -> Table:
        """Write tokens by hand, one round each. They are not drawn from the target, are flagged as
        forced, and count in no acceptance figure."""
        self.standing.check_open()
        ids = self._ids(words)
        self.standing.pending = None
        for token in ids:
            self._write(self._desk.force(self.settings, self.steps, token, self.standing.rng))
            if self.ended:
                break
        return self.said

    def trial(self, method: str, *, draft_length: int | None = None, rng: Rng) -> Round:
        """The round that another drafter would have had here. Nothing of it stays; ``rng`` moves
        on, unless it fails."""
        self.standing.check_open()
        require(isinstance(rng, Rng), "rng", "a labkit.sampling.Rng", rng)
        length = self.settings.config.draft_length if draft_length is None else draft_length
        config = replace(self.settings.config, draft_length=length)
        settings = replace(self.settings, method=method, config=config, shape=None)
        work = partial(self._desk.trial, settings, self.steps, rng)
        return or_back(rng.mark(), work)

    # --- settings ---------------------------------------------------------------------------------

    @action
    def set(self, **changes: Any) -> str:
        """Change ``method``, ``shape`` or any field of `DecodeConfig` from the next round on; the
        waiting draft is thrown away. Returns the `law`."""
        settings = self.settings.changed(changes, made=len(self.tokens))
        self._desk.drafter(settings)  # refuses before anything has changed
        if "seed" in changes:
            draws = TorchRng(settings.config.seed, ahead=is_gpu(self.lab.target.device))
            self.standing.rng = draws
        self._settle(settings)
        return self.law

    @action
    def forbid(self, words: Words) -> str:
        """Rule one token out from the next round on. Returns the `law`, another one now."""
        token = only_one(self._ids(words), shown=self._named)
        forbidden = tuple(sorted({*self.settings.forbidden, token}))
        self._settle(replace(self.settings, forbidden=forbidden))
        return self.law

    @action
    def allow(self, words: Words | None = None) -> str:
        """Take a ban back; None: all of them. Returns the `law`."""
        freed = set(self.settings.forbidden if words is None else self._ids(words))
        left = tuple(t for t in self.settings.forbidden if t not in freed)
        self._settle(replace(self.settings, forbidden=left))
        return self.law

    # --- branches ---------------------------------------------------------------------------------

    @action
    def rewind(self, round: int) -> str:
        """Stand after ``round`` of this branch again (0: at the prompt). Later rounds stay: what is
        written here next begins a new branch."""
        self.standing.grown.rewind(round)
        self.standing.pending = None
        return repr(self)

    @action
    def branch(self, name: str | None = None) -> str:
        """Begin a branch here, under a name of your own. Returns the name."""
        return self.standing.grown.branch(name)

    @action
    def switch(self, name: str) -> str:
        """Go to the end of another branch."""
        self.standing.grown.switch(name)
        self.standing.pending = None
        return repr(self)

    def compare(self, left: str, right: str) -> Comparison:
        """Two branches: where they part, their tokens, acceptance, probability under the target."""
        ways = (Way.of(name, self.standing.grown.of(name)) for name in (left, right))
        return Comparison.of(*ways, words=self._named)

    # --- seeing -----------------------------------------------------------------------------------

    @property
    def trace(self) -> Trace:
        """The rounds up to where we stand, for every picture of `labkit.viz`."""
        return sights.trace(self, self.steps)

    def trace_of(self, name: str) -> Trace:
        """A whole branch."""
        return sights.trace(self, self.standing.grown.of(name))

    @property
    def guesses(self) -> Table:
        """The waiting draft, node by node."""
        pending = self.standing.waiting()
        return guesses(pending.drafted, self.lab.token_text, by=self._author(pending.how))

    @property
    def said(self) -> Table:
        """The last round: what the target said of each guess."""
        return verdicts(sights.last_round(self), self.lab.token_text)

    def pictures(self, *, width: int = 960, lines: int = 3) -> list[Any]:
        """The present round: the end of the ribbon, the draft as a tree where it branches, and the
        KV slots where they were asked for."""
        return sights.pictures(self, slots=self._slots, width=width, lines=lines)

    @property
    def widget(self) -> Any:
        """The workbench as a box of buttons; made once, and anew where it has been closed."""
        if self._face is None or self._face.box.comm is None:
            from labkit.lab.live_face import Face

            self._face = Face(self)
        return self._face.box

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from labkit.lab.live_face import still

        return interactive(self.widget, html=still(self), text=repr(self))

    def __repr__(self) -> str:
        return sights.sentence(self)

    # --- within -----------------------------------------------------------------------------------

    def _author(self, how: How) -> str:
        return "you" if how == "edited" else self.settings.method

    def _judged(self, draft: Draft, *, how: How, drafted: Drafted) -> Table:
        steps, rng, by = self.steps, self.standing.rng, self._author(how)
        took = drafted.seconds
        self._write(
            self._desk.judge(self.settings, steps, draft, rng, how=how, by=by, seconds=took)
        )
        return self.said

    def _write(self, step: Step) -> None:
        self.standing.grown.write(step)
        self.standing.pending = None

    def _settle(self, settings: Settings) -> None:
        self.standing.settings, self.standing.pending = settings, None

    def _edit(self, draft: Draft) -> Table:
        drafted = self._desk.drafted(self.settings, self.steps, draft, self.standing.rng)
        self.standing.pending = Pending(draft, drafted, "edited")
        return self.guesses

    def _ids(self, words: Words, *, below: int = 0) -> tuple[int, ...]:
        """Token ids of ``words`` behind the text, or behind node ``below`` of the waiting draft."""
        if isinstance(words, str):
            tree = self.pending.draft.tree if self.pending else None
            path = tree.path(below)[1:] if tree else ()
            text = [*self.prompt, *self.tokens, *(tree.tokens[i] for i in path if tree)]
            return ids_after(self.lab.tokenizer, text, words)
        return ids_themselves(words, vocab_size=self.lab.target.vocab_size)

    def _named(self, token: int) -> str:
        return shown(self.lab.token_text, token)
