"""A sweep on the terminal: one bar for all, one for each run; plain lines where there is no terminal."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from proxemics.training.sweep.cells import Cell
from proxemics.training.sweep.choose import validation_value
from proxemics.training.sweep.run import Sweep
from proxemics.training.sweep.slots import Slot

_LOOK_SECONDS = 1.0
_TAIL_BYTES = 4096


class Screen:
    """Draws the progress of a queue.

    Args:
        console: where to draw.
        laid_out: the sweep.
        quiet: show nothing.
    """

    def __init__(self, console: Console, laid_out: Sweep, *, quiet: bool = False) -> None:
        self.console = console
        self.laid_out = laid_out
        self.quiet = quiet
        self.tasks: dict[str, TaskID] = {}
        self.progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            console=console,
            transient=True,
            disable=quiet or not console.is_terminal,
        )
        self.whole = self.progress.add_task("runs", total=laid_out.planned, note="")
        self._looked = 0.0

    def __enter__(self) -> Screen:
        """Start drawing."""
        counts: dict[str, int] = {}
        for cell in self._cells():
            counts[cell.state] = counts.get(cell.state, 0) + 1
        done = ", ".join(f"{count} {name}" for name, count in counts.items() if name != "new")
        self._say(f"Sweep of {self.laid_out.planned} runs in {self.laid_out.out}{f'; {done} already' if done else ''}")
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop drawing."""
        self.progress.stop()

    def started(self, cell: Cell, slot: Slot) -> None:
        """Show a bar for the run."""
        total = max(cell.config.train.epochs, 1)
        self.tasks[cell.name] = self.progress.add_task(f"  {cell.name}", total=total, note=f"{slot.name}, starting")
        if not self.console.is_terminal:
            self._say(f"start   {cell.name} on {slot.name}")

    def ended(self, cell: Cell, outcome: str, seconds: float) -> None:
        """Take the bar away and leave a line."""
        task = self.tasks.pop(cell.name, None)
        if task is not None:
            self.progress.remove_task(task)
        if outcome == "done":
            self._say(f"done    {cell.name}  {_validation(cell)}  {duration(seconds)}")
        elif outcome == "resumed":
            self._say(f"killed  {cell.name}; it goes on from its checkpoint")
        else:
            self._say(f"failed  {cell.name}: {outcome} ({cell.log})")

    def tick(self, running: Sequence[Cell], elsewhere: int) -> None:
        """Bring the bars up to date, about once a second."""
        if time.monotonic() - self._looked < _LOOK_SECONDS or self.progress.disable:
            return
        self._looked = time.monotonic()
        states = [cell.state for cell in self._cells()]
        note = f"{elsewhere} run by another sweep" if elsewhere else ""
        over = sum(state in ("done", "failed") for state in states)
        self.progress.update(self.whole, completed=over, total=self.laid_out.planned, note=note)
        for cell in running:
            record = last_record(cell)
            if record and cell.name in self.tasks:
                loss = f"loss {record['loss']:.3f}" if "loss" in record else ""
                epoch = int(record.get("epoch", 0)) + ("val" in record)
                self.progress.update(self.tasks[cell.name], completed=epoch, note=loss)

    def _cells(self) -> list[Cell]:
        cells = self.laid_out.trials + self.laid_out.final
        return self.laid_out.wanted(list({cell.name: cell for cell in cells}.values()))

    def _say(self, text: str) -> None:
        if not self.quiet:
            self.console.print(text, highlight=False, markup=False, soft_wrap=True)


def last_record(cell: Cell) -> dict[str, Any]:
    """Return the latest whole line of the run's log, reading only its end."""
    path = cell.folder / "metrics.jsonl"
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES), os.SEEK_SET)
            lines = file.read().splitlines()
    except OSError:
        return {}
    for line in reversed(lines):
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            return record
    return {}


def duration(seconds: float) -> str:
    """Write a time for people.

    Example:
        >>> duration(5), duration(125), duration(7300)
        ('5 s', '2 min 05 s', '2 h 01 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return (
        f"{whole // 60} min {whole % 60:02d} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    )


def _validation(cell: Cell) -> str:
    """The validation metric of a finished run; test numbers wait for the table."""
    metric = cell.config.train.select if cell.config.train.select != "last" else "map_at_r"
    value = validation_value(cell.run.read_result().get("history", []), metric)
    return "" if value is None else f"validation {metric} {100 * value:.1f}"
