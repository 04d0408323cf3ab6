"""Labels stay text, and only the page itself is answered."""

from urllib.parse import urlsplit
from xml.etree import ElementTree

import httpx
import pytest

from tests.browser import chromium
from tests.browser.driving import opened, saved, until
from tests.browser.page_models import HOSTILE


@pytest.fixture
def address(page_models):
    return page_models["hostile"]


@pytest.mark.parametrize("view", ["overview", "matrix", "tokens", "steps", "compare"])
def test_hostile_text_is_shown_as_text(page, address, view):
    opened(page, address, view)
    page.wait_for_timeout(400)
    assert page.evaluate("() => document.querySelectorAll('#regard img, #regard script, #regard iframe').length") == 0
    assert page.title() != "broken"
    assert HOSTILE[0][:20] in page.inner_text("h1")
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 1280


def test_every_hostile_token_can_be_pointed_at(page, address):
    opened(page, address, "tokens")
    for number in range(len(HOSTILE)):
        page.get_by_test_id(f"token-{number}").hover()
    assert page.get_by_test_id("token-9").bounding_box()["width"] < 900  # ten thousand letters
    assert page.get_by_test_id("token-0").inner_text().startswith("<img src=x")


def test_saved_files_hold_text_as_text(page, address):
    opened(page, address, "tokens")
    page.get_by_test_id("token-0").hover()
    page.wait_for_timeout(300)
    elements = list(ElementTree.fromstring(saved(page, "svg")).iter())
    assert not {element.tag.rpartition("}")[2] for element in elements} & {"script", "img", "iframe", "foreignObject"}
    assert any((element.text or "").startswith("<img src=x") for element in elements)
    assert '"<img src=x onerror=""' in saved(page, "csv").decode()


def test_a_foreign_page_gets_nothing(context, address):
    """Another site in the same browser: its requests, frames and scripts are refused."""
    own = context.new_page()
    own.goto(address)
    until(own, "Boolean(window.__regard)")
    base = "http://" + urlsplit(address).netloc
    foreign = context.new_page()
    empty = {"body": "<title>evil</title>", "content_type": "text/html"}
    foreign.route("http://evil.example/**", lambda route: route.fulfill(**empty))
    foreign.goto("http://evil.example/")
    answered = foreign.evaluate(
        "url => fetch(url, {credentials: 'include'}).then(r => r.text(), () => 'refused')", f"{base}/api/scene"
    )
    assert answered == "refused"
    framed = foreign.evaluate(
        """url => new Promise(done => {
            const frame = document.createElement('iframe');
            frame.onload = () => done(frame.contentDocument ? 'readable' : 'closed');
            frame.src = url; document.body.append(frame); })""",
        f"{base}/",
    )
    assert framed == "closed"


def test_another_name_for_this_machine_is_refused(browser, address):
    """DNS rebinding: a foreign name that points here."""
    parts = urlsplit(address)
    started = browser.browser_type.launch(
        executable_path=chromium.find(), args=[*chromium.SWITCHES, "--host-resolver-rules=MAP evil.example 127.0.0.1"]
    )
    try:
        page = started.new_page()
        answer = page.goto(f"http://evil.example:{parts.port}/?{parts.query}")
        assert answer.status == 403
        assert "address" in page.inner_text("body")
        assert page.evaluate("() => fetch('/api/scene').then(r => r.status)") == 403
    finally:
        started.close()


def test_headers_and_methods(page_models):
    parts = urlsplit(page_models.anew("hostile"))
    base = f"http://{parts.netloc}"
    with httpx.Client(base_url=base, trust_env=False) as client:
        assert client.get("/").status_code == 403  # no token
        assert client.get("/?token=wrong").status_code == 403
        assert client.get(f"/?{parts.query}").status_code == 303
        page = client.get("/")
        assert page.status_code == 200
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy
        assert client.get("/api/scene", headers={"origin": "http://evil.example"}).status_code == 403
        assert client.get("/api/scene", headers={"host": "evil.example"}).status_code == 403
        assert client.post("/api/scene").status_code == 405
        assert client.get("/../pyproject.toml").status_code == 404
        assert client.get("/api/tile?site=0&head=0&level=0&x=-1&y=0").status_code == 400
