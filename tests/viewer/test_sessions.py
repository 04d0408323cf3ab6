"""A URL opens the page once; its browser gets a cookie, which expires."""

import threading

import pytest
from jsonargparse import Namespace

from regard_workbench.viewer import server
from regard_workbench.viewer.sessions import LAUNCH_SECONDS, SESSION_SECONDS, Sessions
from tests.viewer.requests import Visitor
from tests.viewer.stand_ins import small_page_model


@pytest.fixture
def page_model():
    return small_page_model(layers=2, heads=3, length=7)


@pytest.fixture
def visitor(page_model):
    return Visitor(page_model)


def cookie_of(answer):
    return answer.headers["set-cookie"].partition(";")[0]


def test_the_first_url_sets_a_cookie_and_redirects_to_a_url_without_the_token(visitor):
    token = visitor.token()
    found = visitor.ask(f"/?token={token}", cookie=None)
    assert found.status == 303 and found.headers["location"] == "/"
    kept = found.headers["set-cookie"]
    assert token not in kept and "HttpOnly" in kept and "SameSite=Strict" in kept
    assert f"Max-Age={SESSION_SECONDS};" in kept
    assert visitor.ask("/", cookie=cookie_of(found)).status == 200
    assert visitor.ask("/", cookie=f"{visitor.guard.cookie}={token}").status == 403


def test_a_url_opens_the_page_once_and_then_only_for_the_same_browser(visitor):
    token = visitor.token()
    own = cookie_of(visitor.ask(f"/?token={token}", cookie=None))
    again = visitor.ask(f"/?token={token}", cookie=None)
    assert again.status == 403 and "used before" in again.text and "set-cookie" not in again.headers
    assert visitor.renewed == 1  # the terminal shows a new address
    reloaded = visitor.ask(f"/?token={token}", cookie=own)
    assert reloaded.status == 303 and "set-cookie" not in reloaded.headers


def test_a_cookie_expires_and_the_terminal_shows_a_new_url(visitor):
    own = cookie_of(visitor.ask(f"/?token={visitor.token()}", cookie=None))
    visitor.time += SESSION_SECONDS - 1
    assert visitor.ask("/api/scene", cookie=own).status == 200
    visitor.time += 1
    found = visitor.ask("/api/scene", cookie=own)
    assert found.status == 403 and "ended" in found.json["error"] and visitor.renewed == 1


def test_the_token_of_the_started_browser_expires_soon(visitor):
    launched, shown = visitor.token(LAUNCH_SECONDS), visitor.token()
    visitor.time += LAUNCH_SECONDS
    assert visitor.ask(f"/?token={launched}", cookie=None).status == 403
    assert visitor.ask(f"/?token={shown}", cookie=None).status == 303


def test_a_head_request_does_not_use_the_token_up(visitor):
    token = visitor.token()
    assert visitor.ask(f"/?token={token}", method="HEAD", cookie=None).status == 403
    assert visitor.ask(f"/?token={token}", cookie=None).status == 303


def test_unknown_clients_cause_no_new_url(visitor):
    for target in ("/", "/?token=wrong", "/api/scene"):
        assert visitor.ask(target, cookie=None).status == 403
        assert visitor.ask(target, cookie=f"{visitor.guard.cookie}=wrong").status == 403
    assert visitor.renewed == 0


def test_tokens_and_cookies_are_unique():
    keys = Sessions()
    tokens = [keys.token() for _ in range(7)]
    secrets = [keys.spend(token) for token in tokens]
    assert len({*tokens, *secrets}) == 14 and min(map(len, (*tokens, *secrets))) >= 43


def test_new_urls_are_printed_at_a_limited_rate(page_model, capsys, monkeypatch):
    made = server.Server(page_model)
    try:
        for _ in range(3):
            made.application.known()
        assert capsys.readouterr().err.count("http://") == 1
        monkeypatch.setattr(server, "OFFER_SECONDS", 0.0)
        made.application.known()
        assert capsys.readouterr().err.count("http://") == 1
    finally:
        made.socket.close()


def test_the_browser_is_started_with_a_url_that_cannot_be_used_again(page_model, monkeypatch, capsys):
    """Every user of the machine can read its command line."""
    import webbrowser

    from regard_workbench.cli import view

    started, opened, known = [], [], threading.Event()
    monkeypatch.setattr(webbrowser, "open", lambda address: (opened.append(address), known.set()))
    monkeypatch.setattr(server.Server, "run", lambda own, begin: (started.append(own), begin()))
    view._serve(page_model, Namespace(host="127.0.0.1", port=0, json=False, no_browser=False))
    assert known.wait(20)
    (made,) = started
    made.socket.close()
    shown = capsys.readouterr().out.split()[-1]
    tokens = [address.partition("?token=")[2] for address in (shown, opened[0])]
    assert tokens[0] != tokens[1] and all(tokens)
    assert made.guard.sessions.spend(tokens[1]) and made.guard.sessions.spend(tokens[1]) is None
    assert made.guard.sessions.spend(tokens[0])
