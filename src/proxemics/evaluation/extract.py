"""From pictures to embeddings, in the order of the rows given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from proxemics.data.cache import PixelCache
from proxemics.data.dataset import ImageDataset
from proxemics.data.loader import make_loader
from proxemics.models.embedder import Embedder


def extract_embeddings(
    embedder: Embedder,
    paths: Sequence[str | Path],
    *,
    batch_size: int = 64,
    workers: int = 0,
    worker_start: str = "auto",
    device: torch.device | str = "cpu",
    cache: PixelCache | None = None,
    max_pixels: int = 178_956_970,
    progress: Callable[[int], None] | None = None,
) -> NDArray[np.float32]:
    """Embed pictures with the preprocessing that belongs to the model.

    Args:
        embedder: the model; put into evaluation mode and back.
        paths: N picture files.
        batch_size: pictures a forward pass; does not change the result beyond rounding.
        workers: processes that read pictures.
        worker_start: auto, fork, spawn or forkserver.
        device: where the model runs.
        cache: decoded pixels that hold the paths, if there are any.
        max_pixels: larger pictures are refused.
        progress: called with the number of pictures of each finished batch.

    Returns:
        (N, D) float32 unit embeddings, row i for ``paths[i]``.

    Raises:
        ImageError: a picture cannot be read; the message names its path.
    """
    preprocess = embedder.preprocess
    if not paths:
        return np.zeros((0, embedder.dim), dtype=np.float32)
    dataset = ImageDataset(
        [str(path) for path in paths],
        np.zeros(len(paths), dtype=np.int64),
        transform=preprocess,
        cache=cache,
        max_pixels=max_pixels,
    )
    loader = make_loader(dataset, batch_size, workers=workers, context=start_method(worker_start))
    result = np.empty((len(paths), embedder.dim), dtype=np.float32)
    was_training = embedder.training
    embedder.eval()
    try:
        with torch.inference_mode():
            row = 0
            for batch in loader:
                images = preprocess.normalize(batch["image"].to(device))
                unit = embedder.encode(images).unit.float().cpu().numpy()
                result[row : row + len(unit)] = unit
                row += len(unit)
                if progress is not None:
                    progress(len(unit))
    finally:
        loader.close()
        embedder.train(was_training)
    return result


def start_method(name: str) -> str | None:
    """Translate the configuration's ``auto`` to the platform's default.

    Example:
        >>> start_method("auto") is None, start_method("spawn")
        (True, 'spawn')
    """
    return None if name == "auto" else name
