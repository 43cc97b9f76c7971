"""The log of a run: JSON lines always, TensorBoard beside it, and what a progress display listens to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

from proxemics.core.errors import ProxemicsError
from proxemics.core.files import write_text


class Reporter(Protocol):
    """Hears of the progress of a run; the command line draws it."""

    def start(self, task: str, total: int, done: int = 0) -> None:
        """A task of ``total`` units begins, ``done`` of them already behind it."""

    def advance(self, task: str, by: int = 1, note: str = "") -> None:
        """``by`` units more are done; ``note`` may be shown beside them."""

    def finish(self, task: str) -> None:
        """The task is over."""

    def say(self, text: str) -> None:
        """One line for the reader."""


class Silent:
    """A reporter that shows nothing."""

    def start(self, task: str, total: int, done: int = 0) -> None:
        """Show nothing."""

    def advance(self, task: str, by: int = 1, note: str = "") -> None:
        """Show nothing."""

    def finish(self, task: str) -> None:
        """Show nothing."""

    def say(self, text: str) -> None:
        """Show nothing."""


class RunLog:
    """Appends records to ``metrics.jsonl`` and mirrors their numbers to TensorBoard.

    On resuming, records after the step of the checkpoint are cut off, so that every step stands in the file once.

    Args:
        folder: the run folder.
        tensorboard: also write event files under ``tensorboard/``.
        resume_step: keep records up to this step; None starts a new file.
    """

    def __init__(self, folder: Path, *, tensorboard: bool = False, resume_step: int | None = None) -> None:
        self.path = folder / "metrics.jsonl"
        kept: list[str] = []
        if resume_step is not None and self.path.exists():
            kept = [line for line in self.path.read_text(encoding="utf-8").splitlines() if _step(line) <= resume_step]
        write_text(self.path, "".join(f"{line}\n" for line in kept))
        self._writer: Any = None
        if tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            place = str(folder / "tensorboard")
            self._writer = SummaryWriter(place, purge_step=resume_step)

    def write(self, record: dict[str, Any]) -> None:
        """Append one record; it must hold ``step``."""
        try:
            with self.path.open("a", encoding="utf-8") as handle:
                handle.write(json.dumps(record, allow_nan=False) + "\n")
        except OSError as error:
            raise ProxemicsError(
                f"Cannot write {self.path}: {error.strerror or error}. Free some space and give the same command "
                "again; the latest checkpoint is untouched."
            ) from error
        if self._writer is not None:
            for name, value in _numbers(record):
                self._writer.add_scalar(name, value, record["step"])

    def close(self) -> None:
        """Flush and close the event file."""
        if self._writer is not None:
            self._writer.close()


def read_log(folder: Path) -> list[dict[str, Any]]:
    """Return the records of a run, oldest first; a last line cut short by a kill is left out."""
    path = folder / "metrics.jsonl"
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if _step(line) < _BROKEN]


_BROKEN = 1 << 62


def _step(line: str) -> int:
    try:
        return int(json.loads(line)["step"])
    except (json.JSONDecodeError, KeyError, TypeError):
        return _BROKEN


def _numbers(record: dict[str, Any], prefix: str = "") -> list[tuple[str, float]]:
    result: list[tuple[str, float]] = []
    for key, value in record.items():
        if isinstance(value, dict):
            result += _numbers(value, f"{prefix}{key}/")
        elif isinstance(value, int | float) and key not in ("step", "epoch"):
            result.append((f"{prefix}{key}", float(value)))
    return result
