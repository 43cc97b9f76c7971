"""Train, report and say what came out; shared by `train` and `demo`."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from proxemics.cli.progress import TerminalReporter
from proxemics.core.config import Config


def run_training(config: Config, out: Path, *, restart: bool, write_report: bool, quiet: bool, as_json: bool) -> None:
    """Run the pipeline with progress on the terminal, and print the result; only the first process speaks."""
    from proxemics.training.pipeline import fit
    from proxemics.training.tables import count_splits, prepare_table

    console = Console(stderr=True)
    reporter = TerminalReporter(console, quiet=quiet or as_json or not _is_first_process())
    logging.basicConfig(format="%(levelname)s: %(message)s")
    table = prepare_table(config)
    counts = count_splits(table)
    reporter.say(
        "Data: "
        + "; ".join(
            f"{name or 'unused'} {one['images']} pictures of {one['classes']} classes" for name, one in counts.items()
        )
    )
    try:
        result = fit(config, out, frame=table, restart=restart, reporter=reporter)
    except KeyboardInterrupt:
        typer.echo("Interrupted. The same command goes on from the latest checkpoint.", err=True)
        raise typer.Exit(130) from None
    if not result:  # another process than the first
        return
    report: Path | None = None
    if write_report:
        from proxemics.report import write_report as write

        report = write(out)
    if as_json:
        typer.echo(json.dumps(result, ensure_ascii=False))
        return
    show_result(result, Console())
    if not quiet:
        say_next(out, report, Console())


def show_result(result: dict[str, Any], console: Console) -> None:
    """Print the metrics with their intervals, the trained model beside the untrained trunk."""
    rows = result["rows"]
    names = [name for name in rows[0]["metrics"] if name.startswith("recall_at_")] + ["map_at_r", "r_precision"]
    if rows[0].get("protocol") == "roth":
        from proxemics.evaluation.protocols.roth_metrics import METRICS

        names = list(METRICS)
    what = "test classes, never seen in training" if result.get("unseen_classes") else f"split {rows[0]['split']}"
    table = Table(title=f"{rows[0]['dataset']}: {what.partition(';')[0]}", title_justify="left")
    table.add_column("")
    for row in rows:
        table.add_column(row_name(row), justify="right")
    for name in names:
        table.add_row(name, *(_with_interval(row, name) for row in rows))
    console.print(table)
    for row in rows:
        show_tasks(row, console)
        show_verification(row, console)


def show_tasks(row: dict[str, Any], console: Console) -> None:
    """Print the tasks of a protocol that has several, and what is reported beside their mean."""
    tasks, beside = row.get("tasks", {}), row.get("beside", {})
    if not tasks:
        return
    table = Table(title=f"{row_name(row)}: {row['protocol']}, mean of {len(tasks)}", title_justify="left")
    names = [name for name in next(iter(tasks.values()))["metrics"] if name in ("recall_at_1", "map_at_r")]
    for head in ("", "queries", *names):
        table.add_column(head, justify="right" if head else "left")
    for mark, group in (("", tasks), ("beside: ", beside)):
        for name, one in group.items():
            table.add_row(f"{mark}{name}", str(one["num_queries"]), *(_with_interval(one, metric) for metric in names))
    console.print(table)


def show_verification(row: dict[str, Any], console: Console) -> None:
    """Print how well a threshold tells two pictures of one class from two of different classes."""
    found = row.get("verification")
    if found is None or found["eer"] is None:
        return
    low, high = found["intervals"].get("eer", (None, None))
    spread = "" if low is None else f" [{100 * low:.1f}, {100 * high:.1f}]"
    rates = [
        f"FNMR {100 * one['fnmr']:.1f} % at FMR {one['target']:g}"
        for one in found["fnmr_at_fmr"]
        if one["fnmr"] is not None and one["threshold"] is not None
    ]
    console.print(
        f"{row_name(row)}, all pairs: area under the ROC {found['auc']:.4f}, EER {100 * found['eer']:.1f} %{spread}"
        + "".join(f", {rate}" for rate in rates)
    )


def row_name(row: dict[str, Any]) -> str:
    """Return the heading of a result's column.

    Example:
        >>> row_name({"method": "none"}), row_name({"method": "see"}), row_name({"method": "frozen"})
        ('trained', 'trained, see', 'untrained trunk')
        >>> row_name({"method": "none", "protocol": "musgrave separated"})
        'trained, separated'
    """
    if row["method"] == "frozen":
        return "untrained trunk"
    name = "trained" if row["method"] == "none" else f"trained, {row['method'].replace('+', ' + ')}"
    kind, _, reading = row.get("protocol", "").partition(" ")
    return f"{name}, {reading}" if kind == "musgrave" and not reading.startswith("fold") else name


def say_next(out: Path, report: Path | None, console: Console) -> None:
    """Name the files and the command that comes next."""
    lines = [f"Model:  {out / 'bundle'}", f"Result: {out / 'result.json'}"]
    if report is not None:
        lines.append(f"Report: {report}")
    lines.append(f"Next:   proxemics embed {out} PICTURES --out embeddings.parquet")
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _with_interval(row: dict[str, Any], name: str) -> str:
    value = row["metrics"].get(name)
    if value is None:
        return "-"
    interval = row.get("intervals", {}).get(name)
    shown = f"{100 * value:.1f}"
    return shown if interval is None else f"{shown}  [{100 * interval[0]:.1f}, {100 * interval[1]:.1f}]"


def _is_first_process() -> bool:
    import os

    return int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0"))) == 0
