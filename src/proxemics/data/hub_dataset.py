"""Hugging Face data sets: an image column becomes files, written once. ``datasets`` is imported only for its users."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import pandas as pd
from PIL import Image

from proxemics.core.errors import DataError
from proxemics.core.files import atomic_path


def is_hub_dataset(source: object) -> bool:
    """Tell a ``datasets.Dataset`` (or a mapping from split names to such) by what it can do."""
    if isinstance(source, Mapping):
        return bool(source) and all(is_hub_dataset(value) for value in source.values())
    return all(hasattr(source, name) for name in ("features", "column_names", "cast_column", "__getitem__"))


def hub_table(
    source: Any,
    *,
    cache: str | Path | None = None,
    select: Callable[[pd.DataFrame], pd.DataFrame] = lambda frame: frame,
) -> pd.DataFrame:
    """Turn a data set into table columns.

    Args:
        source: a ``Dataset`` with exactly one image column, or a ``DatasetDict`` whose keys become ``split``.
        cache: pictures that have no file of their own (they live inside Arrow files) are written here once, as the
            bytes they were stored as, under ``<split>/<row>-<hash>.<suffix>``; a later call finds them.
        select: filters the rows before any picture is written.

    Returns:
        All columns but the image, class numbers replaced by class names, plus ``path`` (absolute).

    Raises:
        DataError: no image column or several; or bytes have to be written and ``cache`` is None.
    """
    parts = dict(source) if isinstance(source, Mapping) else {"": source}
    frames, places = [], []
    for name, dataset in parts.items():
        column = _image_column(dataset)
        frame = _columns(dataset, column)
        if name:
            frame["split"] = name
        frames.append(frame)
        folder = None if cache is None else Path(cache).expanduser().absolute() / (name or "all")
        places += [(name, row, folder) for row in range(len(frame))]
    stored = {name: dataset.cast_column(_image_column(dataset), _undecoded()) for name, dataset in parts.items()}
    table = select(pd.concat(frames, ignore_index=True)).copy()
    table["path"] = [_file(stored[places[i][0]], *places[i][1:]) for i in table.index]
    return table


def _undecoded() -> Any:
    from datasets import Image as HubImage

    return HubImage(decode=False)


def _image_column(dataset: Any) -> str:
    names = [str(name) for name, feature in dataset.features.items() if type(feature).__name__ == "Image"]
    if len(names) != 1:
        found = ", ".join(names) or "none"
        raise DataError(
            f"The data set needs exactly one image column; it has {found} among {', '.join(dataset.column_names)}. "
            "Drop the others with remove_columns, or cast one with cast_column(name, datasets.Image())."
        )
    return names[0]


def _columns(dataset: Any, image: str) -> pd.DataFrame:
    rest = dataset.remove_columns([image])
    frame = rest.to_pandas() if rest.column_names else pd.DataFrame(index=range(len(dataset)))
    for name in rest.column_names:
        to_text = getattr(dataset.features[name], "int2str", None)
        if to_text is not None:  # a ClassLabel
            frame[name] = [None if pd.isna(value) else to_text(int(value)) for value in frame[name]]
    return pd.DataFrame(frame)


def _file(dataset: Any, row: int, folder: Path | None) -> str:
    item = dataset[row][_image_column(dataset)]
    if item is None:
        raise DataError(f"The data set has no picture in row {row}. Filter such rows out first.")
    content, path = item.get("bytes"), item.get("path")
    if path and Path(path).is_file():
        return str(Path(path).absolute())
    if content is None:
        raise DataError(
            f"The picture in row {row} of the data set is neither stored nor at {path!r}. Load the data set again."
        )
    if folder is None:
        raise DataError(
            "The pictures of this data set live inside Arrow files. Give a folder to write them to once: "
            "load_table(dataset, cache='pictures')."
        )
    digest = hashlib.blake2b(content, digest_size=8).hexdigest()
    target = folder / f"{row:08d}-{digest}{_suffix(content, path)}"
    if not target.is_file():
        with atomic_path(target) as temporary:
            temporary.write_bytes(content)
    return str(target)


def _suffix(content: bytes, path: str | None) -> str:
    suffix = Path(path or "").suffix.lower()
    if suffix:
        return suffix
    try:
        with Image.open(BytesIO(content)) as image:
            return {"JPEG": ".jpg"}.get(image.format or "", f".{(image.format or 'bin').lower()}")
    except Exception:  # a broken picture keeps its bytes; the doctor names it
        return ".bin"
