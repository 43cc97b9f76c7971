"""How often one client may ask: a token bucket for each address, in bounded memory."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable

REMEMBERED = 10_000
"""Clients that are remembered; the one that was seen longest ago is forgotten first."""


class RateLimiter:
    """Lets ``burst`` requests through at once, and ``rate`` a second in the long run.

    Args:
        rate: tokens a second; 0 lets everything through.
        burst: tokens in a full bucket.
        clock: seconds that only grow.

    Example:
        >>> now = 0.0
        >>> limiter = RateLimiter(2.0, 3, clock=lambda: now)
        >>> [limiter.wait("a") for _ in range(4)]
        [0.0, 0.0, 0.0, 0.5]
        >>> now = 0.5
        >>> limiter.wait("a"), limiter.wait("b")
        (0.0, 0.0)
    """

    def __init__(self, rate: float, burst: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._burst, self._clock = rate, float(burst), clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def wait(self, client: str, cost: float = 1.0) -> float:
        """Take tokens, or say how long to wait for them.

        Args:
            client: whose bucket.
            cost: tokens wanted; more than a full bucket counts as a full one.

        Returns:
            0 when the tokens were taken, else seconds until they will be there; nothing is taken then.
        """
        if self._rate <= 0 or cost <= 0:
            return 0.0
        now = self._clock()
        tokens, seen = self._buckets.pop(client, (self._burst, now))
        tokens = min(self._burst, tokens + (now - seen) * self._rate)
        wanted = min(cost, self._burst)
        lack = wanted - tokens
        self._buckets[client] = (tokens - wanted if lack <= 0 else tokens, now)
        while len(self._buckets) > REMEMBERED:
            self._buckets.popitem(last=False)
        return 0.0 if lack <= 0 else lack / self._rate


def retry_after(seconds: float) -> int:
    """Round a waiting time up to whole seconds, as the header wants it.

    Example:
        >>> retry_after(0.2), retry_after(3.5)
        (1, 4)
    """
    return max(1, math.ceil(seconds))
