"""One Chromium for all tests of this folder."""

from collections.abc import Iterator

import pytest
from harness import PATIENCE, launch
from playwright.sync_api import Browser, expect, sync_playwright


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        chromium = launch(playwright)
        yield chromium
        chromium.close()
