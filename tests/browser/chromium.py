"""Which browser the tests drive. `python -m tests.browser.chromium` prints it, or says that there is none."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")

# WebGL2 without a graphics card: the software renderer that comes with Chromium. The rest keeps the browser from
# talking to anybody on its own account, so that a request which leaves the machine is the page's.
SWITCHES = [
    "--no-sandbox",  # Chromium refuses its sandbox to root, which CI containers are
    "--use-gl=angle",
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",  # a container's shared memory is small
]


def find() -> str | None:
    """The path of a browser on this machine: one of the system's, else the one Playwright has downloaded."""
    for name in NAMES:
        if path := shutil.which(name):
            return path
    with sync_playwright() as playwright:
        own = playwright.chromium.executable_path
    return own if Path(own).exists() else None


if __name__ == "__main__":
    found = find()
    print(found or "no Chromium found: `make browser` installs one", file=sys.stdout if found else sys.stderr)
    sys.exit(found is None)
