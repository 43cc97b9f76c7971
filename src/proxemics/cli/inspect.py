"""`proxemics inspect dictionary`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from proxemics.cli.options import QuietOption

app = typer.Typer(help="Look into what the methods of a run have learnt.", no_args_is_help=True)


@app.callback()
def _root() -> None:
    """Look into what the methods of a run have learnt."""


@app.command()
def dictionary(
    run: Annotated[Path, typer.Argument(help="The folder of a run with couce or odba.")],
    atoms: Annotated[int, typer.Option("--atoms", min=1, help="Atoms to show, the most used first.")] = 12,
    pictures: Annotated[int, typer.Option("--pictures", min=1, max=64, help="Pictures an atom.")] = 8,
    out: Annotated[Path | None, typer.Option("--out", help="HTML file; default: dictionary.html in RUN.")] = None,
    quiet: QuietOption = False,
) -> None:
    """Show what each background atom answers to, as pictures, and whether the dictionary holds class information."""
    from rich.console import Console

    from proxemics.cli.progress import TerminalReporter
    from proxemics.report.dictionary import summary_lines, write_dictionary
    from proxemics.training.inspect_dictionary import inspect_dictionary
    from proxemics.training.run_folder import RunFolder

    reporter = TerminalReporter(Console(stderr=True), quiet=quiet)
    view = inspect_dictionary(run, atoms=atoms, pictures=pictures, reporter=reporter)
    page = write_dictionary(view, out or RunFolder(run).dictionary)
    for line in summary_lines(view):
        typer.echo(line)
    typer.echo(f"Dictionary: {page}")
