"""`proxemics report`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from proxemics.cli.options import QuietOption

if TYPE_CHECKING:
    from proxemics.report.projection import ProjectionName


def report(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...", help="A run folder; several, or a sweep folder, are compared. NAME=FOLDER names a run."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="HTML file; default: report.html in RUN, or comparison.html beside the first."),
    ] = None,
    projection: Annotated[
        str | None, typer.Option("--projection", help="Of the map of one run: pca (default) or tsne (minutes).")
    ] = None,
    perplexity: Annotated[float | None, typer.Option("--perplexity", help="Of t-SNE; default: 30.")] = None,
    points: Annotated[
        int | None,
        typer.Option("--points", min=0, help="Pictures on the map at most; 0 leaves it out. Default: 20,000."),
    ] = None,
    similarity: Annotated[
        bool | None,
        typer.Option(
            "--similarity/--no-similarity",
            help="Of one run: show which places made the worst confusions similar (default).",
        ),
    ] = None,
    baseline: Annotated[
        str | None, typer.Option("--baseline", help="Of several runs: compare with this one; default: the first.")
    ] = None,
    metric: Annotated[
        list[str] | None, typer.Option("--metric", help="Of several runs: a metric of the table; may be repeated.")
    ] = None,
    quiet: QuietOption = False,
) -> None:
    """Write the report of a run again, or one page that shows several runs side by side."""
    from rich.console import Console

    from proxemics.cli.progress import TerminalReporter
    from proxemics.core.errors import ConfigError

    single = len(runs) == 1 and "=" not in runs[0] and not _holds_runs(Path(runs[0]))
    if single and (baseline or metric):
        raise ConfigError("--baseline and --metric compare runs; give two or more run folders.")
    if single:
        from proxemics.report import write_report
        from proxemics.report.embedding_map import POINTS

        written = write_report(
            runs[0],
            out=out,
            projection=_projection(projection or "pca"),
            perplexity=30.0 if perplexity is None else perplexity,
            points=POINTS if points is None else points,
            similarity=similarity is not False,
            reporter=TerminalReporter(Console(stderr=True), quiet=quiet),
        )
        typer.echo(f"Report: {written}")
        return
    of_one = {"projection": projection, "perplexity": perplexity, "points": points, "similarity": similarity}
    given = [f"--{name}" for name, value in of_one.items() if value is not None]
    if given:
        raise ConfigError(
            f"{', '.join(given)}: the page of several runs has no map and no similarity maps; leave that out, or "
            "report each run by itself."
        )
    from proxemics.report.compare_page import write_comparison

    typer.echo(f"Comparison: {write_comparison(runs, out=out, baseline=baseline, metrics=metric)}")


def _holds_runs(folder: Path) -> bool:
    """A sweep folder, or a folder of run folders."""
    return not (folder / "result.json").exists() and any(folder.glob("*/result.json"))


def _projection(name: str) -> ProjectionName:
    from proxemics.report.projection import check_projection

    return check_projection(name)
