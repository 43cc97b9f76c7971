"""`proxemics reproduce`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from proxemics.cli.options import DataOption, JsonOption, QuietOption


def reproduce(
    result: Annotated[Path, typer.Argument(metavar="RESULT", help="result.json of a run, or its folder.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="New run folder; default: reproduced, beside RESULT.")
    ] = None,
    tolerance: Annotated[
        float, typer.Option("--tolerance", help="Largest accepted difference, as a share; 0.01 is one point.")
    ] = 0.0,
    data: DataOption = None,
    restart: Annotated[bool, typer.Option("--restart", help="Throw away what --out holds.")] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Run a result file again and compare every number; exit code 1 when one differs.

    Other pictures than the recorded ones are refused; --data says where they lie now.
    """
    from rich.console import Console

    from proxemics.cli.progress import TerminalReporter
    from proxemics.training.reproduce import reproduce as run
    from proxemics.training.reproduce import summary

    reporter = TerminalReporter(Console(stderr=True), quiet=quiet or as_json)
    try:
        outcome = run(result, out, tolerance=tolerance, source=data, restart=restart, reporter=reporter)
    except KeyboardInterrupt:
        typer.echo("Interrupted. The same command goes on from the latest checkpoint.", err=True)
        raise typer.Exit(130) from None
    if as_json:
        typer.echo(json.dumps(outcome.to_dict(), ensure_ascii=False))
    else:
        for line in summary(outcome):
            typer.echo(line)
        typer.echo(f"Run:    {outcome.out}")
    if not outcome.same:
        raise typer.Exit(1)
