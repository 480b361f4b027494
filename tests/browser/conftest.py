"""One Chromium for all tests of this folder."""

from collections.abc import Iterator

import pytest
from harness import launch
from playwright.sync_api import Browser, sync_playwright


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        chromium = launch(playwright)
        yield chromium
        chromium.close()
