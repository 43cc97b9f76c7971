"""`proxemics doctor`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from proxemics.cli.options import (
    ConfigOption,
    DataOption,
    JsonOption,
    QuietOption,
    SetOption,
    SourceArgument,
    WhereOption,
    config_from,
)

if TYPE_CHECKING:
    from proxemics.data.doctor import Diagnosis

SHOWN_PATHS = 5
MARKS = {"error": "x", "warning": "!", "info": "i"}


def doctor(
    source: SourceArgument = None,
    data: DataOption = None,
    where: WhereOption = None,
    config: ConfigOption = None,
    assignments: SetOption = None,
    headers_only: Annotated[
        bool, typer.Option("--headers-only", help="Read headers and hashes only: quicker, blind to damage further in.")
    ] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Look a folder or table over before training: broken files, copies, leaks, odd classes.

    Exit code 1 when something found would stop a run or make its numbers wrong.
    """
    from rich.console import Console

    from proxemics.cli.progress import TerminalReporter
    from proxemics.core.errors import ConfigError
    from proxemics.data.doctor import diagnose

    settings = config_from(source, data, where, config, assignments).data
    if settings.source is None:
        raise ConfigError("No pictures given: name a folder of class folders, or a CSV or Parquet table.")
    reporter = TerminalReporter(Console(stderr=True), quiet=quiet or as_json)
    done = 0

    def progress(now: int, total: int) -> None:
        nonlocal done
        if done == 0:
            reporter.start("files", total)
        reporter.advance("files", now - done)
        done = now

    found = diagnose(
        settings.source,
        root=settings.root,
        where=settings.where or None,
        label=settings.label,
        domain=settings.domain,
        layout=settings.layout,
        decode=not headers_only,
        max_pixels=settings.max_pixels,
        workers=settings.workers,
        progress=progress,
    )
    reporter.finish("files")
    if as_json:
        typer.echo(json.dumps(found.to_dict(), ensure_ascii=False))
    else:
        _show(found, settings.source)
    raise typer.Exit(0 if found.ok else 1)


def _amounts(pictures: int, classes: int) -> str:
    return f"{pictures} picture{'s' * (pictures != 1)} of {classes} class{'es' * (classes != 1)}"


def _show(found: Diagnosis, source: str) -> None:
    sizes = list(found.histogram.values())
    low, middle, high = found.short_side
    typer.echo(f"{found.source}: {_amounts(found.num_files, found.num_classes)}")
    typer.echo(
        f"  pictures a class: {min(sizes)} to {max(sizes)};  "
        f"short side: {low}, {middle}, {high} px (least, median, most)"
    )
    for name, one in found.splits.items():
        typer.echo(f"  split {name or '(none)'}: {_amounts(one['images'], one['classes'])}")
    for finding in found.findings:
        typer.echo(f"\n{MARKS[finding.severity]} {finding.message}")
        typer.echo(f"  {finding.fix}")
        for path in finding.paths[:SHOWN_PATHS]:
            typer.echo(f"    {path}")
        if len(finding.paths) > SHOWN_PATHS:
            typer.echo(f"    ... and {len(finding.paths) - SHOWN_PATHS} more (--json lists all)")
    if not found.findings:
        typer.echo("\nNothing found.")
    typer.echo(f"\n{found.files_per_second:.0f} files a second.")
    if found.ok:
        typer.echo(f"Next:   proxemics train {source}")
