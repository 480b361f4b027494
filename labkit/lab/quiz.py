"""Questions to answer before, and after, the model does.

Owns: the question bank's form, and a question as widget, static page and sentence.
Does not know: which lesson asks what; who answers. Nothing is stored or sent.
Invariants: every choice has an explanation; the page and the sentence depend on the bank alone;
a question without widgets (a printed page, a viewer) still shows choices and, folded, the answer.

Built of RadioButtons, Button and HTML alone, which every notebook front end has, and which the
keyboard reaches: Tab, arrow keys, Space.
"""

import html
from dataclasses import dataclass, field
from typing import Any

from labkit.errors import one_of
from labkit.lab.cards import Card, interactive, plain, rich
from labkit.lab.wording import say, words
from labkit.viz.assets import desk


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer: its text, whether it is right, and why it is or is not."""

    text: str
    why: str
    right: bool = False


@dataclass(slots=True, eq=False)
class Question:
    """One question. Display it; or test it: ``question.answer(1).text``."""

    name: str
    ask: str
    choices: tuple[Choice, ...]
    lang: str
    _box: Any = field(default=None, init=False)

    def answer(self, number: int) -> Card:
        """What is said to choice ``number`` (0 is the first)."""
        choice = self.choices[number]
        key = "right" if choice.right else "wrong"
        glyph = "✓" if choice.right else "✗"
        return Card(glyph, f"{say(f'quiz.{key}', lang=self.lang)} {choice.why}")

    @property
    def widget(self) -> Any:
        """The question as an ipywidgets box, made once: radio buttons, a button, the reply."""
        if self._box is None:
            self._box = _box(self)
        return self._box

    @property
    def html(self) -> str:
        """The question as a page without a kernel."""
        items = "".join(f"<li>{rich(choice.text)}</li>" for choice in self.choices)
        replies = "".join(f"<li>{self._marked(c)} {rich(c.why)}</li>" for c in self.choices)
        return (
            f'<div class="labkit-quiz-page" lang="{self.lang}" style="line-height:1.5"><p><b>?</b> '
            f'{rich(self.ask)}</p><ol type="a">{items}</ol><details><summary>'
            f"{html.escape(say('quiz.reveal', lang=self.lang))}</summary>"
            f'<ol type="a">{replies}</ol></details>'
            f"<p><em>{html.escape(say('quiz.run_me', lang=self.lang))}</em></p></div>"
        )

    def _marked(self, choice: Choice) -> str:
        """Glyph and word, so that right and wrong are told without colour or sight of a sign."""
        mark = say("quiz.right" if choice.right else "quiz.wrong", lang=self.lang)
        return f"{'✓' if choice.right else '✗'} <b>{html.escape(mark)}</b>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return interactive(self.widget, html=self.html, text=repr(self))

    def __repr__(self) -> str:
        listed = " ".join(f"{chr(97 + i)}) {plain(c.text)}" for i, c in enumerate(self.choices))
        return f"? {plain(self.ask)} {listed}"


def ask(name: str, *, lang: str = "en") -> Question:
    """The question of that name from the bank.

    Raises:
        BadInput: there is none.
    """
    bank = words(lang)["questions"]
    known = one_of(bank, name, name="question", next_step="choose a question of the bank")
    entry = bank[known]
    choices = tuple(Choice(c["text"], c["why"], c.get("right", False)) for c in entry["choices"])
    return Question(name, entry["ask"], choices, lang)


def compare(guess: float | None, measured: float, *, unit: str, lang: str = "en") -> Card:
    """Set a typed prediction beside what was measured.

    Args:
        guess: what the learner typed, None for nothing.
        measured: shown with at most one decimal; within a quarter of it a guess counts as close.
        unit: plural noun, such as "single steps".
    """
    found = f"{measured:.1f}".removesuffix(".0")
    if guess is None:
        return Card("…", say("quiz.prediction_missing", lang=lang, measured=found, unit=unit))
    close = abs(guess - measured) <= measured / 4
    verdict = "close" if close else "low" if guess < measured else "high"
    told = say(
        "quiz.prediction",
        lang=lang,
        guess=f"{guess:g}",
        measured=found,
        unit=unit,
        verdict=say(f"quiz.{verdict}", lang=lang),
    )
    return Card("✓" if close else "✗", told)


def _box(question: Question) -> Any:
    import ipywidgets as w

    from labkit.viz.turnover import take_over

    texts = [plain(choice.text) for choice in question.choices]
    radio = w.RadioButtons(options=texts, value=None, layout=w.Layout(width="auto"))
    button = w.Button(description=say("quiz.check", lang=question.lang), button_style="info")
    reply = w.HTML()

    def check(_: Any) -> None:
        chosen = radio.index
        card = (
            Card("…", say("quiz.choose", lang=question.lang))
            if chosen is None
            else question.answer(chosen)
        )
        reply.value = card.html

    button.on_click(check)
    head = w.HTML(f"{desk()}<div style='line-height:1.5'><b>?</b> {rich(question.ask)}</div>")
    box = w.VBox([head, radio, button, reply])
    for name in ("labkit-desk", "labkit-quiz"):
        box.add_class(name)
    take_over(box)
    return box
