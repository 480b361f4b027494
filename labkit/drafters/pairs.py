"""What a head has read: the committed pairs, and the guesses of the draft under way.

Owns: a head's caches, the pairs that wait to be read into them, what each drafted node may see.
Does not know: which nodes grow, or are kept; the target; the accept rule.
Invariants: whatever is committed stands in the caches with the target's true states, never with the
head's own guesses at them; rows beyond the committed ones are guesses, and are forgotten before
anything else is read; a drafted node sees the committed pairs, its ancestors and itself; nothing
is read from the device.

    text       x0  x1  x2  x3       states of the target   f0  f1  f2
    step 0     (f0,x1) (f1,x2) (f2,x3)       gives a0 a1 a2, guesses x4 from the last
    step 1     (a0,x2) (a1,x3)               gives b0 b1: what is left of the text for it

A head of one step reads its own guesses again: (a2, x4) as if a2 were f3. A head of several has
each step read the one before, shifted by one token, and only the last goes on by itself. Its step
m lacks the last m pairs of the text, which the draft must bring: so it reads the whole path down
to each node, of which its own last m tokens are drafted.

    drafted    y1 y2        step 1 of two: (a2,y1)        then again: (b of that, y2)
                            step 2 of three: (b1,y1) and (b of (a2,y1), y2)
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from labkit.drafters.base import Commit
from labkit.drafters.feeding import Level
from labkit.heads.eagle import HeadStep
from labkit.heads.layers import KeyValues


class Head(Protocol):
    """A head on the target's states, of one step or several."""

    config: Any  # with needs and vocab_size
    vocab_ids: Tensor

    @property
    def device(self) -> torch.device: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def steps(self) -> Sequence[Callable[..., HeadStep]]: ...
    def fuse(self, states: Sequence[Tensor]) -> Tensor: ...
    def logits(self, normed: Tensor) -> Tensor: ...
    def cache(self) -> list[KeyValues]: ...


class Pairs:
    """The committed pairs of one head.

    Attributes:
        needs: names of the target's states that the pairs are made with.
        deepest: None, a head that reads its own guesses goes on as long as one likes.
        true: per step, pairs in its cache that are committed.
        last: per step, its output for the last of them, [1, H] each; None: it has none.
        clock: seconds; on a device that works asynchronously, one that waits for it.
    """

    deepest = None

    def __init__(self, head: Head, *, clock: Callable[[], float]) -> None:
        self.head, self.clock = head, clock
        self.needs: tuple[str, ...] = head.config.needs
        self.reset()

    @property
    def length(self) -> int:
        """Pairs in the first step's cache that are committed, with the target's own states."""
        return self.true[0]

    def reset(self) -> None:
        """A new sequence begins."""
        steps = len(self.head.steps)
        self.kv = [self.head.cache() for _ in range(steps)]
        self.true = [0] * steps
        self.last: list[HeadStep | None] = [None] * steps
        self._first = True  # the prompt's own first token has no state before it
        self._waiting: list[tuple[Sequence[int], list[Tensor]]] = []  # ids and states [m, Ht] each

    def observe(self, commit: Commit) -> None:
        """The text grew."""
        self.forget()
        ids = commit.tokens[1:] if self._first else commit.tokens
        self._first = False
        if ids:
            self._waiting.append((ids, [commit.hidden[name] for name in self.needs]))

    def forget(self) -> None:
        """Drop whatever was guessed."""
        for tables, true in zip(self.kv, self.true, strict=True):
            for table in tables:
                table.truncate(min(true, table.length))

    def source(self, depth: int) -> "Guesses | None":
        """What a draft after the committed text grows from; None before there is a pair."""
        if not (self._waiting or self.last[0]):
            return None
        before = self.clock()
        forwards = self._catch_up()
        return Guesses(self, forwards=forwards, inside=self.clock() - before)

    def _catch_up(self) -> int:
        """Read the pairs that wait, with their true states; forwards spent."""
        if not self._waiting:
            return 0
        head, true, last = self.head, list(self.true), list(self.last)
        ids = torch.tensor([[i for some, _ in self._waiting for i in some]], device=head.device)
        rows = zip(*(states for _, states in self._waiting), strict=True)
        state = head.fuse([torch.cat(some).to(head.dtype) for some in rows])[None]
        end, forwards = true[0] + ids.shape[1], 0
        for m, step in enumerate(head.steps):
            n = end - m - true[m]
            if n < 1:
                break
            made = step(
                ids[:, -n:],
                state[:, :n],
                positions=torch.arange(true[m], true[m] + n, device=head.device)[None],
                kv=self.kv[m],
                mask=_causal(n, true[m], device=head.device),
            )
            before, last[m] = last[m], HeadStep(made.recycled[0, -1:], made.normed[0, -1:])
            # the next step is one token behind: it still wants the state before the new ones
            older = [] if before is None else [before.recycled[None]]
            state = torch.cat((*older, made.recycled), 1)
            true[m] += n
            forwards += 1
        # until this line an interrupt leaves the pairs waiting, and the rows to be truncated
        self.true, self.last, self._waiting = true, last, []
        return forwards


def _causal(n: int, before: int, *, device: torch.device) -> Tensor | None:
    """[n, before + n]; one pair sees all there is."""
    if n == 1:
        return None
    return torch.ones(n, before + n, dtype=torch.bool, device=device).tril_(before)


class Guesses:
    """The source of one draft: one forward of the head per level, over the level before.

    level 1     a  b          from the last committed pair, without a forward of its own
    level 2     aa ab ba      one forward over (state of the last pair, a), (same state, b)
    level 3     ...           one forward over (state after a, aa), ...
    """

    def __init__(self, pairs: Pairs, *, forwards: int, inside: float) -> None:
        last = pairs.last[0]
        assert last is not None
        self.forwards, self.inside = forwards, inside
        self._pairs, self._head = pairs, pairs.head
        self._step = 0
        self._normed = last.normed
        self._states = last.recycled[None]  # [k, c, H], down the path to each node
        # [k, rows] drafted rows of the step's cache that each node sees
        self._seen = torch.zeros(1, 0, dtype=torch.bool, device=last.normed.device)
        self._alone = True  # one path only: it sees all rows there are

    @property
    def vocab_ids(self) -> Tensor:
        return self._head.vocab_ids

    @property
    def vocab_size(self) -> int:
        return int(self._head.config.vocab_size)

    def logits(self, level: Level) -> Tensor:
        """[k, D], raw, of the token after each node of ``level``."""
        if level.depth:
            start = self._pairs.clock()
            self._feed(level)
            self.inside += self._pairs.clock() - start
            self.forwards += 1
        return self._head.logits(self._normed)

    def _feed(self, level: Level) -> None:
        """Read the level's nodes; a step that was not in this draft yet, the paths down to them."""
        pairs, states, seen = self._pairs, self._states[level.above], self._seen[level.above]
        steps = self._head.steps
        now = min(level.depth, len(steps) - 1)
        if now == self._step:
            states = states[:, -1:]
        else:
            self._step, self._alone, seen = now, True, seen[:, :0]
        k, c, _ = states.shape
        device = states.device
        own = torch.eye(k, dtype=torch.bool, device=device).repeat_interleave(c, 1)
        end = pairs.true[0] + level.depth - now
        made = steps[now](
            level.paths[:, -c:].reshape(1, k * c),
            states.reshape(1, k * c, -1),
            positions=torch.arange(end - c, end, device=device).repeat(k)[None],
            kv=pairs.kv[now],
            mask=self._mask(seen, own, pairs.true[now]),
        )
        recycled = made.recycled.view(k, c, -1)
        self._normed = made.normed.view(k, c, -1)[:, -1]
        self._seen = torch.cat((seen, own), 1)
        before = pairs.last[now]
        if now + 1 < len(steps) and before is not None:  # a step is to come that starts with it
            recycled = torch.cat((before.recycled.expand(k, 1, -1), recycled), 1)
        self._states = recycled

    def _mask(self, seen: Tensor, own: Tensor, true: int) -> Tensor | None:
        """[k * c, true + drafted rows]: the committed, those seen so far, and one's own path.

        Args:
            seen: [k, rows before]; own: [k, k * c].
        """
        k, c = len(own), own.shape[1] // len(own)
        self._alone = self._alone and k == 1
        if self._alone and c == 1:
            return None
        paths = own.repeat_interleave(c, 0).tril()
        everything = seen.new_ones(k * c, true)
        return torch.cat((everything, seen.repeat_interleave(c, 0), paths), 1)
