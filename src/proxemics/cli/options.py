"""Options that several verbs share, and how they become a configuration."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from proxemics.core.config import Config

# Typer reads these annotations at run time on Python 3.10 too, hence Optional.
SourceArgument = Annotated[
    str | None, typer.Argument(metavar="[SOURCE]", help="Folder of class folders, or a CSV or Parquet table.")
]
DataOption = Annotated[str | None, typer.Option("--data", help="The same as SOURCE.")]
WhereOption = Annotated[
    list[str] | None, typer.Option("--where", metavar="COLUMN=VALUE", help="Keep only these rows; may be repeated.")
]
ConfigOption = Annotated[Path | None, typer.Option("--config", help="YAML file; see `proxemics config show`.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change one value, e.g. train.epochs=3; may be repeated."),
]
MethodOption = Annotated[
    list[str] | None,
    typer.Option("--method", metavar="NAME", help="Add a method with its defaults, e.g. couce; may be repeated."),
]
SeedOption = Annotated[int | None, typer.Option("--seed", help="Seed of split, sampler, augmentation and weights.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the result.")]


def config_from(
    source: str | None,
    data: str | None,
    where: Sequence[str] | None,
    config: Path | None,
    assignments: Sequence[str] | None,
    *,
    seed: int | None = None,
    devices: int | None = None,
    methods: Sequence[str] | None = None,
) -> Config:
    """Combine a YAML file with the options; the more special one wins.

    Raises:
        ConfigError: two sources are named, or a value is wrong.
    """
    from proxemics.core.config import load_config
    from proxemics.core.errors import ConfigError

    if source is not None and data is not None and source != data:
        raise ConfigError(f"Two sources given, {source!r} and --data {data!r}; name one.")
    extra: list[str] = list(assignments or [])
    built = load_config(config, extra)
    changed: dict[str, Any] = built.model_dump()
    chosen = source if source is not None else data
    if chosen is not None:
        changed["data"]["source"] = chosen
    for item in where or []:
        column, equals, value = item.partition("=")
        if not equals:
            raise ConfigError(f"--where {item!r}: write COLUMN=VALUE, for example --where dataset=birds.")
        changed["data"]["where"][column] = value
    for name in methods or []:
        changed["methods"].setdefault(name, {})
    if seed is not None:
        changed["seed"] = seed
    if devices is not None:
        changed["train"]["devices"] = devices
    from proxemics.core.config import make_config

    return make_config(changed)
