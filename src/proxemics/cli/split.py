"""`proxemics split`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from proxemics.cli.options import (
    ConfigOption,
    DataOption,
    JsonOption,
    SeedOption,
    SetOption,
    SourceArgument,
    WhereOption,
    config_from,
)


def split(
    source: SourceArgument = None,
    data: DataOption = None,
    where: WhereOption = None,
    config: ConfigOption = None,
    assignments: SetOption = None,
    out: Annotated[Path, typer.Option("--out", help="Parquet file to write.")] = Path("split.parquet"),
    seed: SeedOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make training, validation and test splits and save them to a file.

    Use the file with `proxemics train --set data.split_file=split.parquet`.
    """
    from proxemics.data.split_files import save_split
    from proxemics.training.tables import count_splits, prepare_table

    settings = config_from(source, data, where, config, assignments, seed=seed)
    table = prepare_table(settings)
    save_split(table, out)
    counts = count_splits(table)
    if as_json:
        typer.echo(json.dumps({"file": str(out), "splits": counts}, ensure_ascii=False))
        return
    for name, one in counts.items():
        typer.echo(f"{name:<6} {one['images']:>7} pictures  {one['classes']:>6} classes")
    typer.echo(f"Split:  {out}")
    typer.echo(f"Next:   proxemics train --set data.split_file={out}")
