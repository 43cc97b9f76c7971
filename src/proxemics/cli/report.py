"""`proxemics report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(run: Annotated[Path, typer.Argument(help="A run folder.")]) -> None:
    """Write the report of a run again."""
    from proxemics.report import write_report

    typer.echo(f"Report: {write_report(run)}")
