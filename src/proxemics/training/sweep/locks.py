"""Locks that let several sweeps share a folder: created exclusively, beaten like a heart, taken over from the dead."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

STALE_SECONDS = 120.0
"""A lock of another machine that was not touched for so long is taken over."""


@contextmanager
def guarded(folder: Path) -> Iterator[None]:
    """Let one process at a time into a few lines of code; the kernel opens the door when that process dies."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".guard").open("a") as handle:
        try:
            import fcntl
        except ModuleNotFoundError:  # Windows: the exclusive creation of lock files has to do
            yield
            return
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield  # closing the file lets go


class Lock:
    """The right to work in one run folder.

    Args:
        path: the lock file.
        identity: what is written in it.
    """

    def __init__(self, path: Path, identity: dict[str, Any]) -> None:
        self.path = path
        self.identity = identity

    def note_child(self, pid: int) -> None:
        """Write down the process that does the work, so that it counts as alive even without its sweep."""
        self.identity = {**self.identity, "child": pid, "child_started": started_at(pid)}
        temporary = self.path.with_suffix(".new")
        temporary.write_text(json.dumps(self.identity), encoding="utf-8")
        temporary.replace(self.path)

    def beat(self) -> bool:
        """Touch the file; False when somebody else has taken it over."""
        found = _read(self.path)
        if found is None or found.get("pid") != self.identity["pid"] or found.get("place") != self.identity["place"]:
            return False
        with suppress(FileNotFoundError):
            os.utime(self.path)
        return True

    def release(self) -> None:
        """Give the right back."""
        if self.beat():
            self.path.unlink(missing_ok=True)


def acquire(path: Path, guard: Path) -> Lock | None:
    """Take a lock, or take it over from a dead process; None when a living one has it.

    Args:
        path: the lock file; its folder is created.
        guard: folder whose guard makes looking and taking one step.
    """
    identity = {"pid": os.getpid(), "started": started_at(os.getpid()), "host": platform.node(), "place": _place()}
    path.parent.mkdir(parents=True, exist_ok=True)
    with guarded(guard):
        if path.exists():
            if is_held(path):
                return None
            path.unlink(missing_ok=True)
        try:
            handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        except FileExistsError:
            return None
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(json.dumps(identity))
    return Lock(path, identity)


def is_held(path: Path) -> bool:
    """Whether a living process holds the lock.

    On this machine the processes are looked up; for another the time of the last heartbeat decides.
    """
    try:
        age = time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return False
    found = _read(path)
    if found is None or found.get("place") != _place():  # half-written, or of another machine
        return age < STALE_SECONDS if found is not None else age < 5
    holders = [(found.get("pid"), found.get("started")), (found.get("child"), found.get("child_started"))]
    return any(isinstance(pid, int) and is_alive(pid, started) for pid, started in holders)


def is_alive(pid: int, started: int | None) -> bool:
    """Whether the process runs and is the one that was meant, not a later one with the same number.

    Args:
        pid: number of the process.
        started: what :func:`started_at` said of it; None skips that check.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    now = started_at(pid)
    return now != 0 and (started is None or now is None or started == now)


def started_at(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; 0 for one that has ended, None where it cannot be known."""
    if not Path("/proc/self/stat").exists():
        return None
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])


def _place() -> str:
    """Where process numbers have a meaning: this machine, this boot, this container."""
    parts = [platform.node()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip())
    with suppress(OSError):
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    return " ".join(parts)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
