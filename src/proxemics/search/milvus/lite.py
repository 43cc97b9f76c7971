"""Milvus Lite inside this process: a small server over a folder called ``FILE.db``, on loopback.

Milvus Lite lets one process at a time have a file. Inside a process all indexes of a file share one server.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from proxemics.core.errors import SearchError
from proxemics.search.milvus.faiss_params import keep_search_params
from proxemics.search.remote import AbsentError


@dataclass
class _Running:
    """A server over one file, and how many indexes use it."""

    server: Any
    database: Any
    uri: str
    users: int = 0
    writing: dict[str, threading.Lock] = field(default_factory=dict)


class LiteServers:
    """The servers of this process, one for each file that is open."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[Path, _Running] = {}

    def hold(self, path: Path, *, create: bool) -> str:
        """Start a server over the file, or share the one that runs, and return its address.

        Raises:
            SearchError: the file is not there, is one of Milvus Lite 2, or another process has it.
        """
        with self._lock:
            if path not in self._running:
                _check(path, create=create)
                self._running[path] = _start(path)
            running = self._running[path]
            running.users += 1
            return running.uri

    def release(self, path: Path) -> None:
        """Stop the server when no other index of this process uses the file."""
        with self._lock:
            running = self._running[path]
            running.users -= 1
            if running.users:
                return
            del self._running[path]
            running.server.stop(grace=2).wait()
            running.database.close()

    def writing(self, path: Path, name: str) -> threading.Lock:
        """Return the lock that a change of a collection needs: two at once would lose rows in Milvus Lite."""
        with self._lock:
            return self._running[path].writing.setdefault(name, threading.Lock())


@cache
def servers() -> LiteServers:
    """Return the servers of this process; a file can only have one, whoever opens it."""
    return LiteServers()


def to_disk(path: Path, name: str) -> None:
    """Have the disk keep what was written: Milvus Lite hands its log to the system, and waits for no more than that."""
    folder = path / "collections" / name / "wal"
    for one in [*folder.glob("wal_*.arrow"), folder]:
        try:
            handle = os.open(one, os.O_RDONLY)
        except FileNotFoundError:
            continue  # the log became a segment meanwhile
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _check(path: Path, *, create: bool) -> None:
    if path.is_file():
        raise SearchError(
            f"{path} was written by Milvus Lite 2 or older, or by another program; Milvus Lite 3 keeps a folder and "
            "cannot read such a file. Build the index again at another path, or export the rows with the old version."
        )
    if path.is_dir() and not (path / "collections").is_dir() and any(path.iterdir()):
        raise SearchError(f"{path} is a folder, but not one of Milvus Lite; choose another path.")
    if not create and not path.is_dir():
        raise AbsentError(f"There is no Milvus Lite file {path}; make the index with 'proxemics index'.")
    if create and not path.parent.is_dir():
        raise SearchError(f"There is no folder {path.parent}; make it first.")


def _start(path: Path) -> _Running:
    try:
        from milvus_lite.adapter.grpc.server import start_server_in_thread
        from milvus_lite.exceptions import DataDirLockedError
    except ImportError as error:
        raise SearchError('Milvus Lite 3 is needed for a file: pip install "proxemics[milvus]".') from error
    keep_search_params()
    try:
        server, database, port = start_server_in_thread(str(path), host="127.0.0.1", port=0)
    except DataDirLockedError as error:
        raise SearchError(
            f"{path} is open in another process, and Milvus Lite lets one in at a time; close that one, or run a "
            "Milvus server and use milvus+http://."
        ) from error
    except OSError as error:
        raise SearchError(f"{path} cannot be opened: {error.strerror or error}.") from error
    return _Running(server, database, f"http://127.0.0.1:{port}")
