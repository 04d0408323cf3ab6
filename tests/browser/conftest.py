"""A real browser for the page. A machine without one fails these tests; `make browser` installs it."""

from __future__ import annotations

import pytest
from playwright.sync_api import sync_playwright

from tests.browser import chromium
from tests.browser.serving import served

SIZE = {"width": 1280, "height": 800}

# Violations of the page's content security policy; a correct page has none.
LISTENING = "addEventListener('securitypolicyviolation', e => (window.__forbidden ??= []).push(e.violatedDirective))"


@pytest.fixture(scope="session")
def page_models():
    """URLs of page models by name."""
    with served() as found:
        yield found


@pytest.fixture(scope="session")
def browser():
    path = chromium.find()
    if path is None:
        pytest.fail("no Chromium found: `make browser` installs one")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=chromium.SWITCHES)
        yield started
        started.close()


@pytest.fixture(scope="session")
def let_in():
    """The cookies of the servers: a URL opens its page once, then only for the browser with the cookie."""
    return []


@pytest.fixture
def context(browser, let_in):
    """A profile with nothing but those cookies."""
    made = browser.new_context(viewport=SIZE, accept_downloads=True)
    made.add_cookies(let_in)
    made.set_default_timeout(40_000)
    made.add_init_script(LISTENING)
    yield made
    let_in[:] = made.cookies()
    made.close()


@pytest.fixture
def page(context):
    """A page that must log no error, request only its own server, and not violate its policy."""
    opened, complaints, asked = context.new_page(), [], []
    opened.on("console", lambda message: message.type in ("error", "warning") and complaints.append(message.text))
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on("request", lambda request: asked.append(request.url))
    opened.on("dialog", lambda dialog: (complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    yield opened
    forbidden = opened.evaluate("window.__forbidden ?? []")
    assert not forbidden, forbidden
    assert not complaints, complaints
    outside = [url for url in asked if not url.startswith(("http://127.0.0.1:", "data:", "blob:", "file:///"))]
    assert not outside, outside
