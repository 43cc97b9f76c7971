"""From places to pixels: decoder, resizer and rounding are those of evaluation, and so the vectors are its vectors."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from proxemics.core.errors import ImageError
from proxemics.data import jpeg
from proxemics.data.decode import decode_tensor, to_tensor
from proxemics.data.preprocess import Preprocess
from proxemics.export.engines.base import Engine
from proxemics.export.jobs.batches import Batch, BatchResult
from proxemics.export.jobs.places import MAX_BYTES, Place, PlaceReader
from proxemics.runtime.pictures import open_image


def embed_batch(engine: Engine, reader: PlaceReader, batch: Batch, *, max_pixels: int) -> BatchResult:
    """Read, prepare and embed the pictures of a batch; unreadable ones are told, not raised.

    Args:
        engine: turns pixels into vectors.
        reader: gets at bytes in archives and tables.
        batch: the rows.
        max_pixels: larger pictures count as unreadable.
    """
    pixels, rows, failures = prepare_batch(engine.preprocess, reader, batch, max_pixels=max_pixels)
    vectors, kappa = engine.encode(pixels)
    return BatchResult(batch.part, len(batch.places), rows, vectors, kappa, failures)


def prepare_batch(
    preprocess: Preprocess, reader: PlaceReader, batch: Batch, *, max_pixels: int
) -> tuple[NDArray[np.float32], NDArray[np.int64], list[tuple[int, str]]]:
    """Read and prepare the pictures of a batch.

    Args:
        preprocess: of the model.
        reader: gets at bytes in archives and tables.
        batch: the rows.
        max_pixels: larger pictures count as unreadable.

    Returns:
        (n, 3, size, size) float32 in channels-last memory, the (n,) rows that they belong to, and row and reason of
        each picture that cannot be read.
    """
    side = preprocess.size
    whole = torch.empty((len(batch.places), side, side, 3), dtype=torch.uint8).permute(0, 3, 1, 2)
    rows: list[int] = []
    failures: list[tuple[int, str]] = []
    for number, place in enumerate(batch.places):
        data = None if batch.data is None else batch.data[number]
        found = _decode(place, data, reader, max_pixels)
        if isinstance(found, str):
            failures.append((batch.start + number, found))
        else:
            whole[len(rows)] = preprocess.crop(found)
            rows.append(batch.start + number)
    return preprocess.normalize(whole[: len(rows)]).numpy(), np.asarray(rows, dtype=np.int64), failures


def _decode(place: Place, data: bytes | None, reader: PlaceReader, max_pixels: int) -> Tensor | str:
    """Return the picture, or why it cannot be read."""
    try:
        if place.kind == "file":
            return decode_tensor(place.container, max_pixels=max_pixels)
        content = reader.read(place) if data is None else data
        if len(content) > MAX_BYTES:
            return f"{place.shown} cannot be read: it unpacks to more than {MAX_BYTES:,} bytes."
        return decode_bytes(content, name=place.shown, max_pixels=max_pixels)
    except ImageError as error:
        return str(error)


def decode_bytes(data: bytes, *, name: str, max_pixels: int) -> Tensor:
    """Decode an encoded picture to the pixels that :func:`proxemics.data.decode.decode_tensor` gives for its file.

    Args:
        data: the bytes of the file.
        name: what to call it in an error.
        max_pixels: larger pictures are refused.

    Returns:
        (3, H, W) uint8.

    Raises:
        ImageError: it cannot be read.
    """
    header = jpeg.read_header(data)
    if header is not None and header.height * header.width <= max_pixels:
        pixels = jpeg.decode(data, header)
        if pixels is not None:
            return pixels
    return to_tensor(open_image(data, name=name, max_pixels=max_pixels))
