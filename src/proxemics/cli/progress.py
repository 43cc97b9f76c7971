"""Progress on the terminal; nothing but plain lines when the output is not one."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn


class TerminalReporter:
    """Draws bars for the tasks of a run on standard error, so that standard output stays clean for ``--json``.

    Args:
        console: where to draw.
        quiet: show neither bars nor lines.
    """

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        self.console = console
        self.quiet = quiet
        self._tasks: dict[str, TaskID] = {}
        self._progress: Progress | None = None

    def start(self, task: str, total: int, done: int = 0) -> None:
        """Show a bar for a task."""
        if self.quiet or not self.console.is_terminal:
            return
        if self._progress is None:
            self._progress = Progress(
                TextColumn("{task.description:<10}"),
                BarColumn(bar_width=30),
                MofNCompleteColumn(),
                TimeRemainingColumn(compact=True),
                TextColumn("{task.fields[note]}"),
                console=self.console,
                transient=True,
            )
            self._progress.start()
        self._tasks[task] = self._progress.add_task(task, total=total, completed=done, note="")

    def advance(self, task: str, by: int = 1, note: str = "") -> None:
        """Move the bar on."""
        if self._progress is not None and task in self._tasks:
            self._progress.update(self._tasks[task], advance=by, note=note)

    def finish(self, task: str) -> None:
        """Take the bar away."""
        if self._progress is None or task not in self._tasks:
            return
        self._progress.remove_task(self._tasks.pop(task))
        if not self._tasks:
            self._progress.stop()
            self._progress = None

    def say(self, text: str) -> None:
        """Print one line."""
        if not self.quiet:
            self.console.print(text, highlight=False, markup=False, soft_wrap=True)
