"""The queue: starts a process for each cell that is not done, and keeps no state but the run folders."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from proxemics.core.config import save_config
from proxemics.core.files import write_json
from proxemics.training.sweep.cells import Cell, read_failure, record_failure
from proxemics.training.sweep.locks import Lock, acquire, is_held
from proxemics.training.sweep.records import append_missing
from proxemics.training.sweep.slots import Slot

POLL_SECONDS = 0.2
BEAT_SECONDS = 5.0
RESUMPTIONS = 2
"""A run that a signal ended goes on from its checkpoint so many times within one sweep."""


class Watcher(Protocol):
    """Hears of the queue; the command line draws it."""

    def started(self, cell: Cell, slot: Slot) -> None:
        """A process for the cell has been started."""

    def ended(self, cell: Cell, outcome: str, seconds: float) -> None:
        """The process has ended: ``done``, ``resumed`` (killed, goes on), or why it failed."""

    def tick(self, running: Sequence[Cell], elsewhere: int) -> None:
        """Called a few times a second; ``elsewhere`` cells are being run by another sweep."""


class Unwatched:
    """A watcher that shows nothing."""

    def started(self, cell: Cell, slot: Slot) -> None:
        """Nothing."""

    def ended(self, cell: Cell, outcome: str, seconds: float) -> None:
        """Nothing."""

    def tick(self, running: Sequence[Cell], elsewhere: int) -> None:
        """Nothing."""


@dataclass
class _Running:
    cell: Cell
    slot: Slot
    lock: Lock
    process: subprocess.Popen[bytes]
    began: float
    log_start: int


class Queue:
    """Runs cells in their order, as many at a time as there are slots, together with other sweeps on the folder.

    Args:
        out: folder of the sweep.
        slots: where runs may go.
        report: also write the report of each run.
        watcher: hears of progress.
    """

    def __init__(
        self, out: Path, slots: Sequence[Slot], *, report: bool = False, watcher: Watcher | None = None
    ) -> None:
        self.out = out
        self.free = list(slots)
        self.report = report
        self.watcher: Watcher = watcher or Unwatched()
        self.running: list[_Running] = []
        self.kills: dict[str, int] = {}
        self._beaten = 0.0

    def forget_failures(self, cells: Sequence[Cell], *, retry_failed: bool) -> None:
        """Let failed cells run again: those that a signal ended always, the others when asked for."""
        for cell in cells:
            failure = read_failure(cell)
            if failure and (retry_failed or "signal" in failure) and (lock := acquire(_lock_of(cell), self.out)):
                cell.failure.unlink(missing_ok=True)
                lock.release()

    def run(self, cells: Sequence[Cell]) -> None:
        """Return when every cell is done or failed; on an interruption end the runs, which keep their checkpoints."""
        try:
            while self._step(cells):
                time.sleep(POLL_SECONDS)
        finally:
            self._stop()
        append_missing(self.out / "sweep.jsonl", [cell for cell in cells if cell.state == "done"])

    def _step(self, cells: Sequence[Cell]) -> bool:
        """One look at everything; False when nothing is left to do."""
        for one in list(self.running):
            if one.process.poll() is not None:
                self._settle(one)
        self._beat()
        mine = {one.cell.name for one in self.running}
        waiting = [cell for cell in cells if cell.name not in mine and cell.state in ("new", "started")]
        elsewhere = 0
        for cell in waiting:
            held = is_held(_lock_of(cell))
            elsewhere += held
            if not held and self.free:
                self._try_start(cell)
        self.watcher.tick([one.cell for one in self.running], elsewhere)
        return bool(waiting or self.running)

    def _try_start(self, cell: Cell) -> None:
        lock = acquire(_lock_of(cell), self.out)
        if lock is None:
            return
        if cell.state not in ("new", "started"):  # another sweep was quicker, from start to end
            lock.release()
            return
        write_json(cell.folder / "cell.json", cell.describe())
        asked = cell.folder / "asked.yaml"
        save_config(cell.config, asked)
        slot = self.free.pop(0)
        line = [sys.executable, "-m", "proxemics.training.sweep.start", str(os.getpid()), "train"]
        line += ["--config", str(asked), "--out", str(cell.folder), *slot.arguments]
        line += [] if self.report else ["--no-report"]
        with cell.log.open("ab") as log:
            start = log.tell()
            process = subprocess.Popen(  # noqa: S603 - our own module and checked options
                line,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **slot.environment},
                start_new_session=True,  # so that it can be ended with all its helpers
            )
        lock.note_child(process.pid)
        self.running.append(_Running(cell, slot, lock, process, time.monotonic(), start))
        self.watcher.started(cell, slot)

    def _settle(self, one: _Running) -> None:
        """Read off how a run ended, and give its slot and lock back."""
        cell, code = one.cell, one.process.returncode
        outcome = "done"
        if cell.run.result.exists():
            cell.failure.unlink(missing_ok=True)
            append_missing(self.out / "sweep.jsonl", [cell])
        elif code < 0 and self.kills.get(cell.name, 0) < RESUMPTIONS:
            self.kills[cell.name] = self.kills.get(cell.name, 0) + 1
            outcome = "resumed"
        else:
            outcome = last_error(cell.log, one.log_start) if code >= 0 else killed(-code, self.kills.get(cell.name, 0))
            record_failure(cell, outcome, code=code)
        self._give_back(one)
        self.watcher.ended(cell, outcome, time.monotonic() - one.began)

    def _give_back(self, one: _Running) -> None:
        with suppress(ProcessLookupError, PermissionError):  # helpers of a killed run
            os.killpg(one.process.pid, signal.SIGKILL)
        one.lock.release()
        self.running.remove(one)
        self.free.append(one.slot)

    def _beat(self) -> None:
        if time.monotonic() - self._beaten < BEAT_SECONDS:
            return
        self._beaten = time.monotonic()
        for one in list(self.running):
            if not one.lock.beat():  # this process slept so long that another machine took over
                self._give_back(one)

    def _stop(self) -> None:
        for one in self.running:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(one.process.pid, signal.SIGTERM)
        for one in list(self.running):
            with suppress(subprocess.TimeoutExpired):
                one.process.wait(timeout=5)
            self._give_back(one)


def _lock_of(cell: Cell) -> Path:
    return cell.folder / "lock"


def last_error(log: Path, start: int = 0) -> str:
    """Return the last line of a log that says what went wrong: one that begins with Error, else the last of all.

    Args:
        log: what the run printed.
        start: byte that its latest sitting began at.
    """
    try:
        text = log.read_bytes()[start:].decode("utf-8", "replace")
    except OSError:
        text = ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("Error:")]
    return (errors or lines or ["The run ended without a word."])[-1].removeprefix("Error: ")


def killed(number: int, before: int) -> str:
    """Say that a signal ended a run, and what that often means.

    Example:
        >>> killed(9, 2)
        'Killed by SIGKILL 3 times; is the memory full? The next sweep goes on from the checkpoint.'
    """
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    reason = "; is the memory full?" if number == signal.SIGKILL else "."
    times = f" {before + 1} times" if before else ""
    return f"Killed by {name}{times}{reason} The next sweep goes on from the checkpoint."
