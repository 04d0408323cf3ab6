"""Who has been let in: one-time tokens for addresses, and the cookies they become.

An address ends up in a browser's history, in the list of processes (a browser is started with it), on shared screens.
So the token in it opens the page once. The browser that used it gets a cookie with a secret of its own, which ends.
"""

from __future__ import annotations

import hashlib
import math
import secrets
import time
from collections.abc import Callable

SESSION_SECONDS = 12 * 3600  # a working day; then the terminal shows a new address
LAUNCH_SECONDS = 120  # for the browser that is started with an address: long enough for a slow one


class Sessions:
    """The tokens that were handed out and the sessions that began with them. Only their hashes are kept."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tokens: dict[bytes, float] = {}  # hash: when it ends
        self._sessions: dict[bytes, float] = {}
        self._over: set[bytes] = set()  # of tokens that were used

    def token(self, seconds: float = math.inf) -> str:
        """A new token that opens the page once, within so many seconds."""
        made = secrets.token_urlsafe(32)
        self._tokens[_hashed(made)] = self._clock() + seconds
        return made

    def spend(self, token: str) -> str | None:
        """The secret of a new session for a token that still opens; None for any other."""
        ends = self._tokens.pop(_hashed(token), None)
        if ends is None:
            return None
        self._over.add(_hashed(token))
        if self._clock() >= ends:
            return None
        made = secrets.token_urlsafe(32)
        self._sessions[_hashed(made)] = self._clock() + SESSION_SECONDS
        return made

    def admits(self, secret: str | None) -> bool:
        """Whether a cookie's secret is that of a session that has not ended."""
        return secret is not None and self._clock() < self._sessions.get(_hashed(secret), -math.inf)

    def knew(self, token: str | None, secret: str | None) -> bool:
        """Whether this token was used, or this secret's session has ended: whoever brings it was let in before."""
        ended = secret is not None and _hashed(secret) in self._sessions and not self.admits(secret)
        return ended or (token is not None and _hashed(token) in self._over)


def _hashed(secret: str) -> bytes:
    """What is compared and kept: how long a look-up takes tells nothing about the secret itself."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
