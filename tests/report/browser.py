"""Pages in a real browser: Debian's Chromium, driven by Playwright, without a network.

Without one, tests are skipped with the reason; with OSAE_BROWSER=required, as in `.ci/run`, they fail.
"""

import os
import shutil
from contextlib import contextmanager

import pytest

WAYS = ["--no-sandbox", "--disable-background-networking", "--disable-gpu"]
SECONDS = 40  # to wait for anything, on a busy machine
REQUIRED = os.environ.get("OSAE_BROWSER") == "required"


def find_chromium():
    """The path of Chromium; skips or fails the test if it or Playwright is missing."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        found, missing = None, "Playwright is not installed: pip install -e '.[browser]'"
    else:
        missing = "Chromium is not installed: apt-get install chromium"
    if found is None:
        (pytest.fail if REQUIRED else pytest.skip)(missing)
    return found


@contextmanager
def opened_browser():
    path = find_chromium()  # first: it says what is missing
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=WAYS)
        yield browser
        browser.close()


@contextmanager
def opened(browser, path, *, fragment="", width=1400, scheme="light", beside=()):
    """The page, opened from disk; fails on any message, error or request but for files `beside` it."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    tab = context.new_page()
    tab.set_default_timeout(SECONDS * 1000)
    said, asked = [], []
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("dialog", lambda dialog: (said.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    tab.on("request", lambda request: asked.append(request.url.split("#")[0]))
    tab.goto(f"file://{path}{fragment}")
    yield tab
    allowed = (f"file://{path}", *(f"file://{folder}/" for folder in beside))
    assert said == []
    assert [url for url in asked if not url.startswith((*allowed, "data:", "blob:"))] == []
    context.close()


def check_accessibility(tab):
    """Fail on what axe-core calls serious or critical."""
    from importlib.resources import files

    tab.evaluate((files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8"))
    # plots are images with a label: what is inside of them is hidden from everyone who cannot see it
    found = tab.evaluate("axe.run({exclude: ['.plot > *']}, {resultTypes: ['violations']})")["violations"]
    serious = [
        f"{each['id']}: {each['help']}: {each['nodes'][0]['html'][:200]}"
        for each in found
        if each["impact"] in ("serious", "critical")
    ]
    assert serious == []
