"""What is exported: a finished run, or a bundle that left its run behind."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxemics.core.config import Config
from proxemics.core.errors import DataError
from proxemics.core.files import read_json
from proxemics.data.labels import LabelMap
from proxemics.models.bundle import load_bundle, load_labels
from proxemics.models.embedder import Embedder
from proxemics.runtime.layout import CERTAINTY, PROBE, read_card
from proxemics.training.run_folder import RunFolder


@dataclass(frozen=True)
class Source:
    """A model with everything that is known about it.

    Attributes:
        bundle: folder of the bundle.
        embedder: the model.
        labels: its training classes, if they are known.
        run: the run folder, or None for a bundle alone.
        config: of the run.
        result: ``result.json`` of the run.
        probe: the bias card, if there is one and it is about this model.
        certainty: ``certainty.json`` of a bundle without a run.
        card: ``card.md`` of a bundle without a run.
    """

    bundle: Path
    embedder: Embedder
    labels: LabelMap | None
    run: RunFolder | None = None
    config: Config | None = None
    result: dict[str, Any] | None = None
    probe: dict[str, Any] | None = None
    certainty: dict[str, Any] | None = None
    card: str | None = None


def open_source(path: str | Path) -> Source:
    """Open a run folder or a bundle folder.

    Raises:
        DataError: it is neither, or the run is not finished.
        ModelError: the bundle is damaged.
    """
    folder = Path(path)
    if (folder / "bundle" / "model.safetensors").is_file():
        return _open_run(RunFolder(folder))
    if (folder / "model.safetensors").is_file():
        embedder = load_bundle(folder)
        return Source(
            bundle=folder,
            embedder=embedder,
            labels=load_labels(folder),
            probe=_probe(folder / PROBE, embedder),
            certainty=_read(folder / CERTAINTY),
            card=read_card(folder),
        )
    if (folder / "config.yaml").exists():
        raise DataError(f"The run in {folder} is not finished; give its `proxemics train` command again to go on.")
    raise DataError(f"{folder} holds no model; give a run folder or a bundle folder written by `proxemics train`.")


def _open_run(run: RunFolder) -> Source:
    embedder = load_bundle(run.bundle)
    return Source(
        bundle=run.bundle,
        embedder=embedder,
        labels=load_labels(run.bundle),
        run=run,
        config=run.read_config() if run.config.exists() else None,
        result=_read(run.result),
        probe=_probe(run.probe, embedder),
    )


def _probe(path: Path, embedder: Embedder) -> dict[str, Any] | None:
    """Read a bias card; the folder that its pictures were in stays at home."""
    card = _read(path)
    about = None if card is None else card.get("model")
    if card is None or not isinstance(about, dict) or about.get("fingerprint") != embedder.fingerprint():
        return None
    return {**card, "source": place_name(card.get("source"))}


def place_name(source: object) -> str:
    """Return the last part of a path, so that no folder of this machine travels with a bundle.

    Example:
        >>> place_name("/home/ada/photos/"), place_name(None)
        ('photos', '')
    """
    return Path(str(source)).name if source else ""


def _read(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    content = read_json(path)
    return content if isinstance(content, dict) else None
