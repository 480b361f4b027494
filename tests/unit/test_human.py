"""A person who drafts: words as tokens in their place, honest verdicts, the same for everybody."""

import re
from pathlib import Path
from typing import Any

import pytest
from helpers import prompt_of, run, tiny
from live_doubles import toy_lab
from tiny_gguf import write_gguf

from labkit.config import DecodeConfig
from labkit.decode import speculate
from labkit.drafters.human import Human
from labkit.drafters.ngram import NGram
from labkit.errors import BadInput
from labkit.lab import contest
from labkit.lab.load import load_model
from labkit.lab.session import Lab
from labkit.lab.typed import ids_after, joined
from labkit.target import Target
from labkit.trace import Trace
from labkit.viz import Stepper

PROMPT = prompt_of(6)


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("human") / "tiny.Q4_1.gguf")


@pytest.fixture(scope="module")
def lab(gguf: Path) -> Lab:
    """A real tokenizer, and the target as its own draft model: it is always right."""
    return Lab(load_model(gguf, device="cpu"), draft=str(gguf))


# --- words in their place -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("so_far", "typed", "added"),
    [
        ("the sky", "is", " is"),
        ("the sky", " is", " is"),
        ("the sky", "is  ", " is"),
        ("the sky", ", and", ", and"),
        ("explana", "+tion", "tion"),
        ("the sky ", "is", "is"),
        ("end.\n", "The", "The"),
        ("", "The", "The"),
        ("he said (", "no", "no"),
        ("a", "⏎b", "\nb"),
        ("a", "+", "+"),
        ("1 ", "+ 1", " 1"),
        ("sky", "  ", ""),
        ("ciel", "été", " été"),
    ],
)
def test_words_join_the_text(so_far: str, typed: str, added: str) -> None:
    assert joined(so_far, typed) == added


@pytest.mark.parametrize("typed", ["the other", "+the", ", then", "⏎⏎the", "é", "th", "t"])
@pytest.mark.parametrize("so_far", ["the", "the t", "user: the\n", "", "é"])
def test_ids_behind_the_text_decode_to_the_words(lab: Lab, so_far: str, typed: str) -> None:
    before = list(lab.tokenizer(so_far)["input_ids"]) if so_far else []
    ids = ids_after(lab.tokenizer, before, typed)
    assert lab.tokenizer.decode([*before, *ids]) == so_far + joined(so_far, typed)


def test_a_merge_across_the_seam_leaves_the_text_s_own_tokens(lab: Lab) -> None:
    """The vocabulary has "th"; the text ends with t and stays so."""
    before = list(lab.tokenizer("t")["input_ids"])
    ids = ids_after(lab.tokenizer, before, "+h")
    assert len(lab.tokenizer("th")["input_ids"]) == 1
    assert lab.tokenizer.decode([*before, *ids]) == "th"
    assert len(ids) == 1


def test_nothing_typed_is_refused(lab: Lab) -> None:
    with pytest.raises(BadInput, match="at least one character"):
        ids_after(lab.tokenizer, [5], "  ")


# --- the drafter ----------------------------------------------------------------------------------


def test_an_offer_lasts_while_the_text_goes_its_way() -> None:
    model = tiny()
    truth = run(Target(model), NGram(), PROMPT, max_new_tokens=9).tokens
    you = Human()
    offered = (*truth[:4], (truth[4] + 1) % 64, *truth[5:])
    config = DecodeConfig(max_new_tokens=9, draft_length=2)
    events = speculate(Target(model), you, PROMPT, config=config)
    you.offer(PROMPT, offered)
    rounds = [e.tokens[1:] for e in events if e.kind == "drafted"]
    assert rounds[:3] == [offered[:2], offered[3:5], ()]  # the target itself adds every third
    assert all(not tokens for tokens in rounds[2:])


def test_a_person_does_not_change_the_text() -> None:
    model, you = tiny(), Human()
    truth = run(Target(model), NGram(), PROMPT, max_new_tokens=9).tokens
    for offered in ((), (1, 2, 3), truth, truth[:2]):
        events = speculate(Target(model), you, PROMPT, config=DecodeConfig(max_new_tokens=9))
        you.offer(PROMPT, offered)
        assert Trace.record(events).tokens == truth


# --- the contest ----------------------------------------------------------------------------------


def game_of(lab: Lab, **options: Any) -> contest.Contest:
    return contest.open(lab, "the other thing", against=("ngram", "draft"), eos=None, **options)


def test_who_types_what_the_target_says_is_always_right(lab: Lab) -> None:
    """A scripted person who knows the text, beside a draft model that is the target itself."""
    game = game_of(lab, max_new_tokens=14)
    # texts of a random model are not what one can type: the person's ids are offered as they are
    truth = lab.record("the other thing", method="ar", eos=None, max_new_tokens=14).tokens
    for _ in range(3):
        at = len(game.bench.tokens)
        play(game, truth[at : at + 3])
    figures = game.figures
    assert (figures["you"].drafted, figures["you"].accepted) == (9, 9)
    assert (figures["draft"].drafted, figures["draft"].accepted) == (9, 9)
    assert figures["ngram"].accepted <= figures["ngram"].drafted <= 9
    assert figures["you"].mean_accepted_length == 4
    assert game.bench.tokens == truth[:12]
    assert "You and draft lead with 9 accepted" in repr(game.score)


def play(game: contest.Contest, ids: tuple[int, ...]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contest, "ids_after", lambda *_: ids)
        game.guess("x")


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_the_others_guess_at_the_same_places_and_leave_nothing(
    lab: Lab, temperature: float
) -> None:
    typed = ["the", "", "other thing", "+x"]
    game = game_of(lab, temperature=temperature, seed=2)
    alone = contest.open(
        lab, "the other thing", against=(), eos=None, temperature=temperature, seed=2
    )
    for words in typed:
        game.guess(words)
        alone.guess(words)
    assert game.bench.tokens == alone.bench.tokens
    assert [turn.counts for turn in game.turns] == [True, False, True, True]
    for turn in game.turns:
        if not turn.counts:
            assert set(turn.rounds) == {"you"}
            continue
        assert set(turn.rounds) == {"you", "ngram", "draft"}
        roots = {r.drafted.tokens[0] for r in turn.rounds.values()}
        contexts = {r.scored.context for r in turn.rounds.values() if r.scored}
        limits = {r.drafted.limit for r in turn.rounds.values()}
        assert (len(roots), len(contexts), len(limits)) == (1, 1, 1)
    assert game.figures["you"].rounds == 3
    assert len(game.said.rows) == len(game.turns[-1].rounds["you"].drafted.tokens) - 1


def test_a_greedy_rival_does_what_it_does_in_a_run_of_its_own(lab: Lab) -> None:
    """At the first place, and against the rounds of an ordinary run."""
    game = game_of(lab)
    game.guess("the other")
    length = len(game.turns[0].rounds["you"].drafted.tokens) - 1
    for name in ("ngram", "draft"):
        own = lab.record(
            "the other thing", method=name, eos=None, draft_length=length, max_new_tokens=64
        ).rounds[0]
        there = game.turns[0].rounds[name]
        assert there.drafted.tokens == own.drafted.tokens
        assert there.verified.path == own.verified.path


def test_a_word_that_was_only_begun_is_told(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The target says ``th``; the person stops at ``t``."""
    game = game_of(lab)
    t, th = (lab.tokenizer(word)["input_ids"][0] for word in ("t", "th"))
    game.bench.force("the")
    forced = game.bench.settings

    def only_th(settings: Any) -> Any:
        from labkit.lab.settings import Only

        return (Only(th),)

    monkeypatch.setattr(type(forced), "processors", property(only_th))
    play(game, (t,))
    assert "begins the target's" in repr(game.said)


def test_rivals_without_weights_are_left_out_by_name() -> None:
    game = contest.open(toy_lab(tiny()), PROMPT)
    assert game.rivals == ("ngram",)
    assert set(game.absent) == {"draft", "eagle3"}
    assert "No draft here: it needs weights." in repr(game.score)
    with pytest.raises(BadInput, match="got 'telepathy'"):
        contest.open(toy_lab(tiny()), PROMPT, against=("telepathy",))


def test_a_contest_ends_and_says_so(lab: Lab) -> None:
    game = game_of(lab, max_new_tokens=3)
    for _ in range(3):
        game.guess("")
    assert game.over == "max_new_tokens"
    with pytest.raises(BadInput, match="begin another contest"):
        game.guess("the")
    assert "Nobody has guessed yet." in repr(game)
    assert Stepper(game.trace).steps > 3


# --- the widget -----------------------------------------------------------------------------------


def parts(game: contest.Contest) -> dict[str, Any]:
    field, guess, skip = game.widget.children[2].children
    return {"field": field, "guess": guess, "pass": skip, "message": game.widget.children[3]}


def test_playing_without_a_browser(lab: Lab) -> None:
    game = game_of(lab)
    found = parts(game)
    found["field"].value = "the other"
    found["guess"].click()
    assert len(game.turns) == 1
    assert found["field"].value == ""
    assert "guesses stay" in game.widget.children[4].value
    found["pass"].click()
    assert len(game.turns) == 2
    assert "✗" not in found["message"].value
    assert "labkit-narrow" in game.widget.children[6].value


def test_what_a_page_without_a_kernel_shows(lab: Lab) -> None:
    game = game_of(lab)
    game.guess("the")
    shown = game._repr_mimebundle_()
    assert "Run this cell to play" in shown["text/html"]
    assert "<svg" in shown["text/html"]
    assert "<strong>the other thing</strong>" in shown["text/html"]
    assert "<strong>the other thing</strong>" in game.widget.children[1].value
    assert "cut short" not in re.sub("<svg.*?</svg>", "", shown["text/html"], flags=re.DOTALL)
    assert shown["text/plain"] == repr(game)
    assert "object at" not in repr(game)
