"""A sample of the pictures of a run, as the model sees them; what cannot be read is left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from proxemics.core.errors import ImageError
from proxemics.core.seeds import numpy_generator
from proxemics.data.decode import decode_tensor
from proxemics.data.preprocess import Preprocess


def spread_rows(rows: pd.DataFrame, count: int, seed: int) -> NDArray[np.int64]:
    """Draw rows so that every class has about as many, as far as it has them.

    Args:
        rows: with ``label``.
        count: how many at most.
        seed: of the draw.

    Returns:
        Row numbers, rising; the same for the same seed.

    Example:
        >>> spread_rows(pd.DataFrame({"label": list("aaaaab")}), 2, 0)[1]
        np.int64(5)
    """
    order = numpy_generator(seed, "inspect").permutation(len(rows))
    labels = rows["label"].to_numpy()[order]
    place = pd.Series(labels).groupby(labels).cumcount().to_numpy()  # the how-manieth of its class
    return np.sort(order[np.argsort(place, kind="stable")[:count]])


def read_batches(
    paths: Sequence[str | Path], preprocess: Preprocess, *, max_pixels: int, batch_size: int = 32
) -> Iterator[tuple[list[int], Tensor]]:
    """Read pictures as the model sees them, before normalisation.

    Args:
        paths: of the pictures.
        preprocess: of the model.
        max_pixels: larger pictures count as unreadable.
        batch_size: pictures at a time.

    Yields:
        The numbers of the pictures that could be read, and their pixels (b, 3, S, S) uint8; b may be 0.
    """
    for start in range(0, len(paths), batch_size):
        found, pixels = [], []
        for number in range(start, min(start + batch_size, len(paths))):
            try:
                pixels.append(preprocess.crop(decode_tensor(paths[number], max_pixels=max_pixels)))
            except ImageError:
                continue
            found.append(number)
        side = preprocess.size
        yield found, torch.stack(pixels) if pixels else torch.zeros(0, 3, side, side, dtype=torch.uint8)
