"""HTTP/1.1 by uvicorn and h11, less patient: a client that dribbles its headers does not hold a connection for ever."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_TIMEOUT_S = 10.0


class ImpatientProtocol(H11Protocol):
    """Closes a connection whose request line and headers do not arrive in time, or that sends on after its answer.

    uvicorn itself bounds the silence between two requests, and the application the time for a body.
    """

    timeout_head: float = HEAD_TIMEOUT_S
    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Go on waiting while the head is not complete."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop_watching()
        super().connection_lost(exc)

    def _watch(self) -> None:
        busy = self.conn.their_state is not h11.IDLE and self.conn.our_state is not h11.DONE
        if busy or self.transport.is_closing():
            self._stop_watching()
        elif self._waiting is None:
            self._waiting = self.loop.call_later(self.timeout_head, self._give_up)

    def _stop_watching(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _give_up(self) -> None:
        self._waiting = None
        if self.transport.is_closing():
            return
        if self.conn.their_state is h11.IDLE and self.conn.our_state is h11.IDLE:
            self._refuse(408, "slow_head", f"The headers did not arrive within {self.timeout_head:g} s.")
        else:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP."""
        self._refuse(400, "bad_request", f"{msg.rstrip('.')}.")

    def _refuse(self, status: int, code: str, message: str) -> None:
        body = json.dumps({"error": message, "code": code, "status": status, "request_id": ""}).encode()
        headers: list[tuple[bytes, bytes]] = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        events: list[Any] = [
            h11.Response(status_code=status, headers=headers, reason=b""), h11.Data(data=body), h11.EndOfMessage()
        ]  # fmt: skip
        for event in events:
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
