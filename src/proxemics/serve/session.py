"""Sessions of the page: after the key was entered once, a signed cookie stands in for it."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable

COOKIE = "proxemics_session"
LIFETIME_S = 12 * 3600


class Sessions:
    """Makes and checks cookies that say until when they hold; nothing is stored, and a restart ends all of them.

    Args:
        clock: seconds since 1970.

    Example:
        >>> sessions = Sessions()
        >>> cookie = sessions.begin()
        >>> sessions.holds(cookie), sessions.holds("9999999999." + cookie.partition(".")[2]), sessions.holds("")
        (True, False, False)
    """

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._secret = secrets.token_bytes(32)
        self._clock = clock

    def begin(self) -> str:
        """Return the value of a new cookie."""
        until = str(int(self._clock()) + LIFETIME_S)
        return f"{until}.{self._sign(until)}"

    def holds(self, cookie: str) -> bool:
        """Say whether a cookie was made here and has not run out."""
        until, _, signature = cookie.partition(".")
        if not until.isascii() or not until.isdigit() or len(until) > 12:
            return False
        return hmac.compare_digest(signature.encode(), self._sign(until).encode()) and int(until) > self._clock()

    def _sign(self, text: str) -> str:
        return hmac.new(self._secret, text.encode(), hashlib.sha256).hexdigest()
