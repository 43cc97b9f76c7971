"""`proxemics config schema|show|validate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from proxemics.cli.options import ConfigOption, SetOption

app = typer.Typer(help="Look at and check configurations.", no_args_is_help=True)


@app.command()
def schema() -> None:
    """Print the JSON schema of the configuration, with the meaning of every key."""
    from proxemics.core.config import Config

    typer.echo(json.dumps(Config.model_json_schema(), indent=2, ensure_ascii=False))


@app.command()
def show(config: ConfigOption = None, assignments: SetOption = None) -> None:
    """Print the complete configuration: the defaults, a file and --set put together."""
    from proxemics.core.config import dump_config, load_config

    typer.echo(dump_config(load_config(config, assignments or [])), nl=False)


@app.command()
def validate(file: Annotated[Path, typer.Argument(help="YAML file to check.")], assignments: SetOption = None) -> None:
    """Check a configuration file; exit code 2 and the key when something is wrong."""
    from proxemics.core.config import load_config
    from proxemics.losses.build import build_loss

    config = load_config(file, assignments or [])
    build_loss(config.loss.name, 2, 8, config.loss.options)
    typer.echo(f"{file} is valid.")
