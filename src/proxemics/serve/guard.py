"""The outermost layer: names, measures and checks every request, bounds its body and its time, hardens the answer."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from proxemics.serve.checks import Check
from proxemics.serve.errors import Refusal, as_refusal, error_response, logger
from proxemics.serve.metrics import Metrics

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}
FREE = ("/health", "/metrics")
"""Paths that are answered also when all places are taken."""

CLIENT_LEFT = 499
"""The status that metrics show for a client that went away before it was answered."""


class Guard:
    """ASGI middleware; see the top of this file.

    Args:
        app: what answers the requests that pass.
        checks: asked in turn; the first that refuses decides.
        metrics: told about every request.
        max_in_flight: requests that are worked on at a time.
        max_bytes: of a body.
        body_timeout_s: for a body to arrive.
        request_timeout_s: for a whole request.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        checks: Sequence[Check],
        metrics: Metrics,
        max_in_flight: int,
        max_bytes: int,
        body_timeout_s: float,
        request_timeout_s: float,
    ) -> None:
        self._app, self._checks, self._metrics = app, checks, metrics
        self._max_in_flight, self._max_bytes = max_in_flight, max_bytes
        self._body_timeout_s, self._request_timeout_s = body_timeout_s, request_timeout_s
        self._in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, or pass on what is none."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = _Answer(scope, send)
        started = time.perf_counter()
        try:
            refusal = self._refuse(scope)
            if refusal is not None:
                await error_response(Request(scope), refusal)(scope, receive, answer.send)
            else:
                await self._work(scope, receive, answer)
        finally:
            self._metrics.request(scope, answer.status, time.perf_counter() - started)

    def _refuse(self, scope: Scope) -> Refusal | None:
        request = Request(scope)
        for check in self._checks:
            refusal = check(request)
            if refusal is not None:
                return refusal
        length = request.headers.get("content-length", "")
        if length.isascii() and length.isdigit() and int(length[:20]) > self._max_bytes:
            return too_large(self._max_bytes)
        if self._in_flight >= self._max_in_flight and scope["path"] not in FREE:
            return Refusal(503, "overloaded", "All places are taken; try again in a second.", retry_after=1)
        return None

    async def _work(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        body = _Body(receive, self._max_bytes, self._body_timeout_s)
        self._in_flight += 1
        self._metrics.in_flight.set(self._in_flight)
        try:
            await asyncio.wait_for(self._app(scope, body.receive, answer.send), self._request_timeout_s)
        except (TimeoutError, asyncio.TimeoutError):
            refusal = Refusal(503, "took_too_long", "The answer took too long to make; try again later.", retry_after=5)
            await answer.instead(refusal, receive)
        except asyncio.CancelledError:  # the service stops and cannot wait any longer
            stopping = Refusal(503, "stopping", "The service is stopping; try again in a minute.", retry_after=60)
            await answer.instead(stopping, receive)
            raise
        except ClientDisconnect:
            answer.status = CLIENT_LEFT
        except Exception as error:
            refused = as_refusal(error)
            if refused.status_code >= 500:
                logger.exception("request %s failed", scope["state"]["request_id"])
            await answer.instead(refused, receive)
        finally:
            self._in_flight -= 1
            self._metrics.in_flight.set(self._in_flight)


def too_large(max_bytes: int) -> Refusal:
    """Return the refusal of a body over the limit."""
    return Refusal(
        413, "body_too_large", f"The request is larger than {max_bytes / 1e6:g} MB; send a smaller picture.", close=True
    )


class _Answer:
    """Adds the headers that every answer has, and remembers its status."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope, self._send = scope, send
        self.status = 0
        state = scope.setdefault("state", {})
        state["request_id"] = secrets.token_hex(8)

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
            headers.setdefault("Cache-Control", "no-store")
            headers["X-Request-ID"] = self._scope["state"]["request_id"]
        await self._send(message)

    async def instead(self, refusal: Exception, receive: Receive) -> None:
        """Answer with an error, unless an answer has begun."""
        if self.status == 0:
            response = error_response(Request(self._scope), as_refusal(refusal))
            await response(self._scope, receive, self.send)


class _Body:
    """Lets a body through while it keeps within its size and its time."""

    def __init__(self, receive: Receive, max_bytes: int, timeout_s: float) -> None:
        self._receive, self._max_bytes = receive, max_bytes
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._bytes, self._complete = 0, False

    async def receive(self) -> Message:
        if self._complete:
            return await self._receive()
        try:
            message = await asyncio.wait_for(self._receive(), max(0.0, self._deadline - time.monotonic()))
        except (TimeoutError, asyncio.TimeoutError):
            raise Refusal(
                408, "slow_body", f"The body did not arrive within {self._timeout_s:g} s; send it again.", close=True
            ) from None
        self._bytes += len(message.get("body", b""))
        if self._bytes > self._max_bytes:
            raise too_large(self._max_bytes)
        self._complete = not message.get("more_body", False)
        return message
