"""Sessions: one-time tokens in URLs, and the cookies they are exchanged for.

A URL ends up in a browser's history, in the process list (a browser is started with it) and on shared screens. So its
token opens the page once. The browser that used it gets a cookie with a secret of its own, which expires.
"""

from __future__ import annotations

import hashlib
import math
import secrets
import time
from collections.abc import Callable

SESSION_SECONDS = 12 * 3600  # a working day; then the terminal shows a new address
LAUNCH_SECONDS = 120  # for the browser that is started with a URL: enough for a slow one


class Sessions:
    """The issued tokens and the sessions that began with them. Only hashes are stored."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tokens: dict[bytes, float] = {}  # hash: expiry time
        self._sessions: dict[bytes, float] = {}
        self._over: set[bytes] = set()  # hashes of used tokens

    def token(self, seconds: float = math.inf) -> str:
        """A new token that opens the page once, valid for so many seconds."""
        token = secrets.token_urlsafe(32)
        self._tokens[_hashed(token)] = self._clock() + seconds
        return token

    def spend(self, token: str) -> str | None:
        """Exchange a valid token for the secret of a new session; None for any other token."""
        ends = self._tokens.pop(_hashed(token), None)
        if ends is None:
            return None
        self._over.add(_hashed(token))
        if self._clock() >= ends:
            return None
        secret = secrets.token_urlsafe(32)
        self._sessions[_hashed(secret)] = self._clock() + SESSION_SECONDS
        return secret

    def admits(self, secret: str | None) -> bool:
        """Whether a cookie's secret belongs to a session that has not expired."""
        return secret is not None and self._clock() < self._sessions.get(_hashed(secret), -math.inf)

    def knew(self, token: str | None, secret: str | None) -> bool:
        """Whether this token was used or this secret's session has expired, so the client was authorised before."""
        ended = secret is not None and _hashed(secret) in self._sessions and not self.admits(secret)
        return ended or (token is not None and _hashed(token) in self._over)


def _hashed(secret: str) -> bytes:
    """The hash that is stored and compared, so that the time of a look-up reveals nothing about the secret."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
