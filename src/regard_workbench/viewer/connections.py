"""Connections to the viewer: limits on their number and on the time of each phase.

Built on uvicorn with h11, a Python parser that bounds the size of a request; uvicorn's default parser depends on what
is installed. uvicorn limits neither the time for a request's header nor the time for a response to be read, and asyncio
logs a traceback for each attempt to accept while no file descriptor is free. This file handles both.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from regard_workbench.viewer.guard import HEADERS

HEADER_SECONDS = 10.0  # for the header of a request, from its first byte
IDLE_SECONDS = 30.0  # for the next request on a kept-alive connection
TOTAL_SECONDS = 300.0  # for a response to be computed and read
MOST_CONNECTIONS = 64  # a browser opens six per host
PAUSE = 0.5  # seconds between attempts to accept while no file descriptor is free
REMINDER = 60.0  # seconds between two messages about that
LARGEST_HEADER = 32 * 1024  # bytes
FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Connection(H11Protocol):
    """One connection with a time limit for each phase."""

    _deadline: asyncio.TimerHandle | None = None
    _kept = False  # between two requests
    _answering: Any = None  # the request that is being timed
    waiting_since = 0.0

    @property
    def busy(self) -> bool:
        """Whether a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start waiting for a request."""
        super().connection_made(transport)
        self._wait(HEADER_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read data. The time limit of a header starts with its first byte."""
        if self._kept and not self.busy:
            self._kept = False
            self._wait(HEADER_SECONDS)
        try:
            super().data_received(data)
        except Exception:  # a malformed request must not print a traceback
            self.transport.abort()

    def handle_events(self) -> None:
        """Handle what was read; once a request is complete, the time limit of the response starts."""
        super().handle_events()
        if self.busy and self.cycle is not self._answering:
            self._answering, self._kept = self.cycle, False
            self._within(TOTAL_SECONDS)

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._kept = True
        self._wait(IDLE_SECONDS)
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer invalid HTTP, with the same headers as every other response."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):  # a response is already being sent
            self.transport.abort()
            return
        body = msg.encode("ascii", "replace")
        headers = [
            *((name.encode(), value.encode()) for name, value in HEADERS.items()),
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        for event in (
            h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def drop(self) -> None:
        """Abort the connection; unread data is lost."""
        self.transport.abort()

    def _wait(self, seconds: float) -> None:
        self.waiting_since = time.monotonic()
        self._within(seconds)

    def _within(self, seconds: float) -> None:
        """Abort the connection after so many seconds, unless another phase begins before."""
        if self._deadline is not None:
            self._deadline.cancel()
        # Abort instead of close: close would wait for a client that has stopped reading.
        self._deadline = self.loop.call_later(seconds, self.drop)


class ConnectionServer(uvicorn.Server):
    """A uvicorn server that accepts connections itself, up to a limit, and retries while no file descriptor is free."""

    def __init__(self, application: Any, tell: Callable[[str], None] | None = None) -> None:
        super().__init__(
            uvicorn.Config(
                application,
                http=Connection,
                loop="asyncio",
                ws="none",
                lifespan="off",
                log_level="critical",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=int(IDLE_SECONDS),
                timeout_graceful_shutdown=1,
                h11_max_incomplete_event_size=LARGEST_HEADER,
            )
        )
        self._tell = tell or (lambda text: print(text, file=sys.stderr, flush=True))
        self._accepting: list[asyncio.Task[None]] = []
        self._told = -REMINDER

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start accepting."""
        await super().startup(sockets=[])
        for listener in sockets or ():
            listener.setblocking(False)
            self._accepting.append(asyncio.create_task(self._accept(listener)))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, then close the connections."""
        for task in self._accepting:
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        await super().shutdown(sockets)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(listening)
            except OSError as trouble:
                freed = False
                if trouble.errno in FULL:
                    self._complain(trouble)
                    freed = self._free_one()  # drop an idle connection for the new one
                await asyncio.sleep(0 if freed else PAUSE)  # 0: one turn of the loop, in which it is closed
                continue
            try:
                await self._room()
                await loop.connect_accepted_socket(self._connection, accepted)
            except OSError:  # the client is gone
                accepted.close()
            except asyncio.CancelledError:
                accepted.close()
                raise

    def _connection(self) -> Connection:
        return Connection(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    async def _room(self) -> None:
        """Wait until there is room for one more connection; an idle one is dropped for it."""
        while len(self.server_state.connections) >= MOST_CONNECTIONS:
            if not self._free_one():
                await asyncio.sleep(PAUSE)
            await asyncio.sleep(0)  # a closed connection is removed from the list in the next turn

    def _free_one(self) -> bool:
        """Drop the connection that has been idle longest, if there is one."""
        waiting = [
            connection
            for connection in self.server_state.connections
            if isinstance(connection, Connection) and not connection.busy
        ]
        if waiting:
            min(waiting, key=lambda one: one.waiting_since).drop()
        return bool(waiting)

    def _complain(self, trouble: OSError) -> None:
        if time.monotonic() - self._told >= REMINDER:
            self._told = time.monotonic()
            self._tell(f"The viewer cannot accept new connections: {trouble.strerror}. It keeps trying.")
