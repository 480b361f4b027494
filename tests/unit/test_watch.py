"""A training seen from a notebook: what it says is what was measured, and it is drawn in place."""

import re

import pytest

from labkit.lab.watch import Watch

POINT = {
    "step": 12,
    "tokens": 3000,
    "minutes": 0.2,
    "loss": 4.25,
    "first": 0.4,
    "by_depth": [0.5, 0.25],
    "mean_accepted_length": 1.5,
}


class Screen:
    """Keeps what was displayed, like a notebook."""

    def __init__(self):
        self.shown, self.updates = [], 0

    def __call__(self, thing):
        self.shown.append(thing._repr_mimebundle_())
        return self

    def update(self, thing):
        self.updates += 1
        self.shown[-1] = thing._repr_mimebundle_()


@pytest.fixture
def screen():
    return Screen()


def test_one_output_that_ends_with_the_last_state(screen):
    now = [0.0]
    watch = Watch(show=screen, clock=lambda: now[0])
    for step in range(1, 41):
        now[0] += 0.05
        watch.progress("training the head", step, 40)
    watch.measured([POINT])
    assert len(screen.shown) == 1
    # 2 seconds at 4 redraws a second, the first one displayed, and the end
    assert 7 <= screen.updates <= 10
    assert 'aria-valuenow="100"' in screen.shown[0]["text/html"]
    assert screen.shown[0]["text/plain"] == (
        "step 12, 3,000 tokens seen, loss 4.25; on held-out rows 1.50 tokens per round, "
        "accepted by depth 0.50, 0.25"
    )


def test_the_curve_begins_with_plain_decoding_and_has_every_measurement(screen):
    watch = Watch(show=screen, clock=lambda: 0.0)
    watch.progress("training the head: step 3", 30, 120)
    assert "<svg" not in screen.shown[0]["text/html"]
    watch.measured([POINT, POINT | {"tokens": 6000, "mean_accepted_length": 2.0}])
    page = screen.shown[0]["text/html"]
    assert 'aria-valuenow="25"' in page
    assert len(re.findall(r"<svg", page)) == 1
    assert "from 1 at 0 to 2 at 6k" in page
    assert "on held-out rows 2.00 tokens per round" in repr(watch)


def test_before_anything_is_known_it_still_says_something(screen):
    watch = Watch(show=screen, clock=lambda: 0.0)
    watch.progress("keeping the <states>", 0, 0)
    page = screen.shown[0]["text/html"]
    assert "keeping the &lt;states&gt;" in page
    assert 'aria-valuenow="0"' in page
