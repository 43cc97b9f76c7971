"""`proxemics train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from proxemics.cli.options import (
    ConfigOption,
    DataOption,
    JsonOption,
    MethodOption,
    QuietOption,
    SeedOption,
    SetOption,
    SourceArgument,
    WhereOption,
    config_from,
)


def train(
    source: SourceArgument = None,
    data: DataOption = None,
    where: WhereOption = None,
    config: ConfigOption = None,
    assignments: SetOption = None,
    out: Annotated[Path | None, typer.Option("--out", help="Run folder; default: runs/<name of the data>.")] = None,
    method: MethodOption = None,
    seed: SeedOption = None,
    devices: Annotated[int | None, typer.Option("--devices", help="Processes that share each batch.")] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Throw away what the run folder holds.")] = False,
    report: Annotated[bool, typer.Option(help="Write report.html at the end.")] = True,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Train on a folder or table, measure on unseen classes and write a report.

    Classes are split so that no test class is seen in training, and a part of the training classes chooses the epoch.
    A run that was interrupted goes on when the same command is given again.
    """
    from proxemics.cli.run import run_training
    from proxemics.training.tables import dataset_name

    settings = config_from(source, data, where, config, assignments, seed=seed, devices=devices, methods=method)
    folder = out or Path("runs") / dataset_name(settings)
    run_training(settings, folder, restart=restart, write_report=report, quiet=quiet, as_json=as_json)
