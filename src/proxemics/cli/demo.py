"""`proxemics demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from proxemics.cli.options import JsonOption, QuietOption, SetOption

DEMO_SETTINGS = (
    "data.size=96",
    "data.cache=memory",
    "train.epochs=8",
    "train.batch_size=60",
    "train.per_class=5",
)


def demo(
    out: Annotated[Path, typer.Option("--out", help="Run folder; the pictures go beside it.")] = Path("runs/demo"),
    rho: Annotated[float, typer.Option(help="How often a training picture lies on the background of its class.")] = 0.5,
    seed: Annotated[int, typer.Option(help="Seed of pictures and training.")] = 0,
    assignments: SetOption = None,
    restart: Annotated[bool, typer.Option("--restart", help="Throw away what the run folder holds.")] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Render confounded glyphs, train on them, measure on unseen glyphs and write the report.

    Objects are letters of fonts, backgrounds are photographs; no download is needed. Takes a few minutes on two cores.
    """
    from pydantic import ValidationError

    from proxemics.cli.run import run_training
    from proxemics.core.config import make_config
    from proxemics.core.errors import ConfigError
    from proxemics.data.confounded import ConfoundedSpec, write

    try:
        spec = ConfoundedSpec(rho=rho, seed=seed)
    except ValidationError as error:
        raise ConfigError(f"--rho {rho} must lie between 0 and 1 ({error.errors()[0]['msg']}).") from None
    pictures = out.with_name(f"{out.name}-pictures")
    table = write(spec, pictures)
    if not (quiet or as_json):
        typer.echo(
            f"Rendered {spec.num_images} pictures of {spec.train_classes + spec.test_classes} glyphs: {pictures}",
            err=True,
        )
    base = {"seed": seed, "data": {"source": str(table)}}
    config = make_config(base, [*DEMO_SETTINGS, *(assignments or [])])
    run_training(config, out, restart=restart, write_report=True, quiet=quiet, as_json=as_json)
