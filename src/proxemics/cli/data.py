"""`proxemics data`: list, check, table, fetch, synth and emoji."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from proxemics.cli.options import QuietOption

if TYPE_CHECKING:
    import pandas as pd

app = typer.Typer(help="Benchmark data sets: check, fetch and rebuild them.", no_args_is_help=True)

NameArgument = Annotated[str, typer.Argument(help="Name of the data set; see `proxemics data list`.")]
RootArgument = Annotated[Path, typer.Argument(help="Folder that holds its official files.")]
ToOption = Annotated[Path, typer.Option("--to", help="Folder to write to; created.")]
SourceOption = Annotated[
    str | None,
    typer.Option("--source", help="Training domain (PACS, Office-Home, DomainNet); `all` splits by class alone."),
]
SubsetOption = Annotated[bool, typer.Option("--subset", help="Accept other numbers and class lists than the official.")]


@app.callback()
def _root() -> None:
    """Benchmark data sets: check, fetch and rebuild them."""


@app.command("list")
def list_sets() -> None:
    """Name the data sets, their size, how to get them, and their licences."""
    from proxemics.data.benchmarks import BENCHMARKS
    from proxemics.data.benchmarks.synth_domains import SOURCES

    for name, one in BENCHMARKS.items():
        parts = ", ".join(f"{part} {want.images:,}" for part, want in one.release.expected.parts.items())
        ways = [file.url != "" for file in one.release.downloads]
        way = "fetch" if ways and all(ways) else "fetch checks and unpacks what you put there" if ways else "by hand"
        typer.echo(f"{name}: {one.release.title} ({parts}); {way}.")
        typer.echo(f"    {one.release.where}")
        typer.echo(f"    {one.release.licence}")
    for name, source in SOURCES.items():
        typer.echo(f"{name}: synthetic domains of {source}; `proxemics data synth {name} ROOT --to DIR`.")
    typer.echo("emoji5: 1,560 emoji in five styles of drawing; `proxemics data emoji --to DIR`.")


@app.command()
def check(name: NameArgument, root: RootArgument, source: SourceOption = None, subset: SubsetOption = False) -> None:
    """Hold a folder against the official release: files, class list, numbers, splits; print a hash of them."""
    from proxemics.data.table import fingerprint

    frame = _load(name, root, source, subset)
    _show(frame)
    typer.echo(
        f"Hash:   {fingerprint(frame)} (paths, sizes, classes, domains and splits; compare it with another copy)"
    )


@app.command()
def table(
    name: NameArgument,
    root: RootArgument,
    out: Annotated[Path, typer.Option("--out", help="CSV file to write.")] = Path("table.csv"),
    source: SourceOption = None,
    subset: SubsetOption = False,
) -> None:
    """Check a data set and write its table (path, label, domain, split, ...) for `proxemics train`."""
    import os

    from proxemics.core.files import atomic_path

    frame = _load(name, root, source, subset)
    base = frame.attrs["root"]
    written = frame.assign(path=[Path(os.path.relpath(path, base)).as_posix() for path in frame["path"]])
    with atomic_path(out) as temporary:
        written.to_csv(temporary, index=False)
    _show(frame)
    typer.echo(f"Table:  {out}")
    typer.echo(f"Next:   proxemics train --data {out} --set data.root={base}")


@app.command()
def fetch(name: NameArgument, to: ToOption, quiet: QuietOption = False) -> None:
    """Download, verify and unpack a data set where there is an official address; a broken download goes on."""
    from proxemics.data.benchmarks import find_benchmark
    from proxemics.data.benchmarks.fetch import fetch_release

    release = find_benchmark(name).release
    typer.echo(f"{release.title}: {release.licence}")
    results = _with_bar(quiet, lambda report: fetch_release(release, to, report=report))
    for one in results:
        if one.state == "by hand":
            typer.echo(f"{one.file}: no official address; put it into {to} and run this again.")
            continue
        known = f"checksum of the {one.verified}" if one.verified else "NOT VERIFIED, no official checksum is known"
        typer.echo(f"{one.file}: {one.state}, {one.bytes:,} bytes, {known}; SHA-256 {one.sha256}")
    if any(one.state == "by hand" for one in results):
        typer.echo(release.where)
        raise typer.Exit(1)
    typer.echo(f"Next:   proxemics data check {name} {to}")


@app.command()
def synth(
    name: Annotated[str, typer.Argument(help="cub-synthdomains or cars-synthdomains.")],
    root: Annotated[Path, typer.Argument(help="Folder with the official CUB-200-2011 or Cars-196.")],
    to: ToOption,
    subset: SubsetOption = False,
    quiet: QuietOption = False,
) -> None:
    """Render the test classes of CUB or Cars in seven synthetic domains."""
    from proxemics.core.errors import DataError, did_you_mean
    from proxemics.data.benchmarks.synth_domains import SOURCES, write_synth_domains

    if name not in SOURCES:
        raise DataError(f"Unknown data set {name!r}.{did_you_mean(name, SOURCES)} There are: {', '.join(SOURCES)}.")
    frame = _load(SOURCES[name], root, None, subset)
    written = _with_bar(
        quiet,
        lambda report: write_synth_domains(
            frame, to, name=name, progress=lambda now, total: report("pictures", now, total)
        ),
    )
    _written(written)


@app.command()
def emoji(
    to: ToOption,
    registry: Annotated[
        str | None, typer.Option("--registry", help="npm registry; default: what npm is set to.")
    ] = None,
    quiet: QuietOption = False,
) -> None:
    """Build Emoji-5 from the icon sets that npm serves: 1,560 classes in five styles of drawing."""
    from proxemics.data.benchmarks.emoji import PACKAGES, build_emoji

    for package in PACKAGES.values():
        typer.echo(f"{package.name} {package.version}: {package.licence}")
    written = _with_bar(
        quiet,
        lambda report: build_emoji(to, registry=registry, progress=lambda now, total: report("pictures", now, total)),
    )
    _written(written)


def _load(name: str, root: Path, source: str | None, subset: bool) -> pd.DataFrame:
    from proxemics.core.errors import DataError
    from proxemics.data.benchmarks import find_benchmark

    one = find_benchmark(name)
    options: dict[str, Any] = {"expected": None} if subset else {}
    if source is not None:
        if not one.domains:
            raise DataError(f"{one.release.title} has no choice of a source domain. Leave --source out.")
        options["source"] = None if source == "all" else source
    return one.load(root, **options)


def _show(frame: pd.DataFrame) -> None:
    columns = [name for name in ("split", "role", "domain") if name in frame and frame[name].ne("").any()]
    for key, rows in frame.groupby(columns, sort=True):
        name = " ".join(str(part) or "unused" for part in key)
        typer.echo(f"{name:<28} {len(rows):>9,} pictures  {rows['label'].nunique():>6,} classes")


def _written(path: Path) -> None:
    typer.echo(f"Table:  {path}")
    typer.echo(f"Next:   proxemics train {path}")


def _with_bar(quiet: bool, work: Callable[[Callable[[str, int, int | None], None]], Any]) -> Any:
    """Do some work that reports (name, done, total), with a bar on the terminal."""
    from rich.console import Console
    from rich.progress import Progress

    bar = Progress(console=Console(stderr=True), disable=quiet)
    tasks: dict[str, Any] = {}

    def report(name: str, done: int, total: int | None) -> None:
        if name not in tasks:
            bar.start()  # not before: an error that comes first is then the only line
            tasks[name] = bar.add_task(name, total=total)
        bar.update(tasks[name], completed=done, total=total)

    try:
        return work(report)
    finally:
        if tasks:
            bar.stop()
