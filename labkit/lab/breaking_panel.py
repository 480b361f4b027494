"""The switches: one for each fault, a button that runs it, and both runs side by side.

Owns: the widget, and the page that stands in for it without a kernel.
Does not know: what the faults are, how they are run.
Invariants: one switch at a time, since they are one group of radio buttons; the controls are off
while a run goes on; nothing runs before somebody presses the button.

Built of Text, RadioButtons, Button and HTML alone, which every notebook front end has.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from labkit.config import DecodeConfig
from labkit.errors import one_of, require
from labkit.lab.breaking import BREAKS, CHECKS, Breakage, catalogue, check_given, show
from labkit.lab.cards import Card, interactive, plain
from labkit.lab.session import Lab
from labkit.viz.assets import desk
from labkit.viz.loading import stepper_class

_RUN_ME = "Run this cell to switch the faults on and off."


class BreakIt:
    """Display it; or drive it: ``panel.run("no_rollback")``.

    Args:
        prompt: what to begin with; the learner can change it.
        only: keys of the faults that get a switch; by default all eight.
        run: what runs a fault, of the signature of `labkit.lab.breaking.show`.
        options: passed on to it: max_new_tokens, draft_length, seed, drafter, head, texts.

    ``result`` is the last `Breakage`, None before.

    Raises:
        BadInput: an unknown key, an option that there is not or that cannot be used.
    """

    def __init__(
        self,
        lab: Lab,
        prompt: str = "Why is the sky blue? Answer in three short sentences.",
        *,
        only: Sequence[str] = (),
        run: Callable[..., Breakage] = show,
        **options: Any,
    ) -> None:
        require(isinstance(prompt, str), "prompt", "text", prompt)
        _check(options)
        self.result: Breakage | None = None
        self.prompt = prompt
        self._keys, self._catalogue = tuple(only or BREAKS), catalogue(only)
        self._lab, self._run, self._options = lab, run, options
        self._box: Any = None

    def run(self, key: str) -> Breakage:
        """Run a fault with the prompt as it stands, and show it."""
        self.result = self._run(self._lab, key, self.prompt, **self._options)
        if self._box is not None:
            self._show_result()
        return self.result

    @property
    def widget(self) -> Any:
        """The ipywidgets box; made once, and anew where it has been closed."""
        if self._box is None or self._box.comm is None:
            self._box = self._build()
            if self.result is not None:
                self._show_result()
        return self._box

    def _build(self) -> Any:
        import ipywidgets as w

        from labkit.viz.turnover import take_over

        wide = w.Layout(width="auto")
        self._text = w.Text(value=self.prompt, description="Prompt", layout=wide)
        names = [(plain(BREAKS[key].title), key) for key in self._keys]
        self._switch = w.RadioButtons(options=names, value=names[0][1], layout=wide)
        self._go = w.Button(
            description="Run it broken, and healthy", button_style="info", layout=wide
        )
        self._play = [
            w.Button(description=f"Step through the {name} run", layout=wide, disabled=True)
            for name in ("broken", "healthy")
        ]
        self._about, self._said, self._found = w.HTML(), w.HTML(), w.HTML()
        self._switch.observe(lambda _: self._tell_fault(), names="value")
        self._text.observe(lambda _: self._take_prompt(), names="value")
        self._go.on_click(lambda _: self._pressed())
        for button, name in zip(self._play, ("broken", "healthy"), strict=True):
            button.on_click(lambda _, name=name: self._step_through(name))
        self._tell_fault()
        bar = w.HBox([self._go, *self._play], layout=w.Layout(flex_flow="row wrap"))
        self._parts = [w.HTML(desk()), self._text, self._switch, self._about, bar, self._said]
        box = w.VBox([*self._parts, self._found])
        for name in ("labkit-desk", "labkit-columns"):
            box.add_class(name)
        take_over(box)
        return box

    def _take_prompt(self) -> None:
        self.prompt = self._text.value

    def _tell_fault(self) -> None:
        self._about.value = BREAKS[self._switch.value].card.html

    def _pressed(self) -> None:
        """Run what is switched on; whatever goes wrong is told, and the controls come back."""
        from labkit.lab.controls import complaint

        controls = [self._text, self._switch, self._go, *self._play]
        for control in controls:
            control.disabled = True
        self._said.value = Card("…", "Running the prompt, healthy and broken.").html
        try:
            self.run(self._switch.value)
        except (Exception, KeyboardInterrupt) as error:
            told = complaint(error, advice="Choose another fault or prompt")
            self._said.value = Card("✗", told).html
        finally:
            for control in controls[:3]:
                control.disabled = False
            for button in self._play:
                button.disabled = self.result is None

    def _show_result(self) -> None:
        assert self.result is not None
        if self.result.fault.key in self._keys:
            self._switch.value = self.result.fault.key
        self._box.children = [*self._parts, self._found]  # an old stepper goes
        caught = ", ".join(CHECKS[key].title for key in self.result.caught_by)
        told = f"Caught by: {caught}." if caught else "No check noticed on this prompt."
        self._said.value = Card("✓" if caught else "…", told).html
        self._found.value = self.result.comparison
        for button in self._play:
            button.disabled = False

    def _step_through(self, name: str) -> None:
        import ipywidgets as w

        assert self.result is not None
        ran = self.result.broken if name == "broken" else self.result.healthy
        title = f"{self.result.fault.title}: the {name} run"
        stepper = stepper_class()(ran.trace, title=title)
        if not isinstance(stepper, w.Widget):  # anywidget is missing: a picture, and what to do
            stepper = w.HTML(stepper._repr_mimebundle_()["text/html"])
        self._box.children = [*self._parts, self._found, stepper]

    @property
    def html(self) -> str:
        """The page without a kernel: the last result, or the catalogue."""
        shown = self.result.html if self.result else self._catalogue.html
        return f"{shown}<p><em>{_RUN_ME}</em></p>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return interactive(self.widget, html=self.html, text=repr(self))

    def __repr__(self) -> str:
        told = self.result.sentence if self.result else self._catalogue.sentence
        return f"Break it. {told}"


_NUMBERS = ("max_new_tokens", "draft_length", "seed")
_GIVEN = ("drafter", "head", "texts")


def _check(options: Mapping[str, Any]) -> None:
    """Now, not when somebody presses the button."""
    for name in options:
        one_of((*_NUMBERS, *_GIVEN), name, name="option", next_step="choose one of these")
    DecodeConfig(**{name: options[name] for name in _NUMBERS if name in options})
    check_given(*(options.get(name) for name in _GIVEN))
