"""`proxemics export`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from proxemics.cli.options import JsonOption, QuietOption, WhereOption

if TYPE_CHECKING:
    from rich.console import Console


def export(
    run: Annotated[Path, typer.Argument(help="A run folder or a bundle folder.")],
    out: Annotated[Path, typer.Option("--out", help="The bundle folder to write; an older bundle is replaced.")],
    onnx: Annotated[bool, typer.Option("--onnx/--no-onnx", help="Also write ONNX files and measure them.")] = True,
    precision: Annotated[
        list[str] | None,
        typer.Option(
            "--precision", metavar="NAMES", help="float32, float16, int8; commas or repeats. Default: all that can be."
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option("--data", help="Pictures to calibrate and measure on: a folder or table; default: the run's."),
    ] = None,
    where: WhereOption = None,
    images: Annotated[
        int, typer.Option("--images", help="Pictures that Recall@1 is measured on, at most; 0: all.")
    ] = 1000,
    licence: Annotated[
        str | None, typer.Option("--licence", help="Licence of this model for its card, e.g. apache-2.0.")
    ] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Write a bundle for other machines: weights, preprocessing, ONNX with measured drift, certainty, model card."""
    from rich.console import Console

    from proxemics.cli.evaluate import _pair
    from proxemics.cli.progress import TerminalReporter
    from proxemics.export.write import export as write

    names = [part for item in precision or [] for part in item.replace(",", " ").split()]
    written = write(
        run,
        out,
        onnx=onnx,
        precision=names or None,
        source=data,
        where=dict(_pair(item) for item in where or []),
        images=images,
        licence=licence,
        reporter=TerminalReporter(Console(stderr=True), quiet=quiet or as_json),
    )
    if as_json:
        typer.echo(json.dumps(written, ensure_ascii=False))
        return
    if not quiet:
        _show(written, Console())
    typer.echo(f"Bundle: {written['folder']} (model {written['fingerprint'][:12]})")


def _show(written: dict[str, Any], console: Console) -> None:
    """Print a row a file, and what was not measured or not written."""
    from rich.table import Table
    from rich.text import Text

    parity = written["parity"]
    if parity["variants"]:
        table = Table(box=None, pad_edge=False)
        for head in ("precision", "MB", "difference", "R@1", "drift", "95 %", "changed"):
            table.add_column(head, justify="left" if head == "precision" else "right")
        for one in parity["variants"]:
            apart = max(row["max_difference"] for row in one["parity"])
            table.add_row(one["precision"], f"{one['bytes'] / 1e6:.1f}", f"{apart:.1e}", *_drift(one["drift"]))
        console.print(table)
    for line in _notes(parity):
        console.print(Text(line, style="dim"), soft_wrap=True)


def _drift(drift: dict[str, Any] | None) -> tuple[str, str, str, str]:
    if drift is None:
        return "", "", "", ""
    ends = drift["interval"]
    return (
        f"{100 * drift['recall_at_1']:.1f} %",
        f"{100 * drift['drift']:+.2f}",
        "" if ends is None else f"{100 * ends[0]:+.2f} to {100 * ends[1]:+.2f}",
        f"{100 * drift['changed']:.1f} %",
    )


def _notes(parity: dict[str, Any]) -> list[str]:
    lines = []
    if parity["variants"]:
        lines.append("difference: largest of a value, to torch; drift: points of R@1, to torch; changed: answers.")
    drift = parity["drift"]
    if drift is not None:
        recall = f"{100 * drift['recall_at_1']:.1f} %"
        lines.append(f"torch: R@1 {recall}, {drift['queries']:,} queries ({drift['pictures']}).")
    if parity["without"]:
        what = "R@1 was not measured" if parity["variants"] else "No ONNX"
        lines.append(f"{what}: {parity['without']}.")
    return [*lines, *(f"{name} was not written: {why}." for name, why in parity["left_out"].items())]
