"""One writer at a time, over processes and within one."""

from __future__ import annotations

import os
import sys
import weakref
from pathlib import Path
from typing import IO

from proxemics.core.errors import SearchError


class WriterLock:
    """Held from creation until :meth:`release`; the operating system lets go of it when the process dies, however.

    Args:
        path: the lock file; it stays when the lock is released.
        what: the index, for the message.

    Raises:
        SearchError: someone else holds it; the message names the process.
    """

    def __init__(self, path: Path, what: str) -> None:
        self._file: IO[str] | None = path.open("a+", encoding="utf-8")
        if not _take(self._file):
            self._file.seek(0)
            holder = self._file.read().strip() or "unknown"
            self._file.close()
            here = ", which is this one" if holder == str(os.getpid()) else ""
            raise SearchError(
                f"The index {what} is open for writing in process {holder}{here}, and an index has one writer; open it "
                "with read_only=True to search it meanwhile, or write when that process has closed it."
            )
        self._file.truncate(0)
        self._file.write(str(os.getpid()))
        self._file.flush()
        if hasattr(os, "register_at_fork"):  # a forked child must not keep the lock alive
            os.register_at_fork(after_in_child=_Forget(self))

    def release(self) -> None:
        """Let go; twice is no error."""
        if self._file is not None:
            self._file.close()
            self._file = None


class _Forget:
    """Closes the child's copy of the file, if the lock still exists."""

    def __init__(self, lock: WriterLock) -> None:
        self._lock = weakref.ref(lock)

    def __call__(self) -> None:
        lock = self._lock()
        if lock is not None:
            lock.release()


def _take(file: IO[str]) -> bool:
    try:
        if sys.platform == "win32":
            import msvcrt

            file.seek(1 << 30)  # a byte far behind the number, which stays readable
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
