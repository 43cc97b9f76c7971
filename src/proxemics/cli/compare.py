"""`proxemics compare`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from proxemics.report.compare import Comparison
    from proxemics.report.compare_probes import ProbePart


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="PLACES...", help="Run folders, sweep folders or result files; NAME=PLACE names the runs."
        ),
    ],
    baseline: Annotated[
        str | None, typer.Option("--baseline", help="Variant to compare with; default: the first.")
    ] = None,
    metric: Annotated[
        list[str] | None, typer.Option("--metric", help="May be repeated; default: recall_at_1 and map_at_r.")
    ] = None,
    style: Annotated[
        str | None, typer.Option("--format", help="md, csv, latex, html or json; default: by --out, else for reading.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="File to write; default: standard output.")] = None,
    untrained: Annotated[bool, typer.Option("--untrained", help="Also show the untrained trunk.")] = False,
    resamples: Annotated[
        int | None, typer.Option("--resamples", min=1, help="Of the bootstrap; default: 2000.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the bootstrap.")] = 0,
    digits: Annotated[int, typer.Option("--digits", min=0, max=6, help="Decimals of percents.")] = 1,
) -> None:
    """Compare finished runs: mean, deviation, paired difference, interval, significance; and their bias cards.

    Runs with the same data, protocol and seed are paired query by query, rows of result files class by class where the
    file has sums over classes. Runs that were tested on different pictures are refused.
    """
    from rich.console import Console

    from proxemics.core.errors import ConfigError, did_you_mean
    from proxemics.core.files import write_text
    from proxemics.report.compare import METRICS
    from proxemics.report.compare import compare as build
    from proxemics.report.compare_rows import read_compared
    from proxemics.report.compare_text import FORMATS, SUFFIXES

    chosen = style
    if chosen is None and out is not None:
        chosen = SUFFIXES.get(out.suffix.lower(), "md")
    if chosen is not None and chosen not in FORMATS:
        raise ConfigError(
            f"--format {chosen}: no such format.{did_you_mean(chosen, FORMATS)} Use {', '.join(FORMATS)}."
        )
    found = build(
        read_compared(runs, untrained=untrained),
        baseline=baseline,
        metrics=list(dict.fromkeys(metric or METRICS)),
        resamples=resamples,
        seed=seed,
    )
    if chosen is None:
        show_comparison(found, Console(), digits=digits)
        return
    text = FORMATS[chosen](found, digits)
    if out is None:
        typer.echo(text, nl=False)
        return
    write_text(out, text)
    typer.echo(f"Table: {out}", err=True)


def show_comparison(found: Comparison, console: Console, *, digits: int = 1) -> None:
    """Print a comparison for reading: one line for each variant and metric."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    from proxemics.report.compare_text import best_lines, caption, difference_text, p_text, title, value_text
    from proxemics.report.explain import explain

    for part in found.parts:
        table = Table(title=title(part), title_justify="left", title_style="bold", header_style="dim", box=SIMPLE_HEAD)
        for name, side in (("variant", "left"), ("seeds", "right"), ("metric", "left"), ("mean", "right")):
            table.add_column(name, justify="right" if side == "right" else "left", overflow="fold")
        table.add_column("difference [95 %]", no_wrap=True)
        table.add_column("p", justify="right", no_wrap=True)
        best = [best_lines(part, column, metric) for column, metric in enumerate(found.metrics)]
        for number, line in enumerate(part.lines):
            for column, (metric, entry) in enumerate(zip(found.metrics, line.entries, strict=True)):
                first = column == 0
                sure = entry.difference is not None and entry.difference.significant
                table.add_row(
                    Text(line.variant if first else ""),
                    str(len(line.seeds)) if first else "",
                    explain(metric).title,
                    Text(value_text(entry, metric, digits), style="bold" if number in best[column] else ""),
                    Text(
                        "baseline"
                        if first and line.variant == found.baseline
                        else difference_text(entry, metric, digits),
                        style="bold" if sure else "dim" if line.variant == found.baseline else "",
                    ),
                    p_text(entry),
                    end_section=column == len(found.metrics) - 1,
                )
        console.print(table)
    for sentence in caption(found):
        console.print(sentence, highlight=False, markup=False)
    for cards in found.probes:
        _show_cards(cards, found.baseline, console, digits)


def _show_cards(cards: ProbePart, baseline: str, console: Console, digits: int) -> None:
    """Print the bias cards of one data set: a row a number, the differences beside the values."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    from proxemics.report import compare_probe_text as words

    table = Table(
        title=words.title(cards), title_justify="left", title_style="bold", header_style="dim", box=SIMPLE_HEAD
    )
    for place, name in enumerate(words.heads(cards)):
        table.add_column(Text(name), justify="left" if place == 0 else "right", overflow="fold")
    for group, rows in words.rows(cards, digits):
        table.add_row(Text(group, style="dim"))
        for row in rows:
            table.add_row(*map(Text, row))
        table.add_section()
    console.print(table)
    for sentence in words.caption(cards, baseline):
        console.print(sentence, highlight=False, markup=False)
