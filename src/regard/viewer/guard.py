"""Who may talk to the viewer: only the person who started it, from the page it served.

A web site in another tab can send requests to a local server, and by a trick with names (DNS rebinding) even read the
answers. So every request must name this server as its host, must not come from a foreign page, and must carry the
secret of this start: once in the first address, from then on in a cookie that scripts cannot read.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from collections.abc import Iterable, Mapping
from urllib.parse import parse_qs

from regard.errors import BadValue

LOOPBACK = ("127.0.0.1", "localhost", "::1")
LONGEST_QUERY = 2000

POLICY = "; ".join(
    (
        "default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self' data: blob:",
        "connect-src 'self'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'",
    )
)  # fmt: skip
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
    """A request that is not answered: a status, and words that repeat nothing of what was sent."""

    def __init__(self, status: int, title: str, advice: str) -> None:
        super().__init__(title)
        self.status, self.title, self.advice = status, title, advice


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host."""
    if host.casefold() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def checked_host(host: str, allow_remote: bool) -> str:
    """A host to bind to; one that others can reach only if they asked for it."""
    if not host or not host.isprintable() or len(host) > 253:
        raise BadValue(
            f"--host: expected a name or an address, got {host[:40]!r}. Leave it out for 127.0.0.1."
        )
    if not is_loopback(host) and not allow_remote:
        raise BadValue(
            f"--host: {host!r} can be reached from other machines, and whoever has the address could see the model's "
            "input. Leave it out for 127.0.0.1, or add --allow-remote; over SSH, forward the port instead."
        )
    return host


class Guard:
    """Checks requests to one server, by its host, its port and the secret of this start."""

    def __init__(self, port: int, host: str = "127.0.0.1", secret: str | None = None) -> None:
        self.port, self.host = port, host
        self.secret = secret or secrets.token_urlsafe(32)
        self.cookie = (
            f"regard-{port}"  # browsers share cookies between ports: two viewers must not mix theirs
        )
        self.remote = not is_loopback(host)
        names: Iterable[str] = (*LOOPBACK, host)
        self.names = frozenset(name.casefold() for name in names)

    def check(self, method: str, path: str, query: bytes, headers: Mapping[str, str]) -> bool:
        """Raise `Refused`, or say whether the request brings the secret in its address (and wants a cookie for it)."""
        if not self._is_ours(headers.get("host", "")):
            raise Refused(
                403, "This is not the address of the viewer.", "Open the address that the terminal shows."
            )
        origin = headers.get("origin")
        if origin is not None and not self._is_own_origin(origin):
            raise Refused(
                403, "A page from elsewhere asked.", "Only the viewer's own page may ask for its data."
            )
        site, mode = headers.get("sec-fetch-site"), headers.get("sec-fetch-mode")
        # Another port of this machine is the "same site": a link there may open the page, and no more.
        if site not in (None, "none", "same-origin") and not (site == "same-site" and mode == "navigate"):
            raise Refused(
                403, "A page from elsewhere asked.", "Copy the address from the terminal into the browser."
            )
        if method not in ("GET", "HEAD"):
            raise Refused(405, "The viewer only answers GET.", "It shows; nothing here can be changed.")
        if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
            raise Refused(413, "The request has a content.", "Questions fit into an address.")
        if len(query) > LONGEST_QUERY:
            raise Refused(413, "The address is too long.", "Open the address that the terminal shows.")
        given = _token(query)
        if path == "/" and given is not None:
            if self._same(given):
                return True
            raise Refused(403, "This token is not the one of this start.", _AGAIN)
        if not self._same(_cookie(headers.get("cookie", ""), self.cookie)):
            raise Refused(403, "The viewer does not know this browser yet.", _AGAIN)
        return False

    def _same(self, given: str | None) -> bool:
        """Compare in a time that does not tell how much of it is right."""
        return given is not None and hmac.compare_digest(given.encode(), self.secret.encode())

    def _is_ours(self, host: str) -> bool:
        name, port = _split(host)
        if port != self.port or name is None:
            return False
        # Rebinding needs a name that somebody else may point here; an address in numbers cannot be pointed anywhere.
        return name.casefold() in self.names or (self.remote and _is_address(name))

    def _is_own_origin(self, origin: str) -> bool:
        scheme, separator, host = origin.partition("://")
        return bool(separator) and scheme == "http" and self._is_ours(host)

    def address(self, secret: bool = True) -> str:
        """Where the page is; with the secret, the one address that opens it the first time."""
        name = self.host if self.host not in ("0.0.0.0", "::") else "127.0.0.1"
        shown = f"[{name}]" if ":" in name else name
        return f"http://{shown}:{self.port}/" + (f"?token={self.secret}" if secret else "")

    def cookie_header(self) -> str:
        """What the browser is to keep: sent back only to this server, only by its own page, hidden from scripts."""
        return f"{self.cookie}={self.secret}; Path=/; HttpOnly; SameSite=Strict"


_AGAIN = "Open the address that the terminal shows, with its token; it changes with every start."


def _split(host: str) -> tuple[str | None, int]:
    """Name and port of a Host header; no name where it is none."""
    if host.startswith("["):
        name, closed, rest = host[1:].partition("]")
        if not closed:
            return None, 0
    else:
        name, colon, number = host.partition(":")
        rest = colon + number
    if not rest:
        return name, 80
    digits = rest[1:]
    if not rest.startswith(":") or not digits.isascii() or not digits.isdigit() or len(digits) > 5:
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
        found = parse_qs(query.decode("ascii"), keep_blank_values=True, max_num_fields=20).get("token")
    except ValueError:  # not ASCII, or too many fields
        return None
    return found[0] if found else None


def _cookie(header: str, name: str) -> str | None:
    """One cookie of a header; other programs' cookies, however odd, must not hide it."""
    pairs = (part.strip().partition("=") for part in header.split(";"))
    return next((value for key, _, value in pairs if key == name), None)
