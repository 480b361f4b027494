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
interrupted leaves everything as it was.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from labkit.devices import is_gpu
from labkit.draft import Draft
from labkit.drafters.base import Drafter
from labkit.drafters.shapes import Shape
from labkit.errors import BadInput
from labkit.events import AnyEvent, Drafted
from labkit.lab import edits
from labkit.lab.branches import Comparison, Way
from labkit.lab.cards import interactive
from labkit.lab.courses import How, Step
from labkit.lab.desk import Desk, tokens_of
from labkit.lab.growth import Growth
from labkit.lab.retold import retold
from labkit.lab.session import Lab
from labkit.lab.settings import Settings, check_names
from labkit.lab.tables import Table
from labkit.lab.told import guesses, shown, verdict, verdicts
from labkit.lab.typed import ids_after, ids_themselves
from labkit.sampling import Rng, TorchRng
from labkit.trace import Round, Trace
from labkit.tree import DraftTree
from labkit.viz.sentences import counted
from labkit.viz.views import draft_tree, kv_slots, ribbon

K = 4
"""Tokens drafted per round unless told otherwise: enough to have something to edit."""
Words = str | int | Sequence[int]
"""Text as one types it (see `labkit.lab.typed`), a token id, or several."""


def open(lab: Lab, prompt: str | Sequence[int], **options: Any) -> "Workbench":
    """A workbench on ``prompt``; see `Workbench` for the options."""
    return Workbench(lab, prompt, **options)


@dataclass(frozen=True, slots=True)
class Pending:
    """A draft that waits for its verdict. draft: as it will be judged; drafted: as it is shown."""

    draft: Draft
    drafted: Drafted
    how: How


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
        self.lab, self._chat, self._slots = lab, chat, slots
        self._asked = prompt if isinstance(prompt, str) else ""
        ids = lab.tokens(prompt, chat=chat) if isinstance(prompt, str) else prompt
        self.prompt = tuple(lab.target.check_tokens(ids))
        check_names(settings)
        config = lab.config(**{"draft_length": K, "detail": "full", **settings})
        self._desk = Desk(lab, self.prompt, own=drafter)
        self._grown = Growth()
        self._pending: Pending | None = None
        self._rng = rng or TorchRng(config.seed, ahead=is_gpu(lab.target.device))
        self.settings = Settings(drafter.name if drafter else method, config, shape)
        self._desk.drafter(self.settings)
        self._face: Any = None

    # --- what is there ----------------------------------------------------------------------------

    @property
    def steps(self) -> tuple[Step, ...]:
        """The rounds up to where we stand."""
        return self._grown.steps

    @property
    def at(self) -> int:
        """Rounds up to where we stand."""
        return self._grown.at

    @property
    def here(self) -> str:
        """The branch we are on."""
        return self._grown.here

    @property
    def branches(self) -> dict[str, int]:
        """Every branch and how many rounds it has."""
        return self._grown.sizes

    @property
    def tokens(self) -> tuple[int, ...]:
        """The new tokens up to where we stand."""
        return tokens_of(self.steps)

    @property
    def text(self) -> str:
        """Their text."""
        return "".join(step.committed.text for step in self.steps)

    @property
    def pending(self) -> Pending | None:
        """The draft that waits for its verdict, if there is one."""
        return self._pending

    @property
    def law(self) -> str:
        """What the next token is drawn from, in one sentence."""
        return self.settings.law([self._named(token) for token in self.settings.forbidden])

    @property
    def ended(self) -> str | None:
        """Why the text ends where we stand, or None."""
        reason = self.steps[-1].reason if self.steps else None
        if reason not in (None, "max_new_tokens"):
            return reason
        # as of now: the number may have been changed where the text was shorter or longer
        full = len(self.tokens) >= self.settings.config.max_new_tokens
        return "max_new_tokens" if full else None

    # --- rounds -----------------------------------------------------------------------------------

    def draft(self) -> Table:
        """Let the drafter propose, and stop there. A draft that you have seen is judged as one-hot,
        since you could have changed it; `step` keeps it sealed and judges it by its q."""
        self._check_open()
        draft, drafted = self._desk.draft(self.settings, self.steps, self._rng)
        self._pending = Pending(edits.seen(draft), drafted, "seen")
        return self.guesses

    def replace(self, node: int, words: Words) -> Table:
        """Another guess at ``node``. Several tokens take the place of all that hangs below, too."""
        draft = self._waiting().draft
        ids = self._ids(words, below=draft.tree.parents[node] if 0 < node < len(draft.tree) else 0)
        if len(ids) == 1:
            return self._edit(edits.replaced(draft, node, ids[0]))
        return self._edit(edits.added(edits.cut(draft, node), draft.tree.parents[node], ids))

    def cut(self, node: int) -> Table:
        """Leave out ``node`` and everything below it."""
        return self._edit(edits.cut(self._waiting().draft, node))

    def add(self, words: Words, *, after: int | None = None) -> Table:
        """More guesses, below node ``after``; None: below the last node. Without a draft, yours
        begins one."""
        if self._pending is None:
            self._check_open()
            root = Draft.deterministic(DraftTree.chain((*self.prompt, *self.tokens)[-1:]))
            ids = self._ids(words)
            return self._edit(edits.added(root, 0, ids))
        draft = self._pending.draft
        after = len(draft.tree) - 1 if after is None else after
        ids = self._ids(words, below=after if 0 <= after < len(draft.tree) else 0)
        return self._edit(edits.added(draft, after, ids))

    def drop(self) -> None:
        """Throw the waiting draft away."""
        self._pending = None

    def verify(self) -> Table:
        """Have the waiting draft judged: what the target says of each guess."""
        pending = self._waiting()
        by = "you" if pending.how == "edited" else self.settings.method
        self._write(self._judged(pending.draft, how=pending.how, by=by, drafted=pending.drafted))
        return self.said

    def step(self) -> Table:
        """A whole round: the waiting draft if there is one, else a new one that stays sealed."""
        if self._pending:
            return self.verify()
        self._check_open()
        draft, drafted = self._desk.draft(self.settings, self.steps, self._rng)
        self._write(self._judged(draft, how="run", by=self.settings.method, drafted=drafted))
        return self.said

    def run(self, rounds: int = 1) -> Table:
        """Several rounds, or fewer where the text ends."""
        told = self.step()
        for _ in range(rounds - 1):
            if self.ended:
                break
            told = self.step()
        return told

    def force(self, words: Words) -> Table:
        """Write tokens by hand, one round each. They are not drawn from the target, are flagged as
        forced, and count in no acceptance figure."""
        self._check_open()
        ids = self._ids(words)
        self._pending = None
        for token in ids:
            self._write(self._desk.force(self.settings, self.steps, token, self._rng))
            if self.ended:
                break
        return self.said

    def trial(self, method: str, *, draft_length: int | None = None, rng: Rng) -> Round:
        """The round that another drafter would have had here. Nothing of it stays."""
        length = self.settings.config.draft_length if draft_length is None else draft_length
        config = replace(self.settings.config, draft_length=length)
        settings = replace(self.settings, method=method, config=config, shape=None)
        return self._desk.trial(settings, self.steps, rng)

    # --- settings ---------------------------------------------------------------------------------

    def set(self, **changes: Any) -> str:
        """Change ``method``, ``shape`` or any field of `DecodeConfig` from the next round on; the
        waiting draft is thrown away. Returns the `law`."""
        settings = self.settings.changed(changes, made=len(self.tokens))
        self._desk.drafter(settings)  # refuses before anything has changed
        if "seed" in changes:
            self._rng = TorchRng(settings.config.seed, ahead=is_gpu(self.lab.target.device))
        self.settings, self._pending = settings, None
        return self.law

    def forbid(self, words: Words) -> str:
        """Rule one token out from the next round on. Returns the `law`, another one now."""
        ids = self._ids(words)
        if len(ids) != 1:
            raise BadInput(
                "token to forbid",
                expected="one token",
                got=f"{len(ids)}: " + " ".join(map(self._named, ids)),
                next_step="forbid one of them, by its text or its id",
            )
        forbidden = tuple(sorted({*self.settings.forbidden, *ids}))
        self.settings, self._pending = replace(self.settings, forbidden=forbidden), None
        return self.law

    def allow(self, words: Words | None = None) -> str:
        """Take a ban back; None: all of them. Returns the `law`."""
        freed = set(self.settings.forbidden if words is None else self._ids(words))
        left = tuple(t for t in self.settings.forbidden if t not in freed)
        self.settings, self._pending = replace(self.settings, forbidden=left), None
        return self.law

    # --- branches ---------------------------------------------------------------------------------

    def rewind(self, round: int) -> str:
        """Stand after ``round`` of this branch again (0: at the prompt). Later rounds stay: what is
        written here next begins a new branch."""
        self._grown.rewind(round)
        self._pending = None
        return repr(self)

    def branch(self, name: str | None = None) -> str:
        """Begin a branch here, under a name of your own. Returns the name."""
        return self._grown.branch(name)

    def switch(self, name: str) -> str:
        """Go to the end of another branch."""
        self._grown.switch(name)
        self._pending = None
        return repr(self)

    def compare(self, left: str, right: str) -> Comparison:
        """Two branches: where they part, their tokens, acceptance, probability under the target."""
        ways = (Way.of(name, self._grown.of(name)) for name in (left, right))
        return Comparison.of(*ways, words=self._named)

    # --- seeing -----------------------------------------------------------------------------------

    @property
    def trace(self) -> Trace:
        """The rounds up to where we stand, for every picture of `labkit.viz`."""
        return self._trace(self.steps)

    def trace_of(self, name: str) -> Trace:
        """A whole branch."""
        return self._trace(self._grown.of(name))

    @property
    def guesses(self) -> Table:
        """The waiting draft, node by node."""
        pending = self._waiting()
        by = "you" if pending.how == "edited" else self.settings.method
        return guesses(pending.drafted, self.lab.token_text, by=by)

    @property
    def said(self) -> Table:
        """The last round: what the target said of each guess."""
        if not self.steps:
            raise BadInput(
                "round",
                expected="a round that was judged",
                got="none so far",
                next_step="draft and verify one",
            )
        return verdicts(self._round(), self.lab.token_text)

    def pictures(self, *, width: int = 960, lines: int = 3) -> list[Any]:
        """The present round: the end of the ribbon, the draft as a tree where it branches, and the
        KV slots where they were asked for."""
        now = self._now()
        drawn = [ribbon(now, width=width, lines=lines)]
        tree = now.rounds[-1].drafted.parents if now.rounds else (-1,)
        if tree != tuple(range(-1, len(tree) - 1)):
            drawn.append(draft_tree(now, round=len(now.rounds), width=width))
        if self._slots:
            drawn.append(kv_slots(now, width=width))
        return drawn

    @property
    def widget(self) -> Any:
        """The workbench as a box of buttons, made once."""
        if self._face is None:
            from labkit.lab.live_face import Face

            self._face = Face(self)
        return self._face.box

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from labkit.lab.live_face import still

        return interactive(self.widget, html=still(self), text=repr(self))

    def __repr__(self) -> str:
        where = f"Branch {self.here}, after round {self.at} of {self.branches[self.here]}"
        said = f" {verdict(self._round(), self.lab.token_text)}" if self.steps else ""
        waits = " A draft waits for its verdict." if self._pending else ""
        end = f" The text ends here ({self.ended})." if self.ended else ""
        made = counted(len(self.tokens), "new token")
        return f"{where}: {made}.{said}{waits}{end} {self.law}".replace("`", "'")

    # --- within -----------------------------------------------------------------------------------

    def _judged(self, draft: Draft, *, how: How, by: str, drafted: Drafted) -> Step:
        seconds = drafted.seconds
        return self._desk.judge(
            self.settings, self.steps, draft, self._rng, how=how, by=by, seconds=seconds
        )

    def _write(self, step: Step) -> None:
        self._grown.write(step)
        self._pending = None

    def _edit(self, draft: Draft) -> Table:
        drafted = self._desk.drafted(self.settings, self.steps, draft, self._rng)
        self._pending = Pending(draft, drafted, "edited")
        return self.guesses

    def _waiting(self) -> Pending:
        if self._pending is None:
            raise BadInput(
                "draft",
                expected="one that waits for its verdict",
                got="none",
                next_step="let the drafter draft first, or add a guess of your own",
            )
        return self._pending

    def _check_open(self) -> None:
        if self.ended:
            raise BadInput(
                "text",
                expected="one that goes on",
                got=f"one that ends here ({self.ended})",
                next_step="rewind to an earlier round, or allow more with max_new_tokens",
            )

    def _ids(self, words: Words, *, below: int = 0) -> tuple[int, ...]:
        """Token ids of ``words`` behind the text, or behind node ``below`` of the waiting draft."""
        if isinstance(words, str):
            tree = self._pending.draft.tree if self._pending else None
            path = tree.path(below)[1:] if tree else ()
            text = [*self.prompt, *self.tokens, *(tree.tokens[i] for i in path if tree)]
            return ids_after(self.lab.tokenizer, text, words)
        return ids_themselves(words, vocab_size=self.lab.target.vocab_size)

    def _named(self, token: int) -> str:
        return shown(self.lab.token_text, token)

    def _round(self) -> Round:
        step = self.steps[-1]
        return Round(self.at, step.drafted, step.scored, step.verified, step.committed)

    def _now(self) -> Trace:
        """Up to where we stand, and the draft that waits."""
        waiting = [self._pending.drafted] if self._pending else []
        return self._trace(self.steps, *waiting)

    def _trace(self, steps: Sequence[Step], *more: AnyEvent) -> Trace:
        return retold(
            self.lab,
            self.prompt,
            steps,
            settings=self.settings,
            prefilled=self._desk.prefilled,
            asked=self._asked,
            chat=self._chat,
            more=more,
        )
