"""`proxemics embed`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from proxemics.cli.options import QuietOption, SetOption, WhereOption


def embed(
    model: Annotated[Path, typer.Argument(help="A run folder or a bundle folder.")],
    source: Annotated[str, typer.Argument(help="Folder of pictures, or a CSV or Parquet table.")],
    out: Annotated[Path, typer.Option("--out", help="A .parquet file, or .npy with a .csv of paths beside it.")] = Path(
        "embeddings.parquet"
    ),
    kappa: Annotated[
        bool,
        typer.Option(
            "--kappa",
            help="Also write kappa, the length of each embedding before it is normalised, as a column beside path and "
            "label. It means certainty only for models trained with probabilistic proxies.",
        ),
    ] = False,
    where: WhereOption = None,
    assignments: SetOption = None,
    quiet: QuietOption = False,
) -> None:
    """Turn pictures into embeddings, one row a picture, with path and label."""
    from rich.console import Console

    from proxemics.cli.progress import TerminalReporter
    from proxemics.core.config import make_config
    from proxemics.core.errors import ConfigError
    from proxemics.data.sources import load_table
    from proxemics.evaluation.lengths import length_varies
    from proxemics.training.build import build_fabric
    from proxemics.training.evaluate_run import open_model
    from proxemics.training.shards import embed_rows_with_certainty

    if out.suffix not in (".parquet", ".npy"):
        raise ConfigError(f"--out {out}: the name must end in .parquet or .npy.")
    config = make_config({}, [*(assignments or []), "train.devices=1"])
    filters = dict(item.partition("=")[::2] for item in where or [])
    frame = load_table(source, where=filters or None, layout=_layout(Path(source))).reset_index(drop=True)
    embedder = open_model(model)
    if kappa and not length_varies(embedder):
        raise ConfigError(
            f"--kappa: the model in {model} ends in a layer norm without a head, so all its embeddings have the same "
            "length and kappa says nothing; leave --kappa out."
        )
    fabric = build_fabric(config)
    embedder.to(fabric.device)
    reporter = TerminalReporter(Console(stderr=True), quiet=quiet)
    embeddings, lengths = embed_rows_with_certainty(
        config, embedder, frame, fabric=fabric, cache=None, reporter=reporter, task="embed"
    )
    rows = frame[["path", "label", "domain"]].copy()
    if kappa:
        rows["kappa"] = lengths
        reporter.say(_about_kappa(model))
    _write(out, rows, embeddings)
    typer.echo(f"Embeddings: {out} ({embeddings.shape[0]} x {embeddings.shape[1]}, float32, unit length)")
    if kappa:
        typer.echo(f"Kappa: column kappa of {out if out.suffix == '.parquet' else out.with_suffix('.csv')}")


def _layout(source: Path) -> Literal["class", "flat"]:
    """Take a folder without sub-folders for pictures without labels."""
    is_flat = source.is_dir() and not any(child.is_dir() for child in source.iterdir())
    return "flat" if is_flat else "class"


def _about_kappa(model: Path) -> str:
    """Say how kappa of this model can be read."""
    from proxemics.evaluation.lengths import length_is_trained
    from proxemics.training.run_folder import RunFolder

    run = RunFolder(model)
    if not run.config.exists():
        return "Note: a bundle does not tell how it was trained; without probabilistic proxies, kappa is no certainty."
    if length_is_trained(run.read_config().methods):
        return "Note: kappa is the concentration that this model gives a picture; higher is more certain."
    return "Note: no term of this run's loss looked at lengths, so kappa was not trained to mean certainty."


def _write(out: Path, rows: Any, embeddings: Any) -> None:
    import numpy as np

    from proxemics.core.files import atomic_path

    if out.suffix == ".npy":
        with atomic_path(out) as temporary:
            np.save(temporary, embeddings, allow_pickle=False)
        with atomic_path(out.with_suffix(".csv")) as temporary:
            rows.to_csv(temporary, index=False)
        return
    rows["embedding"] = list(embeddings)
    with atomic_path(out) as temporary:
        rows.to_parquet(temporary, index=False)
