"""`proxemics probe`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from proxemics.cli.options import DataOption, JsonOption, QuietOption, WhereOption

if TYPE_CHECKING:
    from rich.console import Console

PART = "probe-part.json"


def probe(
    run: Annotated[Path, typer.Argument(help="A run folder or a bundle folder.")],
    data: DataOption = None,
    where: WhereOption = None,
    split: Annotated[str, typer.Option(help="Split of the run to probe on: test, val or train.")] = "test",
    images: Annotated[int, typer.Option("--images", help="Pictures at most, classes about equal.")] = 1000,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only", metavar="PROBE", help="background, nuisance, decodability, geometry, certainty; repeat."
        ),
    ] = None,
    causes: Annotated[
        list[str] | None, typer.Option("--cause", metavar="COLUMN", help="A further column to decode; repeat.")
    ] = None,
    untrained: Annotated[
        bool, typer.Option("--untrained/--no-untrained", help="Probe the trunk before training beside it.")
    ] = True,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the draws.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="JSON file; default: probe.json in RUN, or probe-part.json beside one that says more."
        ),
    ] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Ask what a model leans on besides the object: background, nuisances, domain; its geometry and its certainty."""
    from rich.console import Console

    from proxemics.cli.evaluate import _pair
    from proxemics.cli.progress import TerminalReporter
    from proxemics.core.errors import ConfigError
    from proxemics.core.files import write_json
    from proxemics.training.probe_run import probe as measure

    if split not in ("test", "val", "train"):
        raise ConfigError(f"--split {split!r}: use test, val or train.")
    if where and data is None:
        raise ConfigError("--where needs --data: it chooses among the rows of other pictures.")
    names = [part for item in only or [] for part in item.replace(",", " ").split()]
    reporter = TerminalReporter(Console(stderr=True), quiet=quiet or as_json)
    card = measure(
        run,
        source=data,
        where=dict(_pair(item) for item in where or []),
        split=split,
        images=images,
        only=names,
        causes=causes or [],
        untrained=untrained,
        seed=seed,
        reporter=reporter,
    )
    target = out or _place(run, card, own=data is None and split == "test")
    write_json(target, card)
    if as_json:
        typer.echo(json.dumps(card, ensure_ascii=False))
    else:
        _show(card, Console())
        beside = " (probe.json says more, or is of other pictures, and stays)" if target == run / PART else ""
        typer.echo(f"Card: {target}{beside}")
    if out is None and target != run / PART and (run / "report.html").exists() and (run / "result.json").exists():
        from proxemics.report import write_report

        page = write_report(run)
        if not as_json:
            typer.echo(f"Report: {page}")


def _place(run: Path, card: dict[str, Any], *, own: bool) -> Path:
    """Return where a card goes: not over one that says more, and one of other pictures not over that of the run.

    Args:
        run: folder.
        card: the new one.
        own: it is about the test pictures of the run.
    """
    whole = run / "probe.json"
    try:
        there = json.loads(whole.read_text(encoding="utf-8"))
        there.setdefault("where", {})
        if there["model"]["fingerprint"] != card["model"]["fingerprint"]:
            return whole if own else run / PART  # it is of weights that are gone
        same = all(there[name] == card[name] for name in ("source", "split", "where"))
        known, new = ({(one["probe"], one["name"]) for one in some["numbers"]} for some in (there, card))
        more = (
            bool(set(there["probes"]) - set(card["probes"]))
            or bool(known - new)
            or there["pictures"] > card["pictures"]
            or (there["has_untrained"] and not card["has_untrained"])
        )
    except (OSError, ValueError, KeyError, TypeError):  # none, or nothing that can be read as one
        return whole
    return run / PART if (more if same else not own) else whole


def _show(card: dict[str, Any], console: Console) -> None:
    """Print the numbers as a table."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    table.add_column("probe")
    for head in ("value", "untrained", "chance"):
        table.add_column(head, justify="right")
    table.add_column("")
    arrows = {"up": "↑", "down": "↓", "": " "}
    for one in card["numbers"]:
        values = [_amount(one[key], one["unit"]) for key in ("value", "untrained", "chance")]
        table.add_row(Text(f"{one['title']} {arrows[one['better']]}"), *values, Text(one["reading"], style="dim"))
    console.print(table)
    console.print(Text(card["verdict"]))
    if card["masks"] is not None:
        console.print(Text(card["masks"]["sentence"], style="dim"))
    for name, why in card["skipped"].items():
        console.print(Text(f"Left out: {name}: {why}", style="dim"))


def _amount(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    return f"{100 * value:.1f} %" if unit == "share" else f"{value:.3g}"
