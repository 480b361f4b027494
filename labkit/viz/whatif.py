"""What if: the speed-up model as a picture and a sentence, for every place of its sliders.

Owns: what is drawn and said; the words that the browser uses too. Does not know: widgets.
Invariants: the same setting on the same machine gives the same bytes.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from labkit.cost import verdict
from labkit.machine import MOST, Machine
from labkit.viz.picture import Picture
from labkit.viz.plots import Area, Plot, Series, plot_area, plot_scene
from labkit.viz.svg import Scene, stack
from labkit.whatif import BATCHES, CHANCE, FREE, Answer

TITLE = "What if: speed of speculative decoding"
TOPS = (2.0, 4.0, 8.0, 20.0)  # upper ends of the speed axis
# (page width, panels side by side): the widest that fits a page is shown
BOARDS = ((976, True), (600, False), (372, False))
_TICKS = tuple(range(12))  # powers of two
# shapes of points: what was chosen looks the same in both panels
_CHOSEN, _PLAIN, _BEST, _FORWARD, _MEASURED = 0, 3, 2, 5, (1, 4, 5, 3)

# {gaps} are filled here and in static/whatif.js; a test compares the sentences.
WORDS: Mapping[str, str] = {
    "chance": "{n} drafted, each accepted with chance {alpha}",
    "way": "{n} drafted by {name}, accepted as measured",
    "setting": "{who}; a draft step costs {c} target steps; batch {batch}.",
    "nothing": " Nothing is drafted: plain decoding.",
    "round": " A round adds {tokens} tokens per sequence for {draft} + {check} steps "
    "(drafting + verifying): {verdict}.",
    "best": " Fastest: {best} drafted, {verdict}.",
    "none": " No number of drafted tokens pays here.",
    "free": " Verifying counts as one step, however much is drafted and whatever the batch.",
    "to": " With the other sliders as they are, drafting pays up to batch {batch}.",
    "all": " With the other sliders as they are, drafting pays at every batch up to {batch}.",
    "never": " With the other sliders as they are, drafting pays at no batch.",
    "beyond": " No forward of {tokens} tokens was measured: its time is that of the dashed line.",
}


def sentence(answer: Answer) -> str:
    """The setting, what a round adds and costs there, what is fastest, and where it stops."""
    setting, n = answer.setting, answer.setting.draft_length
    who = WORDS["chance"].format(n=n, alpha=f"{setting.alpha:.2f}")
    if setting.drafting != CHANCE:
        who = WORDS["way"].format(n=n, name=setting.drafting)
    told = WORDS["setting"].format(who=who, c=f"{setting.cost_ratio:.2f}", batch=setting.batch)
    told += _round(answer, n) if n else WORDS["nothing"]
    best = answer.best
    told += _best(answer, best) if best else WORDS["none"]
    return told + _where(answer)


def _round(answer: Answer, n: int) -> str:
    return WORDS["round"].format(
        tokens=f"{answer.tokens(n):.2f}",
        draft=f"{answer.draft(n):.2f}",
        check=f"{answer.check(n):.2f}",
        verdict=verdict(answer.speed(n)),
    )


def _best(answer: Answer, best: int) -> str:
    return WORDS["best"].format(best=best, verdict=verdict(answer.speed(best)))


def _where(answer: Answer) -> str:
    setting = answer.setting
    if setting.verify == FREE:
        return WORDS["free"]
    last = answer.pays_to
    key = "never" if not last else "all" if last == BATCHES[-1] else "to"
    tokens = setting.batch * (setting.draft_length + 1)
    return WORDS[key].format(batch=last) + (
        WORDS["beyond"].format(tokens=tokens) if answer.beyond else ""
    )


def picture(answer: Answer, *, board: int = 0, note: str = "") -> Picture:
    """The static picture of one setting. board: place in `BOARDS`."""
    told = sentence(answer)
    drawn = Board.of(answer, board).scene(answer, top_of(answer))
    return Picture(drawn.svg(title=TITLE, description=told), told, note)


def top_of(answer: Answer) -> float:
    """The upper end of the speed axis for this setting."""
    highest = max(*answer.speeds, *(_free(answer)), *(r.speedup for r in answer.machine.ran), 0)
    return next((top for top in TOPS if top >= highest), TOPS[-1])


@dataclass(frozen=True)
class Board:
    """How the panels lie on a page: for each its left and upper edge and its width."""

    width: int
    height: int
    panels: tuple[tuple[int, int, int], ...]

    @classmethod
    def of(cls, answer: Answer, board: int) -> "Board":
        """Place the panels, which keep their heights whatever the setting is."""
        width, beside = BOARDS[board]
        plots = _plots(answer, TOPS[0])
        if not beside or len(plots) == 1:
            heights = [plot_scene(plot, width=width).height for plot in plots]
            places = tuple((0, sum(heights[:i]), width) for i in range(len(plots)))
            return cls(width, sum(heights), places)
        first = int(width * 0.54)
        places = ((0, 0, first), (first, 0, width - first))
        height = max(
            plot_scene(p, width=w).height for p, (_, _, w) in zip(plots, places, strict=True)
        )
        return cls(width, height, places)

    def scene(self, answer: Answer, top: float) -> Scene:
        """The whole picture, the speed axis ending at ``top``."""
        drawn = [
            (x, y, plot_scene(plot, width=width))
            for plot, (x, y, width) in zip(_plots(answer, top), self.panels, strict=True)
        ]
        return stack(drawn, self.width, self.height)

    def areas(self, answer: Answer) -> Iterator[Area]:
        """Where the curves of each panel stand on the whole."""
        plots = _plots(answer, TOPS[0])
        for plot, (x, y, width) in zip(plots, self.panels, strict=True):
            area = plot_area(plot, width=width)
            yield Area(area.left + x, area.top + y, area.across, area.up)


def _plots(answer: Answer, top: float) -> tuple[Plot, ...]:
    speed = _speed_plot(answer, top)
    return (speed, _forward_plot(answer)) if answer.machine.forward else (speed,)


def _free(answer: Answer) -> tuple[float, ...]:
    """Speeds if verifying cost one step."""
    setting = type(answer.setting)(**{**vars(answer.setting), "verify": FREE})
    return Answer(setting, answer.machine).speeds


def _speed_plot(answer: Answer, top: float) -> Plot:
    places = tuple(map(float, range(MOST + 1)))
    n, best = answer.setting.draft_length, answer.best
    chosen = [
        Series(name, (float(at),), (answer.speed(at),), (verdict(answer.speed(at)),), key, look)
        for name, at, key, look in (
            ("fastest", best, "best", _BEST),
            ("your choice", n, "chosen", _CHOSEN),
        )
    ]
    alone = answer.setting.batch == 1  # runs were measured with one sequence
    ran = [
        Series(
            f"measured: {run.name}",
            (float(min(run.drafted, MOST)),) if alone else (),
            (run.speedup,) if alone else (),
            (f"{run.drafted} drafted, {verdict(run.speedup)}",) if alone else (),
            f"ran{i}",
            _MEASURED[i % len(_MEASURED)],
        )
        for i, run in enumerate(answer.machine.ran)
    ]
    return Plot(
        title="Speed over plain decoding",
        x_title="drafted tokens per round",
        y_title="times plain decoding (below the line: slower)",
        top=top,
        curves=(
            Series("the model", places, answer.speeds, key="now"),
            Series("if verifying cost 1 step", places, _free(answer), key="free"),
        ),
        points=(*ran, *chosen),
        mark=(1.0, ""),
        ticks=tuple(map(float, range(0, MOST + 1, 2))),
    )


def _forward_plot(answer: Answer) -> Plot:
    """Both axes grow by doubling: level while memory is the limit, then as steep as the work."""
    machine, batch = answer.machine, answer.setting.batch
    width = batch * (answer.setting.draft_length + 1)
    fine = [2 ** (i / 4) for i in range(4 * _TICKS[-1] + 1)]
    known = [w for w in fine if w <= machine.widest]
    rest = [float(machine.widest), *(w for w in fine if w > machine.widest)]
    top = forward_top(machine)
    step, check = machine.steps(batch), answer.check(answer.setting.draft_length)
    points = (
        _spot("a plain step", batch, step, "step", _PLAIN),
        _spot("your choice", width, step * check, "check", _CHOSEN),
    )
    measured = Series(
        "measured",
        tuple(math.log2(w) for w, _ in machine.forward),
        tuple(doublings(machine.steps(w)) for w, _ in machine.forward),
        tuple(f"{w} tokens: {1e3 * s:.0f} ms" for w, s in machine.forward),
        look=_FORWARD,
    )
    return Plot(
        title="One forward of the target",
        x_title="tokens in the forward (batch × (drafted + 1))",
        y_title="steps: times a forward of 1 token",
        top=top,
        curves=(
            _curve("between measured", known, machine.steps),
            _curve("drawn on", rest, machine.steps),
        ),
        points=(measured, *points),
        ticks=tuple(map(float, _TICKS)),
        tick_names=tuple("" if i % 2 else str(2**i) for i in _TICKS),
        heights=tuple(f"{2 ** (top * i / 4):g}" for i in range(5)),
    )


def forward_top(machine: Machine) -> float:
    """Doublings of the time axis."""
    return 4.0 if machine.steps(2 ** last_doubling()) <= 16 else 8.0


def last_doubling() -> int:
    """Doublings of the axis of tokens."""
    return _TICKS[-1]


def _curve(name: str, widths: list[float], steps: Callable[[float], float]) -> Series:
    return Series(
        name,
        tuple(map(math.log2, widths)),
        tuple(doublings(steps(w)) for w in widths),
    )


def _spot(name: str, tokens: int, steps: float, key: str, look: int) -> Series:
    told = f"{tokens} tokens, {steps:.2f} steps"
    return Series(name, (math.log2(tokens),), (doublings(steps),), (told,), key, look)


def doublings(steps: float) -> float:
    """How often one step doubles on the way to ``steps``; what measured below one counts as one."""
    return max(0.0, math.log2(steps))
