"""What a request must pass before any work is done for it: its host, its origin, its key and its rate."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Callable, Iterable
from typing import TypeAlias
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from proxemics.serve.errors import Refusal
from proxemics.serve.limits import RateLimiter, retry_after
from proxemics.serve.session import COOKIE, Sessions

Check: TypeAlias = "Callable[[HTTPConnection], Refusal | None]"

READING = ("GET", "HEAD", "OPTIONS")
OPEN = ("/health", "/login", "/static/")
"""Paths that need no key: whether the service lives, the form for the key, and the looks of that form."""
COSTS = (("/health", 0.0), ("/metrics", 0.0), ("/static/", 0.0), ("/v1/picture", 0.05), ("/page/map", 4.0))
"""Tokens that a request costs, by the beginning of its path; the others cost 1, and 5 for a try at the key."""


def client_of(connection: HTTPConnection) -> str:
    """Return the address of the other end of the connection; headers that claim another one are not believed."""
    return connection.client.host if connection.client is not None else "local"


def host_name(header: str) -> str:
    """Return the name in a Host header without its port, in lower case.

    Example:
        >>> host_name("Gallery.example:8000"), host_name("[::1]:80"), host_name("")
        ('gallery.example', '::1', '')
    """
    try:
        return (urlsplit(f"//{header}").hostname or "").lower()
    except ValueError:
        return ""


def check_host(allowed: Iterable[str]) -> Check:
    """Refuse names that this machine does not go by, as a web site whose name was pointed here would use.

    Addresses are let through: such an attack needs a name of its own.

    Args:
        allowed: names beside localhost.
    """
    names = {"localhost", *(name.lower() for name in allowed)}

    def check(connection: HTTPConnection) -> Refusal | None:
        name = host_name(connection.headers.get("host", ""))
        if name in names or _is_address(name):
            return None
        return Refusal(
            400, "unknown_host", "The Host header names another machine; use the address, or start with --allow-host."
        )

    return check


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def check_origin(connection: HTTPConnection) -> Refusal | None:
    """Refuse requests that change or cost something and that a page of another site sends."""
    if connection.scope["method"] in READING:
        return None
    origin = connection.headers.get("origin")
    same = origin is None or _place(origin) == connection.headers.get("host", "").lower()
    if same and connection.headers.get("sec-fetch-site", "same-origin") in ("same-origin", "none"):
        return None
    return Refusal(403, "other_site", "This request comes from a page of another web site, and is refused.")


def _place(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:  # no address at all
        return None


def check_key(key: str, sessions: Sessions) -> Check:
    """Ask for the key in a header, or for the cookie of a session that began with it.

    Args:
        key: compared in constant time.
        sessions: made when the key was entered on the page.
    """
    wanted = key.encode()

    def check(connection: HTTPConnection) -> Refusal | None:
        path = connection.scope["path"]
        if any(path == one or (one.endswith("/") and path.startswith(one)) for one in OPEN):
            return None
        given = key_of(connection)
        if given is not None and hmac.compare_digest(given.encode("utf-8", "surrogateescape"), wanted):
            return None
        if given is None and sessions.holds(connection.cookies.get(COOKIE, "")):
            return None
        return Refusal(401, "key_needed", "Send the API key as `Authorization: Bearer KEY` or as `X-API-Key: KEY`.")

    return check


def key_of(connection: HTTPConnection) -> str | None:
    """Return the key that a request carries in its headers, or None."""
    direct = connection.headers.get("x-api-key")
    if direct is not None:
        return direct
    kind, _, value = connection.headers.get("authorization", "").partition(" ")
    return value.strip() if kind.lower() == "bearer" else None


def check_rate(limiter: RateLimiter) -> Check:
    """Send clients away that ask faster than they may."""

    def check(connection: HTTPConnection) -> Refusal | None:
        seconds = limiter.wait(client_of(connection), cost_of(connection.scope["method"], connection.scope["path"]))
        if seconds == 0:
            return None
        wait = retry_after(seconds)
        return Refusal(429, "too_many", f"Too many requests; try again in {wait} s.", retry_after=wait)

    return check


def cost_of(method: str, path: str) -> float:
    """Return the tokens that a request costs.

    Example:
        >>> cost_of("POST", "/v1/search"), cost_of("GET", "/static/serve.css"), cost_of("POST", "/login")
        (1.0, 0.0, 5.0)
    """
    if method == "POST" and path == "/login":
        return 5.0
    return next((cost for start, cost in COSTS if path.startswith(start)), 1.0)
