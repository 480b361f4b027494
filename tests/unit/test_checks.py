"""Exercises answer back: every solution passes, every listed mistake gets its own words."""

import random

import pytest
import torch
from viz_traces import corrected

from labkit.errors import BadInput
from labkit.lab import broken, checks
from labkit.lab.wording import LANGUAGES, words
from labkit.tree import DraftTree


def residual(p, q):
    positive = (p - q).clamp(min=0)
    return positive / positive.sum()


def expected(alpha, count):
    return sum(alpha**i for i in range(count + 1))


def after_round(committed, nodes, path):
    kept = [nodes[node] for node in path]
    return committed + kept, [slot for slot in nodes if slot not in kept]


def tree_mask(parents):
    return [list(row) for row in DraftTree(range(len(parents)), parents).mask]


def pairs(count):
    return [(t - 1, t, t + 1) for t in range(1, count)]


def normed(x, weight):
    return torch.nn.functional.rms_norm(x, x.shape, weight, eps=0.0)


RIGHT = {
    checks.accept: lambda p, q, u: u < min(1.0, p / q),
    checks.residual: residual,
    checks.expected_tokens: expected,
    checks.after_round: after_round,
    checks.tree_mask: tree_mask,
    checks.pairs: pairs,
    checks.to_target: lambda draft_id, d2t: d2t[draft_id] + draft_id,
    checks.unrolled: lambda c, s: (c + s + 1, c + s + 2, len(range(c + 1)) + s),
    checks.handed_on: lambda x, w, switch: (normed(x, w), normed(x, w) if switch else x),
    checks.read_again: lambda drafted, accepted: (accepted + 1) * (accepted < drafted),
}


def path_of(parents, node):
    return DraftTree(range(len(parents)), parents).path(node)


def changed(parents, change):
    """The right mask with ``change(i, j, parents)`` in the places where it is not None."""
    rows = tree_mask(parents)
    for i, row in enumerate(rows):
        for j in range(len(row)):
            new = change(i, j, parents)
            row[j] = row[j] if new is None else new
    return rows


# (check, wrong answer, key of what should be said). Written apart from the lists in the module.
WRONG = [
    (checks.accept, lambda p, q, u: u < q / p if p else True, "swapped"),
    (checks.accept, lambda p, q, u: not p < q, "threshold"),
    (checks.accept, lambda p, q, u: u < p, "ignores_q"),
    (checks.accept, lambda p, q, u: u > min(1, p / q), "reversed"),
    (checks.accept, lambda p, q, u: min(1, p / q), "chance"),
    (checks.accept, lambda p, q, u: 1, "always"),
    (checks.accept, lambda p, q, u: False, "never"),
    (checks.residual, lambda p, q: residual(q, p), "swapped"),
    (checks.residual, lambda p, q: p - q, "negative"),
    (checks.residual, lambda p, q: (p - q) / (p - q).sum(), "negative"),
    (checks.residual, lambda p, q: (p - q).abs() / (p - q).abs().sum(), "absolute"),
    (checks.residual, lambda p, q: (p - q).clamp(min=0), "not_normalised"),
    (checks.residual, lambda p, q: p, "from_p"),
    (checks.residual, lambda p, q: torch.softmax(p - q, -1), "softmax"),
    (checks.expected_tokens, lambda a, k: expected(a, k) - 1, "no_own"),
    (checks.expected_tokens, lambda a, k: 1 + k * a, "independent"),
    (checks.expected_tokens, lambda a, k: k * a, "independent_no_own"),
    (checks.expected_tokens, lambda a, k: expected(a, k + 1), "too_long"),
    (checks.expected_tokens, lambda a, k: a**k, "last_only"),
    (checks.after_round, lambda c, n, p: after_round(c, n, p[1:]), "no_root"),
    (checks.after_round, lambda c, n, p: (c + n, []), "keeps_all"),
    (checks.after_round, lambda c, n, p: after_round(c, n, range(len(p))), "first_ones"),
    (
        checks.after_round,
        lambda c, n, p: (sorted(after_round(c, n, p)[0]), after_round(c, n, p)[1]),
        "sorted",
    ),
    (checks.after_round, lambda c, n, p: (after_round(c, n, p)[0], []), "freed"),
    (checks.after_round, lambda c, n, p: c + n, "shape"),
    (checks.tree_mask, lambda t: changed(t, lambda i, j, _: j <= i), "causal"),
    (
        checks.tree_mask,
        lambda t: changed(t, lambda i, j, _: False if i == j else None),
        "not_itself",
    ),
    (checks.tree_mask, lambda t: changed(t, lambda i, j, p: j in (i, p[i])), "parent_only"),
    (
        checks.tree_mask,
        lambda t: changed(t, lambda i, j, _: False if j == 0 < i else None),
        "no_root",
    ),
    (
        checks.tree_mask,
        lambda t: changed(t, lambda i, j, p: i == j or len(path_of(p, j)) < len(path_of(p, i))),
        "by_depth",
    ),
    (
        checks.tree_mask,
        lambda t: [list(column) for column in zip(*tree_mask(t), strict=True)],
        "transposed",
    ),
    (checks.pairs, lambda n: [(t, t, t + 1) for t in range(n - 1)], "same_place"),
    (checks.pairs, lambda n: [(t, t, t + 1) for t in range(1, n)], "same_place_late"),
    (checks.pairs, lambda n: [(-1, 0, 1), *pairs(n)], "first_token"),
    (checks.pairs, lambda n: pairs(n)[:-1], "last_pair"),
    (checks.pairs, lambda n: [(s, t, t) for s, t, _ in pairs(n)], "guesses_itself"),
    (checks.pairs, lambda n: [(t, s, g) for s, t, g in pairs(n)], "swapped"),
    (checks.to_target, lambda i, d2t: d2t[i], "absolute"),
    (checks.to_target, lambda i, d2t: i, "same"),
    (checks.to_target, lambda i, d2t: d2t[i] - i, "minus"),
    (checks.unrolled, lambda c, s: (c + s, c + s + 1, c + s + 1), "reads_itself"),
    (checks.unrolled, lambda c, s: (c + s + 1, c + s + 1, c + s + 1), "guesses_itself"),
    (checks.unrolled, lambda c, s: (c + 1, c + 2, c + s + 1), "stands_still"),
    (checks.unrolled, lambda c, s: (c + s + 1, c + s + 2, c + 1), "true_only"),
    (checks.unrolled, lambda c, s: (c + s + 1, c + s + 2, c + s), "not_itself"),
    (checks.read_again, lambda d, a: 1 + a, "always"),
    (checks.read_again, lambda d, a: a if a < d else 0, "no_pending"),
    (checks.read_again, lambda d, a: a, "no_pending_always"),
    (checks.read_again, lambda d, a: d - a, "rejected"),
    (checks.read_again, lambda d, a: d + 1 if a < d else 0, "all"),
    (checks.read_again, lambda d, a: 0, "never"),
    (checks.handed_on, lambda x, w, s: (normed(x, w), x if s else normed(x, w)), "swapped"),
    (checks.handed_on, lambda x, w, s: (normed(x, w), normed(x, w)), "always"),
    (checks.handed_on, lambda x, w, s: (normed(x, w), x), "never"),
    (checks.handed_on, lambda x, w, s: (normed(x, w) if s else x,) * 2, "output_too"),
    (
        checks.handed_on,
        lambda x, w, s: (normed(x, w) / w, normed(x, w) / w if s else x),
        "no_weight",
    ),
    (
        checks.handed_on,
        lambda x, w, s: (w * x / x.norm(), w * x / x.norm() if s else x),
        "length",
    ),
]


@pytest.mark.parametrize("check", RIGHT, ids=lambda check: check.__name__)
@pytest.mark.parametrize("lang", LANGUAGES)
def test_the_right_answer_passes(check, lang):
    result = check(RIGHT[check], lang=lang)
    assert result.passed is True
    assert repr(result).startswith("✓ ")


@pytest.mark.parametrize(("check", "answer", "key"), WRONG)
@pytest.mark.parametrize("lang", LANGUAGES)
def test_a_known_mistake_is_named(check, answer, key, lang):
    result = check(answer, lang=lang)
    assert result.passed is False
    assert result.message == words(lang)["checks"][result.exercise][key].strip()


@pytest.mark.parametrize("check", RIGHT, ids=lambda check: check.__name__)
def test_what_is_not_written_yet_is_not_wrong(check):
    def stub(*_):
        raise NotImplementedError

    result = check(stub)
    assert result.passed is None
    assert "not written yet" in result.message


@pytest.mark.parametrize("check", RIGHT, ids=lambda check: check.__name__)
@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (lambda *_: None, "returns nothing"),
        (lambda *_: 1 / 0, "ZeroDivisionError"),
        (lambda: 1, "TypeError"),
        (lambda *_: "seven", "should give"),
        (lambda *_: [], "should give"),
        (lambda *_: object(), "should give"),
        (lambda *_: ([], []), "should give"),
    ],
)
def test_a_check_never_raises(check, answer, told):
    result = check(answer)
    assert result.passed is False
    assert told in result.message or result.message == words("en")["checks"]["after_round"]["shape"]


def test_a_wrong_answer_without_a_known_cause_shows_a_case():
    told = checks.accept(lambda p, q, u: u < 0.5).message
    assert "accept(0.5, 0.2, 0.99)" in told
    assert "should give True" in told


def test_an_answer_that_changes_its_arguments_does_no_harm():
    def careless(committed, nodes, path):
        answer = after_round(list(committed), list(nodes), list(path))
        committed.clear(), nodes.clear(), path.clear()
        return answer

    assert checks.after_round(careless).passed
    assert checks.after_round(after_round).passed


def test_a_different_way_of_writing_it_passes_too():
    assert checks.accept(lambda p, q, u: p >= q or q * u < p).passed
    assert checks.residual(lambda p, q: torch.relu(p - q) / torch.relu(p - q).sum()).passed
    assert checks.residual(lambda p, q: residual(p, q).tolist()).passed
    assert checks.expected_tokens(
        lambda a, k: k + 1 if a == 1 else (1 - a ** (k + 1)) / (1 - a)
    ).passed
    assert checks.after_round(lambda c, n, p: list(map(tuple, after_round(c, n, p)))).passed


def test_accept_needs_the_draw():
    """A rule that is right on average but decides by its own dice is not the rule."""
    dice = random.Random(0)
    assert not checks.accept(lambda p, q, u: dice.random() < min(1, p / q)).passed


@pytest.mark.parametrize(
    ("drafted", "accepted", "own", "key"),
    [
        (3, 2, " small", "passed"),
        (3, 2, "small", "passed"),
        (4, 2, " small", "drafted"),
        (3, 3, " small", "own_counted"),
        (3, 1, " small", "accepted"),
        (3, 2, " big", "own_rejected"),
        (3, 2, " mat", "own"),
    ],
)
def test_reading_a_round(drafted, accepted, own, key):
    result = checks.read_round(corrected(), number=1, drafted=drafted, accepted=accepted, own=own)
    assert result.passed is (key == "passed")
    expected_words = words("en")["checks"]["read_round"][key].strip()
    assert (
        result.message.split("{")[0][:20]
        == expected_words.format(round=1, drafted=3, accepted=2, own="' small'", rounds=1)[:20]
    )


def test_reading_a_round_that_is_not_there_or_not_answered():
    trace = corrected()
    assert checks.read_round(trace, number=9, drafted=1, accepted=1, own="x").passed is False
    assert checks.read_round(trace, number=1, drafted=None, accepted=1, own="x").passed is None


@pytest.mark.parametrize(
    ("suspect", "fault", "passed"),
    [
        ("C", "from_p", True),
        ("c ", "from_p", True),
        ("C", "swapped", False),
        ("C", "nonsense", False),
        ("A", "from_p", False),
        ("Z", "from_p", False),
        (None, None, None),
        ("C", None, None),
    ],
)
def test_the_guilty_one(suspect, fault, passed):
    assert checks.guilty(suspect, fault).passed is passed


def test_every_wrong_fault_of_the_guilty_has_its_words():
    told = {checks.guilty("C", fault).message for fault in checks.SUSPECTED}
    assert len(told) == len(checks.SUSPECTED)


def test_nothing_is_kept_unless_asked(tmp_path):
    result = checks.accept(RIGHT[checks.accept])
    assert not list(tmp_path.iterdir())
    path = result.keep(tmp_path)
    result.keep(tmp_path)
    assert (
        path.read_text(encoding="utf-8").splitlines()
        == ['{"exercise": "accept", "passed": true}'] * 2
    )


def test_where_nothing_can_be_kept_the_file_is_named(tmp_path):
    (tmp_path / "full").write_text("not a folder", encoding="utf-8")
    with pytest.raises(BadInput, match=r"progress\.jsonl"):
        checks.accept(RIGHT[checks.accept]).keep(tmp_path / "full")


def test_a_result_shows_itself_as_html_and_text():
    bundle = checks.accept(lambda p, q, u: p >= q)._repr_mimebundle_()
    assert set(bundle) == {"text/html", "text/plain"}
    assert "p &lt; q" in bundle["text/html"]
    assert "<code>u</code>" in bundle["text/html"]
    assert bundle["text/plain"].startswith("✗ This rejects every token with p < q.")
    assert "`" not in bundle["text/plain"]


def test_the_suspects_are_three_right_ones_and_one_fault():
    rules = broken.suspects().values()
    right = [r for r in rules if (r.accept, r.after) == (broken.RIGHT.accept, broken.RIGHT.after)]
    assert len(right) == 3
