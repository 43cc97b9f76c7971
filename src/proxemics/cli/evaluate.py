"""`proxemics evaluate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from proxemics.cli.options import DataOption, JsonOption, QuietOption, SetOption, WhereOption


def evaluate(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="A run or bundle folder; four with --protocol musgrave.")
    ],
    protocol: Annotated[
        str | None, typer.Option("--protocol", help="As evaluation.protocol, e.g. single_domain; default: the run's.")
    ] = None,
    data: DataOption = None,
    where: WhereOption = None,
    split: Annotated[str, typer.Option(help="Split of the run to measure on: test or val.")] = "test",
    assignments: SetOption = None,
    out: Annotated[Path | None, typer.Option("--out", help="JSON file; default: evaluation.json in RUN.")] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Measure a model on its test classes, or on all pictures of --data.

    Settings of the run can be changed, e.g. --set evaluation.recall_at=[1,10].
    """
    from rich.console import Console

    from proxemics.cli.progress import TerminalReporter
    from proxemics.cli.run import show_result
    from proxemics.core.config import Config, make_config
    from proxemics.core.errors import ConfigError
    from proxemics.core.files import write_json
    from proxemics.training.evaluate_run import evaluate as measure
    from proxemics.training.run_folder import RunFolder

    if split not in ("test", "val", "train"):
        raise ConfigError(f"--split {split!r}: use test or val (or train, to see how much was learned by heart).")
    if where and data is None:
        raise ConfigError("--where needs --data: it chooses among the rows of other pictures.")
    run, *more = runs
    folder = RunFolder(run)
    base = folder.read_config() if folder.config.exists() else Config()
    chosen = [f"evaluation.protocol={protocol}"] if protocol is not None else []
    config = make_config(base.model_dump(), [*chosen, *(assignments or [])])
    filters = dict(_pair(item) for item in where or [])
    reporter = TerminalReporter(Console(stderr=True), quiet=quiet or as_json)
    result = measure(run, more=more, source=data, where=filters, split=split, config=config, reporter=reporter)
    target = out or run / "evaluation.json"
    write_json(target, result)
    if as_json:
        typer.echo(json.dumps(result, ensure_ascii=False))
        return
    show_result(result, Console())
    typer.echo(f"Result: {target}")


def _pair(item: str) -> tuple[str, str]:
    from proxemics.core.errors import ConfigError

    column, equals, value = item.partition("=")
    if not equals:
        raise ConfigError(f"--where {item!r}: write COLUMN=VALUE.")
    return column, value
