"""Questions: the bank is complete in every language, the widget answers, the page needs none."""

import re

import pytest

from labkit.lab import quiz
from labkit.lab.cards import plain, rich
from labkit.lab.wording import LANGUAGES, say, words

NAMES = tuple(words("en")["questions"])


def shape(tree):
    """Keys and gaps of a catalogue, without its words."""
    if isinstance(tree, dict):
        return {key: shape(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [shape(value) for value in tree]
    return sorted(set(re.findall(r"{(\w+)}", tree))) if isinstance(tree, str) else tree


def test_all_languages_say_the_same_things():
    for lang in LANGUAGES[1:]:
        assert shape(words(lang)) == shape(words("en"))


def test_all_languages_are_really_other_languages():
    ours, theirs = words("en")["questions"], words("fr")["questions"]
    assert not [name for name in ours if ours[name]["ask"] == theirs[name]["ask"]]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("lang", LANGUAGES)
def test_every_question_has_one_right_answer_and_explains_all(name, lang):
    question = quiz.ask(name, lang=lang)
    assert len(question.choices) >= 3
    assert [choice.right for choice in question.choices].count(True) == 1
    assert len({choice.text for choice in question.choices}) == len(question.choices)
    for choice in question.choices:
        assert len(choice.why) > 40
    assert "`" not in repr(question)


def test_right_answers_do_not_stand_in_one_place():
    places = [[choice.right for choice in quiz.ask(name).choices].index(True) for name in NAMES]
    assert len(set(places)) > 1


def widgets(question):
    _, radio, button, reply = question.widget.children
    return radio, button, reply


def test_answering_without_a_browser():
    question = quiz.ask("00-text")
    radio, button, reply = widgets(question)
    assert radio.index is None
    button.click()
    assert "Choose an answer first" in reply.value
    radio.index = 0
    button.click()
    assert "✗" in reply.value
    assert "only proposes" in reply.value
    radio.index = 1
    button.click()
    assert "✓" in reply.value


def test_asking_again_makes_a_new_question_that_answers_once():
    seen = []
    for _ in range(3):
        question = quiz.ask("00-text")
        radio, button, reply = widgets(question)
        reply.observe(seen.append, names="value")
    radio.index = 1
    button.click()
    assert len(seen) == 1


def test_the_bundle_holds_widget_page_and_sentence():
    question = quiz.ask("02-reject")
    bundle = question._repr_mimebundle_()
    assert bundle["application/vnd.jupyter.widget-view+json"]["model_id"]
    assert "<details>" in bundle["text/html"]
    assert "<script" not in bundle["text/html"]
    assert bundle["text/plain"].startswith("? The drafter drew")
    same = quiz.ask("02-reject")._repr_mimebundle_()
    assert (same["text/html"], same["text/plain"]) == (bundle["text/html"], bundle["text/plain"])


def test_the_answer_is_not_in_the_sentence_nor_in_the_open_part_of_the_page():
    question = quiz.ask("02-reject")
    open_part = question.html.split("<details>")[0]
    for choice in question.choices:
        assert rich(choice.why) not in open_part
        assert choice.why not in repr(question)


def test_an_unknown_question_or_language_is_refused_by_name():
    with pytest.raises(ValueError, match="00-text"):
        quiz.ask("00-nothing")
    with pytest.raises(ValueError, match="en, fr"):
        quiz.ask("00-text", lang="xx")


@pytest.mark.parametrize(
    ("guess", "glyph", "told"),
    [
        (None, "…", "no prediction"),
        (8, "✗", "You expected more"),
        (1, "✗", "You expected less"),
        (1.5, "✓", "Well guessed"),
        (1.25, "✓", "Well guessed"),
    ],
)
def test_a_typed_prediction_is_set_beside_the_measurement(guess, glyph, told):
    card = quiz.compare(guess, 1.5, unit="single forwards")
    assert card.glyph == glyph
    assert told in repr(card)
    assert "1.5 single forwards" in repr(card) or "measured: 1.5" in repr(card)


def test_a_whole_number_is_told_as_one():
    assert "measured: 7." in repr(quiz.compare(3, 7, unit="nodes"))


def test_every_sentence_can_be_filled():
    assert say("quiz.check", lang="en") == "Check"
    assert say("checks.not_written", lang="fr", name="f") != say(
        "checks.not_written", lang="en", name="f"
    )


def test_markup_of_sentences():
    text = "`a < b` is *not* 3 * 4 * 5 and <script>"
    assert rich(text) == ("<code>a &lt; b</code> is <em>not</em> 3 * 4 * 5 and &lt;script&gt;")
    assert plain(text) == "a < b is not 3 * 4 * 5 and <script>"
