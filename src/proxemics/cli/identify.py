"""`proxemics identify` and `proxemics classes`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from proxemics.cli.enrol import BookOption, ModelArgument
from proxemics.cli.options import JsonOption, QuietOption, SetOption

if TYPE_CHECKING:
    from rich.console import Console

    from proxemics.search.classes import Decision


def identify(
    model: ModelArgument,
    pictures: Annotated[list[Path], typer.Argument(metavar="PICTURE...", help="Files, or folders with pictures.")],
    book: BookOption = None,
    threshold: Annotated[
        float | None, typer.Option("--threshold", help="A cosine instead of the calibrated threshold.")
    ] = None,
    by: Annotated[
        Literal["centroid", "vmf"],
        typer.Option("--by", help="Choose by the nearest centroid, or by the density that the enrolled pictures give."),
    ] = "centroid",
    assignments: SetOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Say which enrolled class each picture belongs to, or "unknown"."""
    from rich.console import Console

    from proxemics.cli.progress import TerminalReporter
    from proxemics.search.classes.decide import gallery_warning
    from proxemics.search.classes.enrolment import identify_pictures

    paths, answers, used, classes = identify_pictures(
        model,
        list(pictures),
        book=book,
        threshold=threshold,
        by=by,
        settings=assignments or [],
        reporter=TerminalReporter(Console(stderr=True), quiet=quiet or as_json),
    )
    if used is None:
        typer.echo(
            "Note: no threshold is calibrated, so every picture is given its nearest class; run "
            f"`proxemics calibrate {model} --for identify`.",
            err=True,
        )
    warning = gallery_warning(classes, used)
    if warning is not None:
        typer.echo(f"Warning: {warning}", err=True)
    if as_json:
        rows = [{"path": path, **vars(one)} for path, one in zip(paths, answers, strict=True)]
        typer.echo(json.dumps(rows, ensure_ascii=False))
    else:
        _show(paths, answers, Console())


def classes(model: ModelArgument, book: BookOption = None, as_json: JsonOption = False) -> None:
    """List the enrolled classes, with how many pictures each has and how tightly they lie."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from proxemics.search.classes import load_book
    from proxemics.search.classes.pictures import open_for_classes

    opened = open_for_classes(model)
    found = load_book(opened.home if book is None else book, opened.key)
    if as_json:
        rows = [
            {"name": name, "pictures": found[name].count, "resultant_length": found[name].resultant_length}
            for name in found.names
        ]
        typer.echo(json.dumps(rows, ensure_ascii=False))
        return
    table = Table(box=None, pad_edge=False)
    for head in ("class", "pictures", "mean cosine to the centroid"):
        table.add_column(head, justify="left" if head == "class" else "right")
    for name in found.names:
        table.add_row(Text(name), str(found[name].count), f"{found[name].resultant_length:.3f}")
    Console().print(table)


def _show(paths: list[str], answers: list[Decision], console: Console) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for head in ("picture", "class", "score", "threshold", "best", "second", "margin"):
        table.add_column(head, justify="right" if head in ("score", "threshold", "margin") else "left", overflow="fold")
    for path, one in zip(paths, answers, strict=True):
        numbers = ["-" if value is None else f"{value:.3f}" for value in (one.score, one.threshold, one.margin)]
        label = Text(one.label, style="" if one.known else "dim")
        table.add_row(Text(path), label, *numbers[:2], Text(one.best), Text(one.second or "-"), numbers[2])
    console.print(table)
