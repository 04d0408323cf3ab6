"""The viewer's server on a real socket: slow, broken and too many connections are closed; others are answered."""

import errno
import gc
import json
import socket
import threading
import time
from contextlib import contextmanager, suppress

import pytest

from regard_workbench.viewer import connections
from regard_workbench.viewer.guard import HEADERS
from regard_workbench.viewer.server import Server
from tests.viewer.stand_ins import small_page_model

WAIT = 20.0  # seconds until a test gives up


@contextmanager
def serving(page_model=None):
    """A running server, and a valid cookie for it."""
    made = Server(page_model or small_page_model(layers=2, heads=3, length=7))
    made.cookie = f"{made.guard.cookie}={made.guard.sessions.spend(made.guard.sessions.token())}"
    started = threading.Thread(target=made.run)
    started.start()
    until(lambda: made._server is not None and made._server.started)
    try:
        yield made
    finally:
        made.stop()
        started.join(WAIT)
        assert not started.is_alive()
        gc.collect()  # an unclosed socket would warn here and fail the test


@pytest.fixture(scope="module")
def running():
    with serving() as server:
        yield server


def until(condition):
    end = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def connected(server):
    made = socket.create_connection(("127.0.0.1", server.guard.port), timeout=WAIT)
    made.settimeout(WAIT)
    return made


def asking(server, target="/api/scene", *headers):
    lines = [f"GET {target} HTTP/1.1", f"Host: 127.0.0.1:{server.guard.port}", f"Cookie: {server.cookie}", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def everything(visitor):
    """The bytes until the server closes the connection."""
    found = b""
    try:
        while piece := visitor.recv(65536):
            found += piece
    except ConnectionError:
        pass
    return found


def answered(server):
    """Whether an ordinary request is answered."""
    with connected(server) as visitor:
        visitor.sendall(asking(server, "/api/scene", "Connection: close"))
        head, _, body = everything(visitor).partition(b"\r\n\r\n")
    return head.startswith(b"HTTP/1.1 200 ") and json.loads(body)["title"] == "a small model"


def protected(answer):
    """Whether the first answer in some bytes has every security header, once."""
    head = answer.partition(b"\r\n\r\n")[0].decode("latin-1").casefold().split("\r\n")[1:]
    return all(head.count(f"{name}: {value.casefold()}") == 1 for name, value in HEADERS.items())


def test_the_parser_is_h11_whatever_else_is_installed():
    listener = connections.ConnectionServer(lambda *given: None)
    listener.config.load()
    assert listener.config.http_protocol_class is connections.Connection
    assert issubclass(connections.Connection, connections.H11Protocol)


@pytest.mark.parametrize(
    "sent",
    [
        b"no http at all\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # the beginning of TLS
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/9.9\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: odd\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX" + b": y\r\n" * 3 + b"\r\n",
        b"GET /" + b"p" * 100_000,
        b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 100_000,
        b"GET / HTTP/1.1\r\nHost: a\r\n" + b"a: b\r\n" * 20_000,
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
        b"GET / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close, Upgrade\r\nUpgrade: websocket\r\nConnection: close\r\n\r\n",
        b"GET http://[ HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        b"GET * HTTP/1.0\r\n\r\n",
    ],
)
def test_invalid_requests_get_the_same_security_headers_and_are_closed(running, sent, capfd):
    with connected(running) as visitor:
        visitor.sendall(sent)
        visitor.shutdown(socket.SHUT_WR)
        found = everything(visitor)
    assert found.startswith(b"HTTP/1.1 4") and protected(found)
    assert answered(running)
    assert capfd.readouterr().err == ""


def test_an_internal_error_is_answered_with_the_same_security_headers(monkeypatch, capfd):
    def broken(*given):
        raise ZeroDivisionError("in the guard")

    with serving() as server:
        monkeypatch.setattr(server.guard, "check", broken)
        with connected(server) as visitor:
            visitor.sendall(asking(server, "/", "Connection: close"))
            found = everything(visitor)
    assert found.startswith(b"HTTP/1.1 500 ") and protected(found) and b"in the guard" not in found
    assert "in the guard" in capfd.readouterr().err


@pytest.mark.parametrize("trickle", [b"", b"a"])
def test_a_slow_header_closes_the_connection(monkeypatch, trickle):
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.3)
    with serving() as server, connected(server) as visitor:
        visitor.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nX: ")
        visitor.settimeout(0.05)
        end, over = time.monotonic() + WAIT, False
        while not over:
            assert time.monotonic() < end
            try:
                visitor.sendall(trickle)
                over = visitor.recv(1) == b""
            except TimeoutError:
                pass
            except ConnectionError:
                over = True


def test_an_idle_connection_is_closed(monkeypatch):
    monkeypatch.setattr(connections, "IDLE_SECONDS", 0.3)
    with serving() as server, connected(server) as visitor:
        visitor.sendall(asking(server))
        assert everything(visitor).startswith(b"HTTP/1.1 200 ")


def test_the_second_request_of_a_connection_has_a_time_limit_too(monkeypatch):
    with serving() as server, connected(server) as visitor:
        visitor.sendall(asking(server))
        assert visitor.recv(1) == b"H"
        monkeypatch.setattr(connections, "HEADER_SECONDS", 0.3)
        visitor.sendall(b"GET / HT")
        everything(visitor)  # ends


def test_a_slow_response_closes_the_connection(monkeypatch):
    monkeypatch.setattr(connections, "TOTAL_SECONDS", 0.3)
    page_model, go_on = small_page_model(layers=2, heads=3, length=7), threading.Event()
    monkeypatch.setattr(page_model, "scene", lambda: go_on.wait(WAIT) and {})
    with serving(page_model) as server:
        with connected(server) as visitor:
            visitor.sendall(asking(server))
            assert everything(visitor) == b""
        go_on.set()


def test_a_response_that_is_not_read_is_dropped(monkeypatch):
    monkeypatch.setattr(connections, "TOTAL_SECONDS", 0.5)
    monkeypatch.setattr(connections, "IDLE_SECONDS", 0.5)
    with serving() as server:
        server.application.page = {"/large": ("text/plain", b"x" * 30_000_000)}
        with connected(server) as visitor:
            visitor.sendall(asking(server, "/large"))
            until(lambda: server._server.server_state.connections)
            until(lambda: not server._server.server_state.connections)


def test_idle_connections_do_not_block_others(monkeypatch):
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 5)
    with serving() as server:
        visitors = [connected(server) for _ in range(23)]
        try:
            for one in visitors:
                with suppress(ConnectionError):  # it was dropped for another
                    one.sendall(b"G")
            assert answered(server) and answered(server)
            assert len(server._server.server_state.connections) <= 5
        finally:
            for one in visitors:
                one.close()


def test_busy_connections_are_not_dropped_for_others(monkeypatch):
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 3)
    monkeypatch.setattr(connections, "PAUSE", 0.01)
    page_model, go_on = small_page_model(layers=2, heads=3, length=7), threading.Event()
    scene = page_model.scene()
    monkeypatch.setattr(page_model, "scene", lambda: go_on.wait(WAIT) and scene)
    with serving(page_model) as server:
        busy = [connected(server) for _ in range(3)]
        for one in busy:
            one.sendall(asking(server, "/api/scene", "Connection: close"))
        until(lambda: sum(one.busy for one in list(server._server.server_state.connections)) == 3)
        with connected(server) as late:
            late.sendall(asking(server, "/api/scene", "Connection: close"))
            go_on.set()
            for one in (*busy, late):
                assert everything(one).startswith(b"HTTP/1.1 200 ")
                one.close()


def test_a_lack_of_file_descriptors_is_reported_in_one_line_and_survived(monkeypatch, capfd):
    monkeypatch.setattr(connections, "PAUSE", 0.01)
    with serving() as server:
        tries = []

        class Full:
            """A listening socket for which no descriptor is free, for a while."""

            def __init__(self, real):
                self.real = real

            def __getattr__(self, name):
                return getattr(self.real, name)

            def accept(self):
                tries.append(None)
                if len(tries) <= 17:
                    raise OSError(errno.EMFILE, "Too many open files")
                return self.real.accept()

        def pretend(task):
            task.cancel()
            new = task.get_loop().create_task(server._server._accept(Full(server.socket)))
            server._server._accepting[:] = [new]

        (task,) = server._server._accepting
        task.get_loop().call_soon_threadsafe(pretend, task)
        until(lambda: server._server._accepting[0] is not task)
        assert answered(server)
        assert len(tries) >= 18
    said = capfd.readouterr().err
    assert said.count("\n") == 1 and "Too many open files" in said


def test_attempts_without_a_free_descriptor_are_spaced():
    assert connections.PAUSE >= 0.1 and connections.REMINDER >= 10
