"""Any bytes sent to the viewer: it answers or closes, keeps its headers, stays alive, hides all without a cookie."""

import socket

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.viewer.requests import Visitor
from tests.viewer.stand_ins import small_page_model
from tests.viewer.test_connections import answered, connected, everything, protected, running  # noqa: F401

PIECES = st.sampled_from(
    [
        b"GET ",
        b"HEAD ",
        b"POST ",
        b"/ ",
        b"/api/scene ",
        b"/?token=x ",
        b"http://x/ ",
        b"* ",
        b"HTTP/1.1",
        b"HTTP/1.0",
        b"HTTP/2.0",
        b"\r\n",
        b"\n",
        b"\r",
        b"\r\n\r\n",
        b": ",
        b"Host: HERE\r\n",
        b"Host: evil\r\n",
        b"Cookie: x=y\r\n",
        b"Content-Length: 5\r\n",
        b"Content-Length: 99999999999\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"5\r\nhello\r\n",
        b"0\r\n\r\n",
        b"Expect: 100-continue\r\n",
        b"Connection: close\r\n",
        b"Connection: keep-alive\r\n",
        b"\0",
        b"\xff",
        b"Upgrade: websocket\r\nConnection: Upgrade\r\n",
        b"Upgrade: h2c\r\nConnection: Upgrade\r\n",
        b" ",
        b"\t",
        b"%00",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"a" * 3000,
        b"Origin: null\r\n",
        b"GET / HTTP/1.1\r\nHost: HERE\r\n\r\n",
    ]
)
REQUESTS = st.lists(PIECES, max_size=20).map(b"".join) | st.binary(max_size=100)
CHUNKED = b"GET / HTTP/1.1\r\nHost: HERE\r\nTransfer-Encoding: chunked\r\n\r\n"


def answers_or_ends(server, sent):
    """Send bytes without a cookie: the response is a refusal with all security headers."""
    sent = sent.replace(b"HERE", f"127.0.0.1:{server.guard.port}".encode())
    with connected(server) as visitor:
        try:
            visitor.sendall(sent)
            visitor.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the server closed early
        found = everything(visitor)
    if found.startswith(b"HTTP/1.1 100 "):
        found = found.partition(b"\r\n\r\n")[2]
    assert not found or (found.startswith(b"HTTP/1.1 4") and protected(found)), (sent, found[:200])
    assert b"a small model" not in found


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sent=REQUESTS)
@example(sent=CHUNKED + b"zz\r\nhello")  # invalid in the middle of a body
@example(sent=CHUNKED + b"5\r\nhello\r\nFFFFFFFFFFFFFFFFFFFF\r\n")
@example(sent=b"GET / HTTP/1.1\r\nHost: HERE\r\n\r\n" * 40)
@example(sent=b"POST / HTTP/1.1\r\nHost: HERE\r\nContent-Length: 5\r\n\r\nhelloGET /")
def test_any_bytes_are_refused_or_the_connection_closed(running, sent, capfd):  # noqa: F811
    answers_or_ends(running, sent)
    assert capfd.readouterr().err == ""


def test_the_server_is_alive_after_all_of_that(running):  # noqa: F811
    assert answered(running)


@pytest.mark.nightly
@settings(max_examples=5000, deadline=None)
@given(sent=REQUESTS)
def test_many_bytes_are_refused_or_the_connection_closed(running, sent):  # noqa: F811
    answers_or_ends(running, sent)


TARGETS = st.sampled_from(
    ["scene", "overview", "tile", "row", "column", "top", "facts", "rollout", "nothing", "", "../x", "%00"]
)
WORDS = st.dictionaries(
    st.sampled_from(["variant", "site", "head", "level", "x", "y", "row", "key", "call", "top", "minus", "odd", ""]),
    st.sampled_from(["0", "1", "2", "7", "-1", "999999", "1e3", "", "NaN", "%00", "%FF", "a", "0x1", "1" * 400]),
    max_size=8,
)
HEADERS = st.dictionaries(
    st.sampled_from(
        ["host", "origin", "cookie", "sec_fetch_site", "sec_fetch_mode", "content_length", "accept", "range"]
    ),
    st.sampled_from(
        ["", "x", "0", "null", "\xff", "a" * 3000, "same-origin", "navigate", "[", "127.0.0.1:8731", "a=b; c"]
    ),
    max_size=3,
)


@settings(max_examples=150, deadline=None)
@given(target=TARGETS, words=WORDS, headers=HEADERS, method=st.sampled_from(["GET", "HEAD", "POST", "get", ""]))
def test_any_request_with_a_cookie_is_answered_or_refused(target, words, headers, method):
    query = "&".join(f"{name}={value}" for name, value in words.items())
    found = VISITOR.ask(f"/api/{target}?{query}", method=method, **headers)
    assert found.status in (200, 400, 403, 404, 405, 413), (found.status, found.content[:200])
    assert found.headers["content-security-policy"]


VISITOR = Visitor(small_page_model(layers=2, heads=3, length=7, variants=2))
