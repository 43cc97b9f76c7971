"""`proxemics hub push` and `proxemics hub pull`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from proxemics.cli.options import JsonOption

app = typer.Typer(help="Send a bundle to a model hub, or fetch one.", no_args_is_help=True)
RepoArgument = Annotated[
    str, typer.Argument(metavar="REPO", help="USER/NAME on the hub, or a folder: ./folder, /folder, file:///folder.")
]


@app.callback()
def _root() -> None:
    """Send a bundle to a model hub, or fetch one."""


@app.command()
def push(
    bundle: Annotated[Path, typer.Argument(help="A bundle folder, from `proxemics export`.")],
    repo: RepoArgument,
    public: Annotated[
        bool, typer.Option("--public", help="Make a new repository visible to everyone; it is private otherwise.")
    ] = False,
    classes: Annotated[bool, typer.Option("--classes", help="Also send the classes that were enrolled.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Send a bundle, with its card as README.md and a hash for every file."""
    from proxemics.export.hub import push as send

    where = send(bundle, repo, public=public, classes=classes)
    typer.echo(json.dumps({"pushed": where}, ensure_ascii=False) if as_json else f"Pushed: {where}")


@app.command()
def pull(
    repo: RepoArgument,
    out: Annotated[Path, typer.Option("--out", help="The bundle folder to write; an older bundle is replaced.")],
    revision: Annotated[str | None, typer.Option("--revision", help="Branch, tag or commit on the hub.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Fetch a bundle and check every file against its hash."""
    from proxemics.export.hub import pull as fetch
    from proxemics.runtime.layout import read_about

    bundle = fetch(repo, out, revision=revision)
    fingerprint = read_about(bundle)["fingerprint"]
    if as_json:
        typer.echo(json.dumps({"bundle": str(bundle), "fingerprint": fingerprint}, ensure_ascii=False))
    else:
        typer.echo(f"Bundle: {bundle} (model {fingerprint[:12]})")
