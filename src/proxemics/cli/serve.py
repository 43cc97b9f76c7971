"""`proxemics serve`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from proxemics.serve.settings import ServeSettings


def serve(
    model: Annotated[Path, typer.Argument(help="A run folder or a bundle folder.")],
    index: Annotated[str, typer.Option("--index", metavar="ADDRESS", help="Folder or address of the index.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 picks a free one.")] = 8000,
    pictures: Annotated[
        Path | None, typer.Option("--pictures", metavar="ROOT", help="Folder that paths in the index lead into.")
    ] = None,
    key_file: Annotated[
        Path | None, typer.Option("--key-file", metavar="FILE", help="File with the API key that clients must send.")
    ] = None,
    no_key: Annotated[bool, typer.Option("--no-key", help="Let other machines in without a key.")] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", metavar="NAME", help="Name that browsers may use; may be repeated."),
    ] = None,
    allow_enrol: Annotated[
        bool, typer.Option("--allow-enrol", help="Let clients add and remove classes of the class book.")
    ] = False,
    book: Annotated[
        Path | None, typer.Option("--book", help="Folder of the class book; default: beside the weights.")
    ] = None,
    feedback: Annotated[
        Path | None, typer.Option("--feedback", metavar="FILE", help="SQLite file for marks; default: in the index.")
    ] = None,
    max_mb: Annotated[float, typer.Option("--max-mb", help="Largest request, MB.")] = 20,
    max_megapixels: Annotated[float, typer.Option("--max-megapixels", help="Largest picture, megapixels.")] = 50,
    rate: Annotated[float, typer.Option("--rate", help="Searches a second for each client; 0: no limit.")] = 20,
    batch: Annotated[int, typer.Option("--batch", help="Pictures that the model embeds in one go at most.")] = 16,
    engine: Annotated[str, typer.Option("--engine", help="auto, torch, onnxruntime or openvino.")] = "auto",
    precision: Annotated[str, typer.Option("--precision", help="float32 or bf16.")] = "float32",
    threads: Annotated[int | None, typer.Option("--threads", help="Of the engine; default: all cores.")] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Answer searches over HTTP, with a page to search by picture.

    Listens on this machine alone unless --host says otherwise. Ctrl-C stops it.
    """
    _check_installed()
    from proxemics.serve.settings import read_key

    settings = _settings(
        {
            "model": model,
            "index": index,
            "host": host,
            "port": port,
            "pictures": pictures,
            "key": read_key(key_file) if key_file is not None else None,
            "no_key": no_key,
            "allow_hosts": tuple(allow_host or ()),
            "allow_enrol": allow_enrol,
            "classes": book,
            "feedback": feedback,
            "max_bytes": _whole("max-mb", max_mb, 1e6),
            "max_pixels": _whole("max-megapixels", max_megapixels, 1e6),
            "rate": rate,
            "burst": max(1, _whole("rate", rate, 3)),
            "batch_size": batch,
            "engine": engine,
            "precision": precision,
            "threads": threads,
        }
    )
    raise typer.Exit(_serve(settings, open_page=open_page))


def _serve(settings: ServeSettings, *, open_page: bool) -> int:
    import webbrowser

    from proxemics.serve.run import address_of, listen, run
    from proxemics.serve.settings import check_exposure

    check_exposure(settings)
    with listen(settings.host, settings.port) as opened:
        from proxemics.serve.app import create_app  # loads torch, which wrong options need not wait for

        app = create_app(settings)
        address = address_of(opened)

        def ready() -> None:
            typer.echo(f"Serving at {address} (Ctrl-C stops)")
            if open_page:
                webbrowser.open(address)

        return run(app, opened, settings, ready=ready)


def _whole(option: str, number: float, times: float) -> int:
    import math

    from proxemics.core.errors import ConfigError

    if not math.isfinite(number):
        raise ConfigError(f"--{option} {number}: give a finite number.")
    return round(number * times)


def _settings(values: dict[str, Any]) -> ServeSettings:
    """Check the options; the first that is wrong is named as it is written on the command line."""
    from pydantic import ValidationError

    from proxemics.core.errors import ConfigError
    from proxemics.serve.settings import ServeSettings

    names = {"max_bytes": "max-mb", "max_pixels": "max-megapixels", "batch_size": "batch"}
    try:
        return ServeSettings(**values)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        raise ConfigError(f"--{names.get(name, name.replace('_', '-'))} {values[name]}: {first['msg']}.") from None


def _check_installed() -> None:
    from importlib.util import find_spec

    from proxemics.core.errors import ConfigError

    needed = {"fastapi": "fastapi", "uvicorn": "uvicorn", "python_multipart": "python-multipart", "jinja2": "jinja2"}
    needed |= {"prometheus_client": "prometheus-client"}
    absent = [package for module, package in needed.items() if find_spec(module) is None]
    if absent:
        raise ConfigError(
            f"`proxemics serve` needs {', '.join(absent)}, not installed here: pip install 'proxemics[serve]'."
        )
