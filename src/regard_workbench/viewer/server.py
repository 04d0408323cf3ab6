"""The viewer's web server: serves the page's files and answers its requests, for one user on this machine.

Weights are computed in a few threads, so that the page stays responsive while a large map is computed.
"""

from __future__ import annotations

import errno
import html
import math
import socket
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from regard.errors import BadValue, RegardError
from regard_workbench.viewer.guard import HEADERS, Guard, Refused, is_loopback
from regard_workbench.viewer.inputs import Inputs
from regard_workbench.viewer.page_model import PageModel
from regard_workbench.viewer.requests import NotFound, packed

AT_ONCE = 4  # requests about weights computed at the same time
SLOW = ("facts", "rollout", "flow", "cause")  # one of these at a time: they must not delay tiles
BODY_SECONDS = 30.0  # for the body of a request
COURTESY, PAUSE = 6.0, 0.05  # seconds for which a slow request waits for others, and between two checks
WAITING = 256  # requests that may wait; a page has a few dozen pending tiles at most
MOST_WORDS = 12  # parameters of one request
PORTS_TRIED = 20
OFFER_SECONDS = 10.0  # seconds between two new addresses in the terminal
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


def page_files(folder: Path | None = None) -> dict[str, tuple[str, bytes]]:
    """Every file of the page by its path: content type and content. No other file is ever served."""
    root = Path(str(files("regard_workbench.viewer"))) / "page" if folder is None else folder
    contents = {}
    for path in sorted(root.rglob("*")):
        if path.suffix in TYPES and path.is_file():
            contents["/" + path.relative_to(root).as_posix()] = (TYPES[path.suffix], path.read_bytes())
    if "/index.html" in contents:
        contents["/"] = contents["/index.html"]
    return contents


class Application:
    """The ASGI application: access control, then the page's files or a request."""

    def __init__(
        self,
        page_model: PageModel,
        guard: Guard,
        page: dict[str, tuple[str, bytes]] | None = None,
        known: Callable[[], None] = lambda: None,
    ) -> None:
        """known: called when a browser that was authorised before comes with an expired or used secret."""
        from anyio import CapacityLimiter

        # Other machines may look at the page, not run the model on inputs of theirs.
        self.guard, self.inputs, self.known = guard, Inputs(page_model, live=not guard.remote), known
        self.page = page_files() if page is None else page
        self.limiter, self.patient = CapacityLimiter(AT_ONCE), CapacityLimiter(1)
        self.threads = CapacityLimiter(AT_ONCE + 1)
        self.waiting = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # no websockets, no lifespan
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            return
        from starlette.requests import Request
        from starlette.responses import Response

        request = Request(scope, receive)
        try:
            status, kind, content, extra = await self._answered(request)
        except Refused as refusal:
            status, kind, content = _refusal(str(scope["path"]), refusal)
            # An unread body would be parsed as the next request.
            extra = {} if request.method in ("GET", "HEAD") and status != 413 else {"connection": "close"}
            if status == 405:
                extra["allow"] = "GET, HEAD"
            if refusal.known:
                self.known()
        except Exception:  # a bug of ours: answered here, so that this response has the security headers too
            traceback.print_exc()
            extra = {}
            status, kind, content = _said(500, "The viewer could not answer. See the terminal for the error.")
        response = Response(content, status, {**HEADERS, **extra}, media_type=None)
        if content:
            response.headers["content-type"] = kind
        await response(scope, receive, send)

    async def _answered(self, request: Any) -> tuple[int, str, bytes, dict[str, str]]:
        path, query = request.scope["path"], request.scope["query_string"]
        heard: dict[str, str] = {}
        for name, value in request.headers.items():
            if name in ("host", "origin") and name in heard:
                raise Refused(400, "The request names two hosts.", "Open the address that the terminal shows.")
            heard[name] = f"{heard[name]}; {value}" if name in heard else value
        redirect = self.guard.check(request.method, path, query, heard)
        if redirect is not None:
            return 303, "text/plain", b"", redirect
        if path in self.page:
            kind, content = self.page[path]
            return 200, kind, content, {}
        if not path.startswith("/api/"):
            raise Refused(404, "There is no such page.", "The viewer has one page: go to the start.")
        status, kind, content = await self._asked(path.removeprefix("/api/"), request)
        return status, kind, content, {}

    async def _asked(self, path: str, request: Any) -> tuple[int, str, bytes]:
        from anyio import to_thread

        words = request.query_params.multi_items()
        body = await self._body(request)  # of most requests empty; after it a disconnect can be detected
        if len(words) > MOST_WORDS or len(dict(words)) < len(words):
            return _said(400, "A parameter was repeated, or there are too many.")
        if self.waiting >= WAITING:
            return _said(503, "Too many requests at once. Wait a moment.")
        self.waiting += 1
        try:
            work = self._work(path, dict(words), body)
            if path in SLOW:
                await self._let_others_go_first()
            async with self.patient if path in SLOW else self.limiter:
                # The page may no longer need it; computing it would delay other requests.
                if await request.is_disconnected():
                    return _said(503, "The client has disconnected.")
                kind, content = await to_thread.run_sync(work, limiter=self.threads, abandon_on_cancel=True)
            return 200, kind, content
        except NotFound as why:
            return _said(404, str(why))
        except RegardError as why:
            return _said(400, str(why).removeprefix("--"))  # the page has no command line
        except MemoryError:
            return _said(413, "There is not enough memory for this. Zoom in, or choose a shorter text.")
        except Exception as trouble:  # an error of ours, or of the model
            traceback.print_exc()
            return _said(
                500, f"The weights could not be computed ({type(trouble).__name__}). See the terminal for the error."
            )
        finally:
            self.waiting -= 1

    def _work(self, path: str, words: dict[str, str], body: bytes) -> Callable[[], tuple[str, bytes]]:
        """What to compute for a request."""
        if path == "input":
            return partial(self.inputs.read_text, body, words.get("input"))
        if path == "cause":
            return partial(self.inputs.cause, body, words.get("input"))
        if path == "file":
            return partial(self.inputs.read_file, body, words)
        return partial(self.inputs.answer, path, words)

    async def _body(self, request: Any) -> bytes:
        """The body of a request, which the guard has found small enough."""
        from anyio import fail_after

        try:
            with fail_after(BODY_SECONDS):
                body: bytes = await request.body()
        except TimeoutError:
            raise Refused(408, "The input did not arrive in time.", "Send it again.") from None
        return body

    async def _let_others_go_first(self) -> None:
        """Let pending pictures go first, for a limited time."""
        from anyio import sleep

        for _ in range(int(COURTESY / PAUSE)):
            await sleep(PAUSE)
            if not self.limiter.borrowed_tokens:
                return


def _said(status: int, words: str) -> tuple[int, str, bytes]:
    return status, "application/json", packed({"error": words})


def _refusal(path: str, refusal: Refused) -> tuple[int, str, bytes]:
    """The response to a refused request: JSON for the page's requests, else a small HTML page."""
    if path.startswith("/api/"):
        return _said(refusal.status, f"{refusal.title} {refusal.advice}")
    title, advice = html.escape(refusal.title), html.escape(refusal.advice)
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>regard view</title></head>'
        f"<body><h1>{title}</h1><p>{advice}</p></body></html>"
    )
    return refusal.status, "text/html; charset=utf-8", page.encode()


def listen(host: str, port: int, search: bool = True) -> socket.socket:
    """A socket on the port, or on one of the next ports where it is in use."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    last = port + PORTS_TRIED if search and port else port + 1
    for number in range(port, min(last, 65536)):
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, number))
            listener.listen(64)
        except OSError as trouble:
            listener.close()
            if trouble.errno == errno.EADDRINUSE:
                continue
            raise BadValue(f"--host, --port: {host}:{number} cannot be used: {trouble.strerror}.") from None
        return listener
    raise BadValue(f"--port: {port} and the next {last - port - 1} ports are in use. Choose another with --port.")


class Server:
    """A bound socket with its guard; `run` serves until it is stopped."""

    def __init__(self, page_model: PageModel, host: str = "127.0.0.1", port: int = 0) -> None:
        self.socket = listen(host, port)
        self.guard = Guard(self.socket.getsockname()[1], "127.0.0.1" if host == "localhost" else host)
        self.application = Application(page_model, self.guard, known=self._offer_again)
        self._server: Any = None
        self._offered = -math.inf

    def address(self, seconds: float = math.inf) -> str:
        """A new URL that opens the page once, valid for so many seconds."""
        return self.guard.address(self.guard.sessions.token(seconds))

    def _offer_again(self) -> None:
        """Print a new URL to the terminal, where only the user who started the viewer sees it."""
        if time.monotonic() - self._offered >= OFFER_SECONDS:
            self._offered = time.monotonic()
            print(
                f"A browser used an address that was used before or has expired. Open {self.address()}", file=sys.stderr
            )

    def run(self, started: Callable[[], None] = lambda: None) -> None:
        """Serve until Ctrl-C or `stop`; `started` is called when requests can be accepted."""
        from regard_workbench.viewer.connections import ConnectionServer

        self._server = ConnectionServer(self.application)
        started()
        try:
            self._server.run(sockets=[self.socket])
        except KeyboardInterrupt:
            pass  # the usual way to stop
        finally:
            self.socket.close()

    def stop(self) -> None:
        """Stop `run` from another thread."""
        if self._server is not None:
            self._server.should_exit = True


def reachable_from_elsewhere(host: str) -> bool:
    """Whether other machines can open the page."""
    return not is_loopback(host)
