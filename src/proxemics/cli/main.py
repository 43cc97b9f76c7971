"""The command `proxemics`: its verbs, its exit codes, and one line for every error.

Exit codes: 0 done; 1 done, but findings are errors (doctor) or numbers differ (reproduce); 2 wrong input; 130
interrupted.
"""

from __future__ import annotations

import sys
import warnings
from typing import Annotated, TextIO

import typer

from proxemics.__about__ import __version__
from proxemics.cli import bench as bench_verbs
from proxemics.cli import config as config_verbs
from proxemics.cli import data as data_verbs
from proxemics.cli import hub as hub_verbs
from proxemics.cli import index as index_verbs
from proxemics.cli import inspect as inspect_verbs
from proxemics.cli.calibrate import calibrate
from proxemics.cli.compare import compare
from proxemics.cli.demo import demo
from proxemics.cli.doctor import doctor
from proxemics.cli.embed import embed
from proxemics.cli.enrol import enrol, forget
from proxemics.cli.evaluate import evaluate
from proxemics.cli.export import export
from proxemics.cli.identify import classes, identify
from proxemics.cli.probe import probe
from proxemics.cli.report import report
from proxemics.cli.reproduce import reproduce
from proxemics.cli.serve import serve
from proxemics.cli.settings_command import SettingsCommand
from proxemics.cli.split import split
from proxemics.cli.sweep import sweep
from proxemics.cli.train import train

app = typer.Typer(
    name="proxemics",
    help="Train image embeddings that hold up on classes and domains never seen in training.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
TRAINING = (doctor, split, train, evaluate, probe, report, sweep, compare, reproduce, demo)
WORK = (embed, export, calibrate, enrol, identify, classes, forget, serve)
for verb in (*TRAINING, *WORK):
    app.command(cls=SettingsCommand)(verb)
app.add_typer(data_verbs.app, name="data")
app.add_typer(bench_verbs.app, name="bench")
app.add_typer(index_verbs.app, name="index")
app.add_typer(hub_verbs.app, name="hub")
app.add_typer(inspect_verbs.app, name="inspect")
app.add_typer(config_verbs.app, name="config")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"proxemics {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Train image embeddings that hold up on classes and domains never seen in training."""


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning as one line, without the place in the code."""
    typer.echo(f"Warning: {' '.join(str(message).split())}", err=True)


def main() -> None:
    """Run the command line; errors made on purpose end with one line and exit code 2."""
    from proxemics.core.errors import ProxemicsError

    warnings.filterwarnings("ignore", module="torch|timm|lightning_fabric")
    warnings.showwarning = _show_warning
    try:
        app()
    except ProxemicsError as error:
        typer.echo(f"Error: {' '.join(str(error).split())}", err=True)
        sys.exit(2)
    except OSError as error:
        typer.echo(f"Error: {error.strerror or error}{f': {error.filename}' if error.filename else ''}", err=True)
        sys.exit(2)
