"""Run the application on a socket until it is told to stop."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from proxemics.core.errors import ConfigError
from proxemics.serve.protocol import ImpatientProtocol
from proxemics.serve.settings import ServeSettings

MOST_CONNECTIONS = 1000
GRACE_S = 30
"""Seconds that requests get to be finished when the service stops."""


def listen(host: str, port: int) -> socket.socket:
    """Take the address, so that it is known, and known to be free, before anything is served.

    Args:
        host: a name or an address.
        port: 0 picks a free one.

    Raises:
        ConfigError: it is taken, or is none of this machine.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        opened = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(
            f"--host {host}: {error.strerror or error}; give 127.0.0.1 for this machine alone."
        ) from error
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
        opened.listen(256)
    except OSError as error:
        opened.close()
        raise ConfigError(
            f"Cannot listen on {host}, port {port}: {error.strerror or error}; give another one, or --port 0 for any "
            "that is free."
        ) from error
    return opened


def address_of(opened: socket.socket) -> str:
    """Return where a browser finds a socket.

    Example:
        >>> with listen("127.0.0.1", 0) as opened:
        ...     address_of(opened).rpartition(":")[0]
        'http://127.0.0.1'
    """
    host, port = opened.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run(
    app: FastAPI, opened: socket.socket, settings: ServeSettings, *, ready: Callable[[], None] = lambda: None
) -> int:
    """Serve until the process is told to stop; requests that are worked on are finished first.

    Args:
        app: from :func:`proxemics.serve.app.create_app`.
        opened: from :func:`listen`.
        settings: the timeouts are taken from them.
        ready: called when the first request may come.

    Returns:
        The exit code: 0 after SIGTERM, 130 after Ctrl-C.
    """

    class Protocol(ImpatientProtocol):
        timeout_head = settings.head_timeout_s

    class Server(uvicorn.Server):
        asked: int | None = None

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            self.asked = sig
            super().handle_exit(sig, frame)

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                ready()

    config = uvicorn.Config(
        app,
        http=Protocol,
        ws="none",
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=MOST_CONNECTIONS,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=GRACE_S,
    )
    # uvicorn raises the signal again when it is done; this is what it then meets.
    before = signal.signal(signal.SIGTERM, _stop)
    server = Server(config)
    try:
        server.run(sockets=[opened])
    except KeyboardInterrupt:
        return 130
    except _Stopped:
        return 0
    else:  # the loop may end before the signal that is raised again is seen
        return 130 if server.asked == signal.SIGINT else 0
    finally:
        signal.signal(signal.SIGTERM, before)
        opened.close()


class _Stopped(Exception):  # noqa: N818 - no error
    pass


def _stop(_: int, __: FrameType | None) -> None:
    raise _Stopped
