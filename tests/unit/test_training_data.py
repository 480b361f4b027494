"""Training rows: what is read, what is refused, how they are split, batched and padded."""

import gzip
import hashlib
import json
import random

import pytest
import torch

from labkit.errors import BadInput
from labkit.training.data import (
    IGNORED,
    Row,
    Split,
    check_prompts,
    collate,
    epoch_batches,
    frequent_ids,
    read_rows,
    split,
)


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def some_rows(count, *, seed=0):
    rng = random.Random(seed)
    return tuple(
        Row(
            tuple(rng.randrange(50) for _ in range(rng.randint(1, 9))),
            tuple(rng.randrange(50) for _ in range(rng.randint(1, 30))),
        )
        for _ in range(count)
    )


def test_rows_are_read_plain_and_compressed(tmp_path):
    rows = [{"p": [1, 2], "r": [3], "kind": "x"}, {"p": [4], "r": [5, 6]}]
    plain = write(tmp_path / "a.jsonl", rows)
    packed = tmp_path / "a.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    expected = (Row((1, 2), (3,)), Row((4,), (5, 6)))
    assert read_rows(plain, vocab_size=7) == expected
    assert read_rows(packed, vocab_size=7) == expected


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("{", "JSON"),
        ("[1, 2]", "JSON object"),
        ('{"p": [1]}', '"r"'),
        ('{"p": [], "r": [1]}', '"p"'),
        ('{"p": "12", "r": [1]}', '"p"'),
        ('{"p": [1], "r": [1.5]}', '"r"'),
        ('{"p": [1], "r": [true]}', '"r"'),
        ('{"p": [1], "r": [-1]}', '"r"'),
        ('{"p": [1], "r": [7]}', "0 to 6"),
        ('{"p": [1, 1, 1, 1], "r": [1, 1]}', "at most 5"),
        ('{"p": [1], "r": [2', "JSON"),
    ],
)
def test_a_bad_row_is_named_by_its_line(tmp_path, line, word):
    path = tmp_path / "a.jsonl"
    path.write_text('{"p": [1], "r": [2]}\n\n' + line + "\n")
    with pytest.raises(BadInput, match="line 3") as caught:
        read_rows(path, vocab_size=7, context=5)
    assert word in str(caught.value)


def test_the_same_file_without_its_bad_row_is_read(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"p": [1], "r": [2]}\n\n')
    assert len(read_rows(path, vocab_size=7, context=5)) == 1


def test_files_that_cannot_be_read_are_refused(tmp_path):
    with pytest.raises(BadInput, match="no such file"):
        read_rows(tmp_path / "none.jsonl", vocab_size=7)
    with pytest.raises(BadInput, match="a folder"):
        read_rows(tmp_path, vocab_size=7)
    with pytest.raises(BadInput, match="an empty file"):
        read_rows(write(tmp_path / "empty.jsonl", []), vocab_size=7)
    not_packed = write(tmp_path / "plain.jsonl.gz", [{"p": [1], "r": [2]}])
    with pytest.raises(BadInput, match="compressed"):
        read_rows(not_packed, vocab_size=7)
    torn = tmp_path / "torn.jsonl.gz"
    text = "".join(json.dumps({"p": [1], "r": [i % 7, i % 5]}) + "\n" for i in range(5000))
    torn.write_bytes(gzip.compress(text.encode())[:-40])
    with pytest.raises(BadInput, match="after line"):
        read_rows(torn, vocab_size=7)


def test_the_split_does_not_depend_on_order_or_company():
    rows = some_rows(600)
    aside = set(split(rows, held_out=0.1).held_out)
    shuffled = list(rows)
    random.Random(1).shuffle(shuffled)
    assert set(split(shuffled, held_out=0.1).held_out) == aside
    few = rows[::3]
    assert set(split(few, held_out=0.1).held_out) == aside & set(few)
    # binomial, n = 600: 60 expected, standard deviation 7.3; five of them on either side
    assert 23 < len(aside) < 97


def test_the_split_sees_the_prompt_alone():
    rows = some_rows(300)
    other_replies = [Row(row.prompt, (*row.reply, 1)) for row in rows]
    aside = [row.prompt for row in split(rows, held_out=0.2).held_out]
    assert [row.prompt for row in split(other_replies, held_out=0.2).held_out] == aside
    # control: another prompt does change sides
    other_prompts = [Row((*row.prompt, 1), row.reply) for row in rows]
    assert [row.prompt[:-1] for row in split(other_prompts, held_out=0.2).held_out] != aside


def by_hash_alone(rows, *, held_out):
    """The rule that the rows of shipped weights were split by, and so the mutant of few rows."""

    def aside(row):
        digest = hashlib.sha256(" ".join(map(str, row.prompt)).encode()).digest()
        return int.from_bytes(digest[:8], "big") / 2**64 < held_out

    return Split(
        train=tuple(row for row in rows if not aside(row)),
        held_out=tuple(row for row in rows if aside(row)),
    )


def test_where_the_hash_fills_both_sides_it_alone_decides():
    for seed in range(20):
        rows = some_rows(300, seed=seed)
        expected = by_hash_alone(rows, held_out=0.02)
        assert expected.held_out  # 0.2 % of such files have none; none of these
        assert split(rows, held_out=0.02) == expected


@pytest.mark.parametrize(("held_out", "empty"), [(0.02, "held_out"), (0.98, "train")])
@pytest.mark.parametrize("count", [2, 3, 16])
def test_few_prompts_are_on_both_sides_whatever_their_hash(count, held_out, empty):
    files = [some_rows(count, seed=seed) for seed in range(30)]
    two_replies = [tuple(Row(r.prompt, (*r.reply, 1)) for r in rows) + rows for rows in files]
    one_sided = 0
    for rows in two_replies:
        found = split(rows, held_out=held_out)
        assert found.train
        assert found.held_out
        sides = [{row.prompt for row in side} for side in (found.train, found.held_out)]
        assert not sides[0] & sides[1]
        assert sorted(found.train + found.held_out, key=hash) == sorted(rows, key=hash)
        shuffled = random.Random(1).sample(rows, len(rows))
        assert set(split(shuffled, held_out=held_out).held_out) == set(found.held_out)
        if not getattr(by_hash_alone(rows, held_out=held_out), empty):
            one_sided += 1
            assert len({row.prompt for row in getattr(found, empty)}) == 1
    # control: the hash alone fails in most of these files, 0.98 ** 16 of them at the least
    assert one_sided > 15


@pytest.mark.parametrize(
    ("prompts", "counts"),
    [([[1, 2]], "rows: 1, different prompts: 1"), ([[1, 2]] * 9, "rows: 9, different prompts: 1")],
)
def test_one_prompt_is_too_few_and_known_without_a_model(tmp_path, prompts, counts):
    path = write(tmp_path / "a.jsonl", [{"p": p, "r": [i]} for i, p in enumerate(prompts)])
    with pytest.raises(BadInput, match=f"at least 2 different prompts, .*got {counts}"):
        check_prompts(path)
    with path.open("a") as file:
        file.write('{"p": [1, 3], "r": [1]}\n')
    check_prompts(path)


def test_the_commonest_ids_are_kept_and_ties_go_to_the_lower():
    rows = [Row((9,), (5, 5, 5, 7, 7, 3, 2))]
    assert frequent_ids(rows, size=3).tolist() == [2, 5, 7]
    assert frequent_ids(rows, size=6).tolist() == [0, 1, 2, 3, 5, 7]


def test_an_epoch_is_every_row_once_within_the_budget():
    rows = some_rows(500)
    batches = epoch_batches(rows, batch_tokens=80, seed=3, epoch=0)
    seen = [row for batch in batches for row in batch]
    assert sorted(seen, key=hash) == sorted(rows, key=hash)
    widths = [max(map(len, batch)) * len(batch) for batch in batches]
    assert max(widths) <= 80
    padding = 1 - sum(map(len, rows)) / sum(widths)
    assert padding < 0.15
    assert epoch_batches(rows, batch_tokens=80, seed=3, epoch=0) == batches
    assert epoch_batches(rows, batch_tokens=80, seed=3, epoch=1) != batches
    assert epoch_batches(rows, batch_tokens=80, seed=4, epoch=0) != batches


def test_a_row_above_the_budget_gets_a_batch_of_its_own():
    rows = [Row((1,) * 10, (2,) * 10), Row((1,), (2,)), Row((1,), (3,))]
    batches = epoch_batches(rows, batch_tokens=6, seed=0, epoch=0)
    assert sorted(len(batch) for batch in batches) == [1, 2]


def test_targets_are_the_next_reply_tokens():
    batch = collate([Row((11, 12, 13), (21, 22, 23)), Row((14,), (24,))], device="cpu")
    assert batch.tokens.tolist() == [[11, 12, 13, 21, 22, 23], [14, 24, 0, 0, 0, 0]]
    skip = IGNORED
    assert batch.targets.tolist() == [
        [skip, skip, 21, 22, 23, skip],
        [24, skip, skip, skip, skip, skip],
    ]
    # slow reference: each counted target is the token one to the right
    for tokens, targets in zip(batch.tokens, batch.targets, strict=True):
        for i in range(len(tokens) - 1):
            assert targets[i] in (skip, tokens[i + 1])
    assert int(torch.sum(batch.targets != skip)) == 4
