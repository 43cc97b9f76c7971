"""`proxemics embed`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from proxemics.cli.options import QuietOption, WhereOption

if TYPE_CHECKING:
    from proxemics.export.jobs.run import JobReport

SETTINGS = ("data.label", "data.domain", "data.root", "data.max_pixels", "train.device")
"""What a ``--set`` of this verb may name."""


def embed(
    model: Annotated[Path, typer.Argument(help="A run folder or a bundle folder.")],
    source: Annotated[
        str,
        typer.Argument(
            help="Folder of pictures, CSV or Parquet table, Parquet with pictures inside, zip or tar archive."
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out", help="A .parquet file, or .npy with a .csv of ids and a .json about the model beside it."
        ),
    ] = Path("embeddings.parquet"),
    kappa: Annotated[
        bool,
        typer.Option(
            "--kappa",
            help="Also write kappa, the length of each embedding before it is normalised, as a column beside path and "
            "label. It means certainty only for models trained with probabilistic proxies.",
        ),
    ] = False,
    keep: Annotated[
        list[str] | None,
        typer.Option("--keep", metavar="COLUMN", help="Carry this column of the table along; may be repeated."),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            "--engine",
            help="auto (the fastest exact one), torch, onnxruntime, openvino, or ray: the same job on a Ray cluster; "
            "ray:onnxruntime names the engine there.",
        ),
    ] = "auto",
    precision: Annotated[
        str,
        typer.Option("--precision", help="float32, bf16 (faster, a little off), or int8 (of an exported bundle)."),
    ] = "float32",
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, help="Threads that read and embed; default: all cores.")
    ] = None,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Pictures a forward pass.")] = 32,
    on_error: Annotated[
        Literal["stop", "skip"],
        typer.Option("--on-error", help="At a picture that cannot be read: stop, or skip it and list it."),
    ] = "stop",
    restart: Annotated[
        bool, typer.Option("--restart", help="Throw away what an unfinished job of other options left.")
    ] = False,
    ray_address: Annotated[
        str | None,
        typer.Option("--ray-address", metavar="HOST:PORT", help="Of a running Ray cluster; default: one for this job."),
    ] = None,
    where: WhereOption = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="data.label, data.domain, data.root, data.max_pixels or train.device; may be repeated.",
        ),
    ] = None,
    quiet: QuietOption = False,
) -> None:
    """Turn pictures into embeddings, one row a picture, with id, path and label. Killed, the same command goes on."""
    from rich.console import Console

    from proxemics.cli.evaluate import _pair
    from proxemics.cli.progress import TerminalReporter
    from proxemics.core.config import make_config
    from proxemics.core.errors import ConfigError
    from proxemics.evaluation.lengths import length_varies
    from proxemics.export.jobs.output import SUFFIXES
    from proxemics.export.jobs.pictures import open_pictures
    from proxemics.export.jobs.run import JobOptions, embed_pictures
    from proxemics.training.evaluate_run import open_model

    if out.suffix not in SUFFIXES:
        raise ConfigError(f"--out {out}: the name must end in .parquet or .npy.")
    config = make_config({}, assignments or [])
    _check_settings(assignments or [])
    if kappa and not length_varies(open_model(model)):
        raise ConfigError(
            f"--kappa: the model in {model} ends in a layer norm without a head, so all its embeddings have the same "
            "length and kappa says nothing; leave --kappa out."
        )
    on_ray, inner = _ray(engine, ray_address)
    pictures = open_pictures(
        source,
        where=dict(_pair(item) for item in where or []),
        label=config.data.label,
        domain=config.data.domain,
        keep=keep or [],
        on_error=on_error,
        root=config.data.root,
    )
    options = JobOptions(
        engine=inner,
        precision=precision,
        threads=threads,
        device=config.train.device,
        batch=batch,
        kappa=kappa,
        on_error=on_error,
        restart=restart,
        max_pixels=config.data.max_pixels,
        ray=on_ray,
        ray_address=ray_address,
    )
    reporter = TerminalReporter(Console(stderr=True), quiet=quiet)
    report = embed_pictures(model, pictures, out, options, reporter=reporter)
    if kappa:
        reporter.say(_about_kappa(model))
    reporter.say(_rate(report))
    _tell(report, kappa)


def _check_settings(assignments: Sequence[str]) -> None:
    """Refuse what would change nothing: size and preprocessing are those of the model."""
    from proxemics.core.errors import ConfigError

    for key in (item.partition("=")[0].strip() for item in assignments):
        if key not in SETTINGS:
            raise ConfigError(f"--set {key}: it changes nothing here. Settings of `embed`: {', '.join(SETTINGS)}.")


def _ray(engine: str, address: str | None) -> tuple[bool, str]:
    """Read `ray` and `ray:NAME`; everything else is the name of an engine on this machine."""
    from proxemics.core.errors import ConfigError

    kind, _, inner = engine.partition(":")
    if kind == "ray":
        return True, inner or "auto"
    if address is not None:
        raise ConfigError(f"--ray-address {address} goes with --engine ray; add it.")
    return False, engine


def _rate(report: JobReport) -> str:
    if not report.embedded:
        return "All pictures were done already."
    return (
        f"{report.embedded} pictures in {report.seconds:.1f} s, {report.pictures_per_s:.0f} pictures/s, "
        "read and embedded."
    )


def _tell(report: JobReport, kappa: bool) -> None:
    out = report.out
    typer.echo(f"Embeddings: {out} ({report.count} x {report.dim}, float32, unit length)")
    if kappa:
        typer.echo(f"Kappa: column kappa of {out if out.suffix == '.parquet' else out.with_suffix('.csv')}")
    if report.unreadable is not None:
        typer.echo(f"Left out: {report.skipped} pictures that cannot be read, listed in {report.unreadable}")


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
