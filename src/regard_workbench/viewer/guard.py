"""Access control: only the user who started the viewer, from the page it served.

A web site in another tab can send requests to a local server, and with DNS rebinding even read the responses. So every
request must name this server as its host, must not come from another site's page, and must carry a secret: a one-time
token in the first URL, and from then on a cookie that scripts cannot read (`sessions.py`).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from urllib.parse import parse_qs

from regard.errors import BadValue
from regard_workbench.viewer.sessions import SESSION_SECONDS, Sessions

LOOPBACK = ("127.0.0.1", "localhost", "::1")
LONGEST_QUERY = 2000
# Requests with a body: the type it must have, and how many bytes it may have.
BODIES = {
    "/api/input": ("application/json", 2**20),
    "/api/cause": ("application/json", 2**20),
    "/api/file": ("application/octet-stream", 2**25),
}

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "connect-src 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
        "form-action 'none'",
    )
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "x-frame-options": "DENY",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    "cache-control": "no-store",
}


class Refused(Exception):
    """A refused request: a status, and a text that repeats nothing of what was sent.

    known: the client was authorised before; the terminal may show a new address.
    """

    def __init__(self, status: int, title: str, advice: str, known: bool = False) -> None:
        super().__init__(title)
        self.status, self.title, self.advice, self.known = status, title, advice, known


def is_loopback(host: str) -> bool:
    """Whether a host is reachable only from this machine."""
    if host.casefold() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def checked_host(host: str, allow_remote: bool) -> str:
    """A host to bind to; one that other machines can reach only with `allow_remote`."""
    if not host or not host.isprintable() or len(host) > 253:
        raise BadValue(f"--host: expected a name or an address, got {host[:40]!r}. Leave it out for 127.0.0.1.")
    if not is_loopback(host) and not allow_remote:
        raise BadValue(
            f"--host: {host!r} can be reached from other machines, and whoever has the address could see the model's "
            "input. Leave it out for 127.0.0.1, or add --allow-remote; over SSH, forward the port instead."
        )
    return host


class Guard:
    """Checks requests to one server, by its host, its port and the secrets it issued."""

    def __init__(self, port: int, host: str = "127.0.0.1", sessions: Sessions | None = None) -> None:
        self.port, self.host = port, host
        self.sessions = sessions or Sessions()
        self.cookie = f"regard-{port}"  # browsers share cookies between ports, so each viewer has its own name
        self.remote = not is_loopback(host)
        names: Iterable[str] = (*LOOPBACK, host)
        self.names = frozenset(name.casefold() for name in names)

    def check(self, method: str, path: str, query: bytes, headers: Mapping[str, str]) -> dict[str, str] | None:
        """Raise `Refused`; else return None, or the headers of a redirect that removes the token from the URL."""
        if not self._is_ours(headers.get("host", "")):
            raise Refused(403, "This is not the address of the viewer.", "Open the address that the terminal shows.")
        origin = headers.get("origin")
        if origin is not None and not self._is_own_origin(origin):
            raise Refused(
                403, "The request comes from another page.", "Only the viewer's own page may request its data."
            )
        site, mode = headers.get("sec-fetch-site"), headers.get("sec-fetch-mode")
        # Another port of this machine is "same-site": a link there may open the page, nothing else.
        if site not in (None, "none", "same-origin") and not (site == "same-site" and mode == "navigate"):
            raise Refused(
                403, "The request comes from another page.", "Copy the address from the terminal into the browser."
            )
        if method == "POST" and path in BODIES:
            _check_body(path, headers)
        elif method not in ("GET", "HEAD"):
            raise Refused(405, "The viewer only answers GET.", "Nothing here can be changed.")
        elif headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
            raise Refused(413, "The request has a body.", "Send parameters in the URL.")
        if len(query) > LONGEST_QUERY:
            raise Refused(413, "The address is too long.", "Open the address that the terminal shows.")
        token, secret = _token(query), _cookie(headers.get("cookie", ""), self.cookie)
        if path == "/" and token is not None:
            return self._let_in(method, token, secret)
        if not self.sessions.admits(secret):
            ended = self.sessions.knew(None, secret)
            title = "This browser's session has ended." if ended else "The viewer does not know this browser yet."
            raise Refused(403, title, _NEW if ended else _AGAIN, ended)
        return None

    def _let_in(self, method: str, token: str, secret: str | None) -> dict[str, str]:
        """Redirect for a token in the URL: with a cookie on first use; without for the browser that has the cookie."""
        new_secret = (
            self.sessions.spend(token) if method == "GET" else None
        )  # HEAD does not use the token up: programs preview links with it
        if new_secret is not None:
            # The redirect keeps the URL's fragment (the state of the page) and removes the token.
            return {"location": "/", "set-cookie": self.cookie_header(new_secret)}
        used = self.sessions.knew(token, None)
        if used and self.sessions.admits(secret):  # the same browser again: a reload, bookmark or restored tab
            return {"location": "/"}
        if used:
            raise Refused(403, "This address was used before; each opens the page once.", _NEW, known=True)
        raise Refused(403, "This token was not issued by this viewer.", _AGAIN)

    def _is_ours(self, host: str) -> bool:
        name, port = _split(host)
        if port != self.port or name is None:
            return False
        # DNS rebinding needs a host name; a numeric address is safe.
        return name.casefold() in self.names or (self.remote and _is_address(name))

    def _is_own_origin(self, origin: str) -> bool:
        scheme, separator, host = origin.partition("://")
        return bool(separator) and scheme == "http" and self._is_ours(host)

    def address(self, token: str | None = None) -> str:
        """The URL of the page; with a token, one that opens it once."""
        name = self.host if self.host not in ("0.0.0.0", "::") else "127.0.0.1"
        shown = f"[{name}]" if ":" in name else name
        return f"http://{shown}:{self.port}/" + ("" if token is None else f"?token={token}")

    def cookie_header(self, secret: str) -> str:
        """The cookie: sent only to this server, only by its own page, hidden from scripts."""
        return f"{self.cookie}={secret}; Path=/; Max-Age={SESSION_SECONDS}; HttpOnly; SameSite=Strict"


_AGAIN = "Open the address that the terminal shows, with its token; it changes with every start."
_NEW = "The terminal shows a new address."


def _check_body(path: str, headers: Mapping[str, str]) -> None:
    """Refuse a body that the page's own script would not send. Type and origin keep forms of other sites out."""
    kind, largest = BODIES[path]
    if "origin" not in headers:
        raise Refused(403, "The request names no origin.", "Only the viewer's own page may send an input.")
    if headers.get("content-type") != kind:
        raise Refused(415, "The body has an unexpected type.", f"Send {kind}.")
    length = headers.get("content-length", "")
    if "transfer-encoding" in headers or not (length.isascii() and length.isdigit() and len(length) <= 10):
        raise Refused(411, "The request does not say its length.", "Send a content-length.")
    if int(length) > largest:
        raise Refused(413, "The input is too large.", f"Send at most {largest // 2**20} MiB.")


def _split(host: str) -> tuple[str | None, int]:
    """Name and port of a Host header; None for an invalid one."""
    if host.startswith("["):
        name, closed, port = host[1:].partition("]")
        if not closed:
            return None, 0
    else:
        name, colon, number = host.partition(":")
        port = colon + number
    if not port:
        return name, 80
    digits = port[1:]
    if not port.startswith(":") or not digits.isascii() or not digits.isdigit() or len(digits) > 5:
        return None, 0
    return name, int(digits)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _token(query: bytes) -> str | None:
    try:
        tokens = parse_qs(query.decode("ascii"), keep_blank_values=True, max_num_fields=20).get("token")
    except ValueError:  # not ASCII, or too many fields
        return None
    return tokens[0] if tokens else None


def _cookie(header: str, name: str) -> str | None:
    """One cookie of a header; malformed cookies of other programs must not hide it."""
    pairs = (cookie.strip().partition("=") for cookie in header.split(";"))
    return next((value for key, _, value in pairs if key == name), None)
