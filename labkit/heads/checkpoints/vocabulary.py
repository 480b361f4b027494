"""The map between a head's words and the target's.

Owns: ``d2t`` and ``t2d``, both ways. Does not know: the other tensors.
Invariants: ``d2t`` holds offsets; a map that does not fit is refused, never mended; without a map
a head has the target's whole vocabulary, or it is refused.

    vocab_ids   3  7  11  20        target id = draft id + d2t[draft id]
    draft id    0  1   2   3        t2d[j] is True where j is among vocab_ids
    d2t         3  6   9  17
"""

from pathlib import Path

import torch
from torch import Tensor

from labkit.errors import BadCheckpoint
from labkit.heads.checkpoints.files import broken

_FEW = 8


def d2t_of(vocab_ids: Tensor) -> Tensor:
    """[D] ascending target ids -> [D] offsets, int64."""
    return vocab_ids - torch.arange(len(vocab_ids))


def t2d_of(vocab_ids: Tensor, *, vocab_size: int) -> Tensor:
    """[D] ascending target ids -> [V] bool."""
    return torch.zeros(vocab_size, dtype=torch.bool).index_fill_(0, vocab_ids, True)


def read_vocabulary(
    path: Path, d2t: Tensor | None, t2d: Tensor | None, *, vocab_size: int, draft_vocab_size: int
) -> tuple[Tensor, str, tuple[str, ...]]:
    """Target ids int64 [D], how they were found, and doubts.

    Raises:
        BadCheckpoint: no map for fewer words than the target has; a map of another size, outside
            the target's vocabulary, not ascending, or in contradiction to the other one.
    """
    V, D = vocab_size, draft_vocab_size
    if t2d is not None and t2d.shape != (V,):
        raise broken(path, expected=f"t2d of shape ({V},)", got=str(tuple(t2d.shape)))
    kept = None if t2d is None else t2d.bool().nonzero().flatten()
    if kept is not None and len(kept) != D:
        raise broken(path, expected=f"{D} words marked in t2d", got=str(len(kept)))
    if d2t is None:
        if kept is not None:
            return kept, "t2d (no d2t)", ()
        if D == V:
            return torch.arange(D), "none: all words of the target", ()
        raise broken(
            path,
            expected=f"d2t or t2d for a head with {D} of the target's {V} words",
            got="neither",
            next_step="get the complete head; which words it knows cannot be guessed",
        )
    if d2t.shape != (D,):
        raise broken(path, expected=f"d2t of shape ({D},)", got=str(tuple(d2t.shape)))
    ids = d2t.long() + torch.arange(D)
    _check_ids(path, ids, d2t.long(), kept, vocab_size=V)
    return ids, "d2t offsets" + ("" if t2d is None else ", t2d agrees"), _doubts(d2t, kept)


def _check_ids(
    path: Path, ids: Tensor, offsets: Tensor, kept: Tensor | None, *, vocab_size: int
) -> None:
    if not bool(offsets.any()) and len(ids) != vocab_size:
        raise broken(
            path,
            expected=f"offsets in d2t that choose {len(ids)} of {vocab_size} words",
            got="only zeros, as in a map that was never filled",
            next_step="get the complete head; which words it knows cannot be guessed",
        )
    ascending = bool((ids[1:] > ids[:-1]).all())
    inside = int(ids.min()) >= 0 and int(ids.max()) < vocab_size
    if kept is not None and torch.equal(offsets, kept) and not torch.equal(ids, kept):
        raise _absolute(path, "exactly the words marked in t2d")
    if not (ascending and inside):
        if (
            bool((offsets[1:] > offsets[:-1]).all())
            and 0 <= int(offsets[0]) <= int(offsets[-1]) < vocab_size
        ):
            raise _absolute(path, "ascending numbers that are ids only by themselves")
        raise broken(
            path,
            expected=f"ascending target ids below {vocab_size} from d2t",
            got=f"{ids[:_FEW].tolist()}..., largest {int(ids.max())}",
        )
    if kept is not None and not torch.equal(ids, kept):
        raise broken(
            path,
            expected="the same words in d2t and t2d",
            got=f"{int((ids != kept).sum())} that differ",
            next_step="get the head again from its source",
        )


def _absolute(path: Path, got: str) -> BadCheckpoint:
    return broken(
        path,
        expected="offsets in d2t (target id minus draft id)",
        got=f"target ids as they are: {got}",
        next_step="subtract 0, 1, 2, ... from d2t, and check the head's acceptance",
    )


def _doubts(d2t: Tensor, kept: Tensor | None) -> tuple[str, ...]:
    # frequent words lie side by side in real vocabularies, so that offsets stay level there
    if kept is None and len(d2t) > _FEW and bool((d2t[1:] > d2t[:-1]).all()):
        return (
            "d2t never stays level, as target ids would not; it is read as offsets, "
            "and there is no t2d to check it against",
        )
    return ()
