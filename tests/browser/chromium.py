"""Where Chromium is, and how to get one: what `make browser` does before its tests.

Owns: the usual places, and the one way of installing that needs no question (apt-get, as root).
Does not know: pages, tests.
Invariants: a browser counts only when it says its version: Ubuntu's `chromium-browser` is there
and starts nothing. Nothing is installed where one is found.
"""

import os
import shutil
import subprocess
import sys

USUAL = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)
ANSWERS_WITHIN = 60  # seconds; a cold start on a busy machine


def wanted() -> tuple[str, ...]:
    """Names and paths to try, the best first; the one that CHROMIUM names is tried alone."""
    asked = os.environ.get("CHROMIUM")
    return (asked,) if asked else USUAL


def find() -> str | None:
    """The path of this machine's browser, None when none starts."""
    return next((path for name in wanted() if (path := shutil.which(name)) and _works(path)), None)


def _works(path: str) -> bool:
    try:
        done = subprocess.run([path, "--version"], capture_output=True, timeout=ANSWERS_WITHIN)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _own_of_playwright() -> str | None:
    """What `playwright install chromium` has put there. Not inside of another playwright."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = playwright.chromium.executable_path
    return path if _works(path) else None


def install() -> None:
    """Ask apt-get, where there is one and nobody has to be asked for a password."""
    apt = shutil.which("apt-get")
    if apt is None or os.geteuid() != 0:
        return
    print("Chromium: none here; installing it with apt-get.", flush=True)
    for arguments in (["update", "-q"], ["install", "-qy", "--no-install-recommends", "chromium"]):
        subprocess.run([apt, *arguments], stdout=subprocess.DEVNULL)


def provide() -> str | None:
    """A browser for the tests, installed when that needs no question."""
    path = find()
    if path is None and not os.environ.get("CHROMIUM"):
        path = _own_of_playwright()
        if path is None:
            install()
            path = find()
    return path


def main() -> int:
    """Say which browser the tests will use; 2 when there is none to be had."""
    path = provide()
    if path is None:
        print(
            f"Chromium: expected one of {', '.join(wanted())}, got none that starts. Next: "
            "install Chromium or Chrome, or `playwright install chromium`, or name yours: "
            "make browser CHROMIUM=/path/to/chromium.",
            file=sys.stderr,
        )
        return 2
    print(f"Chromium: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
