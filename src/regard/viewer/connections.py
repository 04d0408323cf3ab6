"""Connections to the viewer: how many there may be at once, and how long each stage of one may take.

Built on uvicorn with h11, a parser in Python that bounds what it keeps of a request; which parser uvicorn takes by
itself depends on what else is installed. uvicorn limits neither the time for a request's header nor that for an answer
to be read, and asyncio's own accepting logs a traceback for each attempt while no descriptor is free. Both are done
here.
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

from regard.viewer.guard import HEADERS

HEADER_SECONDS = 10.0  # for the header of a request, from its first byte
IDLE_SECONDS = 30.0  # for the next request on a connection that is kept
TOTAL_SECONDS = 300.0  # for an answer to be worked out and read
MOST_CONNECTIONS = 64  # a browser has six for each address
PAUSE = 0.5  # seconds between two attempts to accept while no descriptor is free
REMINDER = 60.0  # seconds between two lines about that
LARGEST_HEADER = 32 * 1024  # bytes
FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Connection(H11Protocol):
    """One connection, each stage of which has to end in time."""

    _deadline: asyncio.TimerHandle | None = None
    _kept = False  # between two requests
    _answering: Any = None  # the request whose time runs
    waiting_since = 0.0

    @property
    def busy(self) -> bool:
        """Whether a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._wait(HEADER_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of the timers."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on. The time for a header runs from its first byte, whatever follows."""
        if self._kept and not self.busy:
            self._kept = False
            self._wait(HEADER_SECONDS)
        try:
            super().data_received(data)
        except Exception:  # no request, however odd, is worth a traceback in the terminal
            self.transport.abort()

    def handle_events(self) -> None:
        """Take what was read; a request that is whole has the time of an answer."""
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
        """Answer what is no HTTP, with the headers of every other answer."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):  # in the middle of an answer
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

    def give_way(self) -> None:
        """End at once; what was not read yet is lost."""
        self.transport.abort()

    def _wait(self, seconds: float) -> None:
        self.waiting_since = time.monotonic()
        self._within(seconds)

    def _within(self, seconds: float) -> None:
        """End the connection after so many seconds, unless another stage begins before."""
        if self._deadline is not None:
            self._deadline.cancel()
        # Aborted, not closed: closing waits for what a reader that has stopped will never read.
        self._deadline = self.loop.call_later(seconds, self.give_way)


class ConnectionServer(uvicorn.Server):
    """A uvicorn server that accepts connections itself: up to a limit, and calmly where no descriptor is free."""

    def __init__(self, application: Any, tell: Callable[[str], None] | None = None) -> None:
        super().__init__(
            uvicorn.Config(
                application, http=Connection, loop="asyncio", ws="none", lifespan="off", log_level="critical",
                access_log=False, server_header=False, proxy_headers=False, timeout_keep_alive=int(IDLE_SECONDS),
                timeout_graceful_shutdown=1, h11_max_incomplete_event_size=LARGEST_HEADER,
            )
        )  # fmt: skip
        self._tell = tell or (lambda text: print(text, file=sys.stderr, flush=True))
        self._accepting: list[asyncio.Task[None]] = []
        self._told = -REMINDER

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept."""
        await super().startup(sockets=[])
        for one in sockets or ():
            one.setblocking(False)
            self._accepting.append(asyncio.create_task(self._accept(one)))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, then end the connections."""
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
                    freed = self._free_one()  # one that only waits makes room for one that comes
                await asyncio.sleep(0 if freed else PAUSE)  # a turn of the loop, in which it is closed
                continue
            try:
                await self._room()
                await loop.connect_accepted_socket(self._connection, accepted)
            except OSError:  # gone already
                accepted.close()
            except asyncio.CancelledError:
                accepted.close()
                raise

    def _connection(self) -> Connection:
        return Connection(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    async def _room(self) -> None:
        """Wait until one more connection may begin. One that only waits for a request gives way to it."""
        while len(self.server_state.connections) >= MOST_CONNECTIONS:
            if not self._free_one():
                await asyncio.sleep(PAUSE)
            await asyncio.sleep(0)  # an ended connection is taken off the list in the next turn

    def _free_one(self) -> bool:
        """End the connection that has waited for a request for the longest time, if there is one."""
        waiting = [
            one for one in self.server_state.connections if isinstance(one, Connection) and not one.busy
        ]
        if waiting:
            min(waiting, key=lambda one: one.waiting_since).give_way()
        return bool(waiting)

    def _complain(self, trouble: OSError) -> None:
        if time.monotonic() - self._told >= REMINDER:
            self._told = time.monotonic()
            self._tell(f"The viewer cannot take new connections: {trouble.strerror}. It goes on trying.")
