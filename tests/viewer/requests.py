"""Requests to the viewer's application without a network, with any headers."""

import asyncio
import json
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from urllib.parse import unquote

from regard_workbench.viewer.guard import Guard
from regard_workbench.viewer.server import Application
from regard_workbench.viewer.sessions import Sessions

PORT = 8731
PAGE = {
    "/": ("text/html; charset=utf-8", b"<!doctype html><title>page</title>"),
    "/index.html": ("text/html; charset=utf-8", b"<!doctype html><title>page</title>"),
    "/views/tokens.js": ("text/javascript; charset=utf-8", b"export const a = 1;"),
}


@dataclass
class Answer:
    status: int
    headers: dict
    content: bytes

    @property
    def json(self):
        return json.loads(self.content)

    @property
    def text(self):
        return self.content.decode()


class Visitor:
    """A browser that has opened the page, by default."""

    def __init__(self, page_model, host="127.0.0.1"):
        self.time, self.renewed = 1000.0, 0
        self.guard = Guard(PORT, host, Sessions(clock=lambda: self.time))
        self.application = Application(page_model, self.guard, PAGE, known=self._renew)
        self.secret = self.guard.sessions.spend(self.guard.sessions.token())
        self.known = {"host": f"127.0.0.1:{PORT}", "cookie": f"{self.guard.cookie}={self.secret}"}

    def _renew(self):
        self.renewed += 1

    def token(self, seconds=math.inf):
        return self.guard.sessions.token(seconds)

    def send(self, target, body, kind="application/json", **changed):
        """A POST as the page's own script sends it."""
        given = {"origin": f"http://127.0.0.1:{PORT}", "content_type": kind, "content_length": str(len(body))}
        return self.ask(target, "POST", body=body, **{**given, **changed})

    def ask(self, target, method="GET", headers=None, body=b"", **changed):
        """`headers` in place of all; `changed` on top of the usual ones, None to leave one out."""
        given = dict(self.known) if headers is None else dict(headers)
        for name, value in changed.items():
            given[name.replace("_", "-")] = value
        pairs = [(k.encode(), v.encode("latin-1")) for k, v in given.items() if v is not None]
        path, _, query = target.partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": unquote(path),
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": pairs,
            "client": ("127.0.0.1", 50000),
            "server": ("127.0.0.1", PORT),
        }
        sent = []

        async def receive():
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message):
            sent.append(message)

        # In its own thread: Playwright's event loop may be running in this one.
        with ThreadPoolExecutor(1) as other:
            other.submit(asyncio.run, self.application(scope, receive, send)).result()
        start = sent[0]
        found = {name.decode(): value.decode() for name, value in start["headers"]}
        return Answer(start["status"], found, b"".join(m.get("body", b"") for m in sent[1:]))
