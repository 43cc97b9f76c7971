"""From a model and pictures to the vectors that are enrolled, looked up or calibrated with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from proxemics.core.config import Config, make_config
from proxemics.core.errors import DataError
from proxemics.data.folders import scan_folder
from proxemics.data.sources import load_table
from proxemics.models.embedder import Embedder
from proxemics.search.manifest import ModelKey
from proxemics.training.build import build_fabric
from proxemics.training.evaluate_run import open_model
from proxemics.training.log import Reporter, Silent
from proxemics.training.run_folder import RunFolder
from proxemics.training.shards import embed_rows_with_certainty


@dataclass(frozen=True, eq=False)
class OpenModel:
    """A model that is ready to embed.

    Attributes:
        embedder: the model.
        key: what its vectors are bound to.
        home: the folder that holds the weights; thresholds and the class book lie there too.
        run: the run folder it came from, where one is known.
    """

    embedder: Embedder
    key: ModelKey
    home: Path
    run: RunFolder | None


def open_for_classes(model: str | Path) -> OpenModel:
    """Open the model of a run or of a bundle.

    Raises:
        ProxemicsError: there is none.
    """
    embedder = open_model(model)
    folder = Path(model)
    home = folder / "bundle" if (folder / "bundle" / "model.safetensors").exists() else folder
    key = ModelKey(model=embedder.fingerprint(), preprocess=embedder.preprocess.fingerprint(), dim=embedder.dim)
    runs = [RunFolder(place) for place in (folder, folder.resolve().parent)]
    known = [run for run in runs if run.config.exists() and run.bundle.resolve() == home.resolve()]
    return OpenModel(embedder, key, home, known[0] if known else None)


def embed_table(
    model: OpenModel,
    frame: pd.DataFrame,
    *,
    settings: Sequence[str] = (),
    reporter: Reporter | None = None,
    task: str = "embed",
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Embed the pictures of a table.

    Args:
        model: to embed with.
        frame: with a column ``path``.
        settings: assignments such as ``data.workers=2`` on top of those of the run.
        reporter: hears of progress.
        task: its name.

    Returns:
        (N, D) float32 unit embeddings and (N,) float32 lengths of the raw ones.

    Raises:
        ImageError: a picture cannot be read; the message names it.
    """
    base: dict[str, Any] = {}
    if model.run is not None:
        base = model.run.read_config().model_dump()
        base["train"]["device"] = Config().train.device  # the place it was trained in may not be here
    config = make_config(base, [*settings, "train.devices=1"])
    fabric = build_fabric(config)
    model.embedder.to(fabric.device)
    return embed_rows_with_certainty(
        config, model.embedder, frame, fabric=fabric, cache=None, reporter=reporter or Silent(), task=task
    )


def class_pictures(folder: str | Path, name: str | None = None) -> pd.DataFrame:
    """List the pictures of new classes.

    Args:
        folder: with pictures, which are one class; or with a folder of pictures for each class.
        name: of the one class; the name of the folder if None. Not allowed with class folders.

    Returns:
        A table with ``path``, ``label`` and ``id``, which is ``label/file`` as an index built from the folder of class
        folders has it.

    Raises:
        DataError: no picture, loose pictures beside class folders, or a name for several classes.
    """
    scan = scan_folder(folder)
    root = Path(scan.root)
    if not scan.pictures:
        raise DataError(f"{folder} holds no pictures. Give a folder of pictures of one class, or of class folders.")
    loose = scan.loose
    if loose and len(loose) < len(scan.pictures):
        raise DataError(
            f"{folder} holds {len(loose)} loose pictures beside folders; put each class into a folder of its own, or "
            "give the folder of one class."
        )
    if loose:
        frame = load_table(root, layout="flat")
        frame["label"] = name or root.name
    elif name is not None:
        raise DataError(f"--name {name!r} names one class, and {folder} holds class folders; give one of them.")
    else:
        frame = load_table(root, layout="class")
    base = root if loose else None
    frame["id"] = [
        f"{label}/{_below(Path(path), base or root / label)}"
        for path, label in zip(frame["path"], frame["label"], strict=True)
    ]
    return frame.reset_index(drop=True)


def picture_files(sources: Sequence[str | Path]) -> pd.DataFrame:
    """List pictures to look up: files, and all pictures below folders.

    Raises:
        DataError: something is not there, or there is no picture.
    """
    paths: list[str] = []
    for source in sources:
        place = Path(source)
        if place.is_dir():
            scan = scan_folder(place)
            paths += [str(Path(scan.root) / one) for one in scan.pictures]
        elif place.exists():
            paths.append(str(place.absolute()))
        else:
            raise DataError(f"No picture {place}.")
    if not paths:
        raise DataError("There is no picture to look up; give files or folders with pictures.")
    return pd.DataFrame({"path": paths})


def _below(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else path.name
