"""`proxemics calibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from proxemics.cli.options import JsonOption, QuietOption, SetOption, WhereOption

if TYPE_CHECKING:
    from rich.console import Console

    from proxemics.evaluation.operating_point import Rate, Threshold

PICTURES = "1,3,5"


def calibrate(
    model: Annotated[Path, typer.Argument(help="A run folder or a bundle folder.")],
    kind: Annotated[
        Literal["verify", "identify"],
        typer.Option("--for", help="verify: compare two pictures; identify: look one up among enrolled classes."),
    ] = "verify",
    target_fmr: Annotated[
        float | None,
        typer.Option(
            "--target-fmr", help="verify: share of pairs of different classes that may match; 0.001 if not given."
        ),
    ] = None,
    target_fpir: Annotated[
        float | None,
        typer.Option(
            "--target-fpir",
            help="identify: share of pictures of unknown classes that may be given a class; 0.01 if not given.",
        ),
    ] = None,
    data: Annotated[
        str | None, typer.Option("--data", help="Other pictures: a folder of class folders, or a CSV or Parquet table.")
    ] = None,
    where: WhereOption = None,
    per_class: Annotated[
        bool, typer.Option("--per-class", help="verify: a threshold for each class as well, for these very classes.")
    ] = False,
    gallery: Annotated[
        int | None,
        typer.Option(
            "--gallery",
            help="identify: how many classes are enrolled; those of the book if not given, else all but one.",
        ),
    ] = None,
    pictures: Annotated[
        str,
        typer.Option("--pictures", metavar="N,N", help="identify: enrolled pictures of a class, one threshold each."),
    ] = PICTURES,
    template: Annotated[
        Literal["centroid", "nearest"],
        typer.Option("--template", help="identify: score against the centroid of a class, or its nearest picture."),
    ] = "centroid",
    cautious: Annotated[
        bool, typer.Option("--cautious", help="Take the upper end of the interval instead of the estimate.")
    ] = False,
    level: Annotated[float, typer.Option("--level", help="Confidence of the intervals.")] = 0.95,
    min_errors: Annotated[
        int, typer.Option("--min-errors", help="Errors to expect at the target, or it is refused; 3 at the least.")
    ] = 30,
    allow_seen: Annotated[
        bool, typer.Option("--allow-seen", help="Accept classes that are called like training classes.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for thresholds.json; default: beside the weights.")
    ] = None,
    assignments: SetOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Find the similarity above which two pictures count as one class, or a picture counts as known.

    It is measured on the validation classes of the run, which training did not see, or on the pictures of --data.
    """
    from rich.console import Console

    from proxemics.cli.progress import TerminalReporter
    from proxemics.core.errors import ConfigError
    from proxemics.search.classes.calibration import Wanted, calibrate_model

    if where and data is None:
        raise ConfigError("--where needs --data: it chooses among the rows of other pictures.")
    wanted = Wanted(
        kind=kind,
        target=_target(kind, target_fmr, target_fpir),
        per_class=per_class,
        gallery=gallery,
        pictures=_counts(pictures),
        template=template,
        cautious=cautious,
        level=level,
        min_errors=min_errors,
    )
    _refuse_without_effect(kind, gallery, pictures, template)
    found = calibrate_model(
        model,
        wanted,
        data=data,
        where=dict(_pair(item) for item in where or []),
        allow_seen=allow_seen,
        out=out,
        settings=assignments or [],
        reporter=TerminalReporter(Console(stderr=True), quiet=quiet or as_json),
    )
    if as_json:
        typer.echo(found.point.model_dump_json())
        return
    _show(found.point, Console())
    typer.echo(found.sentence)
    typer.echo(f"Thresholds: {found.path}")


def _target(kind: str, fmr: float | None, fpir: float | None) -> float | None:
    from proxemics.core.errors import ConfigError

    wrong = ("--target-fpir", "--target-fmr") if kind == "verify" else ("--target-fmr", "--target-fpir")
    if (fpir if kind == "verify" else fmr) is not None:
        raise ConfigError(f"{wrong[0]} does not belong to --for {kind}; give {wrong[1]}.")
    return fmr if kind == "verify" else fpir


def _refuse_without_effect(kind: str, gallery: int | None, pictures: str, template: str) -> None:
    from proxemics.core.errors import ConfigError

    given = {"--gallery": gallery is not None, "--pictures": pictures != PICTURES, "--template": template != "centroid"}
    for option, is_given in given.items():
        if kind == "verify" and is_given:
            raise ConfigError(f"{option} does not belong to --for verify; give --for identify, or leave it out.")


def _counts(text: str) -> tuple[int, ...]:
    from proxemics.core.errors import ConfigError

    parts = text.replace(",", " ").split()
    if not parts or not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
        raise ConfigError(f"--pictures {text!r}: give whole numbers from 1 up, such as 1,3,5.")
    return tuple(int(part) for part in parts)


def _pair(item: str) -> tuple[str, str]:
    from proxemics.core.errors import ConfigError

    column, equals, value = item.partition("=")
    if not equals:
        raise ConfigError(f"--where {item!r}: write COLUMN=VALUE.")
    return column, value


def _show(point: Threshold, console: Console) -> None:
    """Print the threshold and what it costs."""
    from rich.table import Table
    from rich.text import Text

    names = ("FMR", "FNMR") if point.kind == "verify" else ("FPIR", "FNIR")
    title = "Two pictures match" if point.kind == "verify" else f"A picture is known, of {point.gallery} classes"
    table = Table(title=f"{title}, at a score from", title_justify="left")
    heads = ["threshold", names[0], names[1]]
    heads = heads if point.kind == "verify" else ["enrolled", *heads, "right at rank 1"]
    for head in heads:
        table.add_column(head, justify="right")
    if point.kind == "verify":
        table.add_row(_between(point.threshold, point.interval), _rate(point.false_match), _rate(point.miss))
    for one in point.by_count:
        rank = "-" if one.rank_one is None else f"{100 * one.rank_one:.1f} %"
        cells = (_between(one.threshold, one.interval), _rate(one.false_match), _rate(one.miss), rank)
        table.add_row(f"{one.pictures} a class", *cells)
    console.print(table)
    for line in (*_lines(point), *point.notes):
        console.print(Text(line))


def _lines(point: Threshold) -> list[str]:
    what = "pairs of different classes" if point.kind == "verify" else "pictures, each looked up without its class"
    worth = "" if point.effective is None else f", worth about {point.effective:,.0f} independent ones"
    lines = [f"Target {point.target:g}; {point.negatives:,} {what}{worth}; intervals at {100 * point.level:g} %."]
    if point.cautious:
        lines.append("The threshold is the upper end of its interval (--cautious).")
    if point.per_class:
        limits = [one.threshold for one in point.per_class.values()]
        lines.append(f"Thresholds of {len(limits)} classes: {min(limits):.4f} to {max(limits):.4f}.")
    return lines


def _between(value: float, interval: tuple[float, float]) -> str:
    return f"{value:.4f} [{interval[0]:.4f}, {interval[1]:.4f}]"


def _rate(rate: Rate) -> str:
    if rate.value is None:
        return "-"
    if rate.low is None or rate.high is None:
        return f"{100 * rate.value:.3g} %"
    return f"{100 * rate.value:.3g} % [{100 * rate.low:.3g}, {100 * rate.high:.3g}]"
