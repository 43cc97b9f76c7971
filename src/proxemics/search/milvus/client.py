"""A client of Milvus whose errors are sentences."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from proxemics.core.errors import SearchError
from proxemics.search.milvus import lite
from proxemics.search.milvus.address import MilvusAddress

T = TypeVar("T")

_quiet: ContextVar[bool] = ContextVar("quiet", default=False)
RETRIES = {"retry_times": 3}
"""pymilvus would try 75 times before it says that a server is gone."""

_GRPC = {"grpc.use_local_subchannel_pool": 1}  # or a server that is back would be waited for, up to two minutes
_NOT_LOADED = 101
_LOGGERS = ("decorators", "client.connection_manager", "client.grpc_handler")


class MilvusLink:
    """A connection to one collection; threads may share it.

    Args:
        address: where it is.
        create: whether the file of Milvus Lite may be made.

    Raises:
        SearchError: pymilvus is absent, or nobody answers.
    """

    def __init__(self, address: MilvusAddress, *, create: bool) -> None:
        os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # or gRPC remarks on every fork of this process, on stderr
        try:
            from pymilvus import MilvusClient
        except ImportError as error:
            raise SearchError('An index on Milvus needs pymilvus: pip install "proxemics[milvus]".') from error
        self.address = address
        self._closed = False
        uri = address.uri if address.file is None else lite.servers().hold(address.file, create=create)
        try:
            with self._spoken():
                self._client = MilvusClient(
                    uri=uri,
                    token=address.token,
                    db_name=address.database,
                    timeout=10,
                    dedicated=True,
                    grpc_options=_GRPC,
                )
                self.is_lite = str(self._client.get_server_version()).startswith("milvus_lite")
        except BaseException:
            self._release()
            raise
        remote: threading.Lock = threading.Lock()
        self._writing = remote if address.file is None else lite.servers().writing(address.file, address.name)

    def call(self, work: Callable[[Any], T]) -> T:
        """Return what a function makes of the client of pymilvus.

        A server that was started again has to load the collection first, as some do not by themselves; the function
        is called once more then, which is safe because nothing can be asked or changed before.

        Raises:
            SearchError: the index was closed, the server is gone, or refuses.
        """
        from pymilvus.exceptions import MilvusException

        if self._closed:
            raise SearchError("The index was closed; open it again.")
        with self._spoken():
            try:
                return work(self._client)
            except MilvusException as error:
                if error.code != _NOT_LOADED:
                    raise
            self._client.load_collection(self.address.name, **RETRIES)
            return work(self._client)

    def change(self, work: Callable[[Any], T]) -> T:
        """Do as :meth:`call` for one writer at a time, and return when what it wrote is kept."""
        with self._writing:
            done = self.call(work)
            if self.address.file is not None:
                lite.to_disk(self.address.file, self.address.name)
            return done

    def close(self) -> None:
        """Let go of the connection, and of the file when no other index uses it."""
        if not self._closed:
            self._closed = True
            self._client.close()
            self._release()

    def _release(self) -> None:
        if self.address.file is not None:
            lite.servers().release(self.address.file)

    @contextmanager
    def _spoken(self) -> Iterator[None]:
        import grpc
        from pymilvus.exceptions import MilvusException

        for name in _LOGGERS:
            logging.getLogger(f"pymilvus.{name}").addFilter(_loud)
        token = _quiet.set(True)
        try:
            yield
        except (MilvusException, grpc.RpcError, grpc.FutureTimeoutError) as error:
            raise SearchError(_sentence(error, self.address)) from error
        finally:
            _quiet.reset(token)


def _loud(record: logging.LogRecord) -> bool:
    """Let pymilvus log what it does for others; what happens here is told by an error of ours."""
    return not _quiet.get()


def _sentence(error: BaseException, address: MilvusAddress) -> str:
    text = str(getattr(error, "message", "") or error)
    line = " ".join(text.split("\n")[0].split())[:300].rstrip(".")
    if address.token:
        line = line.replace(address.token, "(token)")
    gone = ("connect", "unavailable", "retry run out", "deadline", "retry timeout", "socket closed")
    if any(word in text.lower() for word in gone):
        return (
            f"Milvus at {address.shown} does not answer: {line}. What earlier calls returned from is kept; the next "
            "call connects again."
        )
    return f"Milvus at {address.shown} refuses: {line}."
