"""`proxemics bench`: list and show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from proxemics.cli.options import JsonOption

if TYPE_CHECKING:
    from rich.console import Console

    from proxemics.report.published import Panel, Row

app = typer.Typer(help="Published numbers of benchmark sets, with own runs beside them.", no_args_is_help=True)


@app.callback()
def _root() -> None:
    """Published numbers of benchmark sets, with own runs beside them."""


@app.command("list")
def list_sets() -> None:
    """Name the data sets that have published numbers, and their protocols."""
    from proxemics.report.published import DATASETS, lay_out, published_rows

    for key, one in DATASETS.items():
        panels = lay_out(published_rows(key))
        typer.echo(f"{key}: {one.title}, {sum(len(panel.rows) for panel in panels)} rows")
        for panel in panels:
            typer.echo(f"    {panel.protocol.title} ({_how(panel)})")
    typer.echo("CenterPolar has published no number that could be had; pacs, office-home and domainnet have no rows.")


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="cub, cars, sop or inshop.")],
    runs: Annotated[
        list[Path] | None, typer.Option("--runs", metavar="FOLDER", help="Own run folder, or a folder of them; repeat.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print what papers report, one table a protocol, and own runs in the table of their own protocol.

    Tags: P printed in the paper, C in the authors' code or readme, S reported by somebody else.
    """
    from rich.console import Console

    from proxemics.report.published import DATASETS, find_dataset, lay_out, published_rows
    from proxemics.report.published.own import own_rows

    key = find_dataset(name)
    panels = lay_out([*published_rows(key), *(own_rows(key, runs) if runs else [])])
    if as_json:
        typer.echo(json.dumps({"dataset": key, "panels": [_plain(panel) for panel in panels]}, ensure_ascii=False))
        return
    console = Console()
    console.print(f"{DATASETS[key].title}: per cent. Numbers of different tables do not compare.", highlight=False)
    for panel in panels:
        _print(panel, console)


def _how(panel: Panel) -> str:
    assumed = ", assumed" if panel.protocol.selection == "best test epoch" else ""
    return f"epoch: {panel.protocol.selection}{assumed}"


def _print(panel: Panel, console: Console) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    from proxemics.report.explain import explain

    table = Table(
        title=Text(panel.protocol.title + ("" if all(row.runs for row in panel.rows) else f" ({_how(panel)})")),
        title_justify="left",
        header_style="dim",
        box=SIMPLE_HEAD,
    )
    own = any(row.runs for row in panel.rows)
    table.add_column("method", overflow="fold")
    table.add_column("trunk", overflow="fold")
    table.add_column("dim", justify="right")
    if own:
        table.add_column("side", justify="right")
    for metric in panel.metrics:
        title = "R@1 gain" if metric == "recall_at_1_gain" else explain(metric).title
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("source", overflow="fold")
    for row in panel.rows:
        cells = [row.method, row.backbone or "-", str(row.dim or "-"), *([str(row.size or "-")] if own else [])]
        cells += [_value(row, metric) for metric in panel.metrics]
        cells.append(f"[{row.tag}] {row.source}" if row.tag else row.source)
        table.add_row(*(Text(cell, style="bold" if row.runs else "") for cell in cells))
    console.print(table)


def _value(row: Row, metric: str) -> str:
    if metric not in row.values:
        return "-"
    sign = "+" if metric.endswith("_gain") else ""
    # Published numbers are never rounded.
    shown = f"{row.values[metric]:.1f}" if row.runs else f"{sign}{row.values[metric]}"
    return f"{shown} ± {row.spread[metric]:.1f}" if metric in row.spread else shown


def _plain(panel: Panel) -> dict[str, Any]:
    from dataclasses import asdict

    rows = [{key: value for key, value in asdict(row).items() if key != "protocol"} for row in panel.rows]
    return {"protocol": asdict(panel.protocol), "metrics": panel.metrics, "rows": rows}
