"""`proxemics enrol` and `proxemics forget`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from proxemics.cli.options import QuietOption, SetOption

ModelArgument = Annotated[Path, typer.Argument(help="A run folder or a bundle folder.")]
BookOption = Annotated[
    Path | None, typer.Option("--book", help="Folder of the class book; default: beside the weights.")
]
IndexOption = Annotated[
    str | None, typer.Option("--index", metavar="ADDRESS", help="An index of the same model, kept in step.")
]


def enrol(
    model: ModelArgument,
    folder: Annotated[Path, typer.Argument(help="Pictures of one class, or a folder of class folders.")],
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the one class; default: that of the folder.")
    ] = None,
    book: BookOption = None,
    index: IndexOption = None,
    weighting: Annotated[
        Literal["auto", "equal", "length"],
        typer.Option(
            "--weighting",
            help="auto: as the class book does, equally in a new one; length: certain pictures weigh more.",
        ),
    ] = "auto",
    replace: Annotated[
        bool, typer.Option("--replace", help="Begin the classes anew instead of adding pictures to them.")
    ] = False,
    assignments: SetOption = None,
    quiet: QuietOption = False,
) -> None:
    """Add classes from a few pictures each, without training; `proxemics identify` then knows them."""
    from rich.console import Console

    from proxemics.cli.progress import TerminalReporter
    from proxemics.search.classes.enrolment import enrol_folder

    report = enrol_folder(
        model,
        folder,
        name=name,
        book=book,
        index=index,
        weighting=weighting,
        replace=replace,
        settings=assignments or [],
        reporter=TerminalReporter(Console(stderr=True), quiet=quiet),
    )
    if report.enrolled.added:
        typer.echo(f"Added: {', '.join(report.enrolled.added)}")
    if report.enrolled.extended:
        typer.echo(f"More pictures: {', '.join(report.enrolled.extended)}")
    for one, other, cosine in report.enrolled.near:
        typer.echo(
            f"Warning: {one} is nearly the same as {other} (cosine of the centroids {cosine:.3f}, threshold "
            f"{report.threshold:.3f}); pictures of the two will be mixed up.",
            err=True,
        )
    if report.rows is not None:
        typer.echo(f"Index: {report.rows[0]} rows added, {report.rows[1]} replaced")
    plural = "class" if report.classes == 1 else "classes"
    typer.echo(
        f"Class book: {report.folder} ({report.classes} {plural}, pictures weigh by {_WEIGHT[report.weighting]})"
    )
    if report.threshold is None:
        typer.echo(
            "Note: no threshold to identify with is calibrated, so nothing is unknown yet; run "
            f"`proxemics calibrate {model} --for identify`.",
            err=True,
        )


_WEIGHT = {"equal": "number alone", "length": "certainty"}


def forget(
    model: ModelArgument,
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Classes to remove.")],
    book: BookOption = None,
    index: IndexOption = None,
) -> None:
    """Remove enrolled classes; nothing of them stays in the class book, nor in the index."""
    from proxemics.search.classes.enrolment import forget_classes

    gone, rows = forget_classes(model, names, book=book, index=index)
    typer.echo(f"Forgotten: {', '.join(gone)}")
    if rows is not None:
        typer.echo(f"Index: {rows} rows removed")
