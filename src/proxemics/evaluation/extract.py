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
    return extract_with_certainty(
        embedder,
        paths,
        batch_size=batch_size,
        workers=workers,
        worker_start=worker_start,
        device=device,
        cache=cache,
        max_pixels=max_pixels,
        progress=progress,
    )[0]


def extract_with_certainty(
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
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Embed pictures and keep how long the embeddings were before they were put on the unit sphere.

    The length κ is the concentration of the picture's density (Kirchhof et al., ECCV 2022). Whether it can be read as
    certainty depends on the training; see :mod:`proxemics.evaluation.lengths`.

    Args:
        embedder: see :func:`extract_embeddings`, also for the other arguments.
        paths: N picture files.
        batch_size: pictures a forward pass.
        workers: processes that read pictures.
        worker_start: auto, fork, spawn or forkserver.
        device: where the model runs.
        cache: decoded pixels that hold the paths, if there are any.
        max_pixels: larger pictures are refused.
        progress: called with the number of pictures of each finished batch.

    Returns:
        (N, D) float32 unit embeddings, and κ, (N,) float32 >= 0; row i for ``paths[i]``. Their product is the raw
        embedding up to rounding.

    Raises:
        ImageError: a picture cannot be read; the message names its path.
    """
    preprocess = embedder.preprocess
    units = np.empty((len(paths), embedder.dim), dtype=np.float32)
    kappa = np.empty(len(paths), dtype=np.float32)
    if not paths:
        return units, kappa
    dataset = ImageDataset(
        [str(path) for path in paths],
        np.zeros(len(paths), dtype=np.int64),
        transform=preprocess,
        cache=cache,
        max_pixels=max_pixels,
    )
    loader = make_loader(dataset, batch_size, workers=workers, context=start_method(worker_start))
    was_training = embedder.training
    embedder.eval()
    try:
        with torch.inference_mode():
            row = 0
            for batch in loader:
                images = preprocess.normalize(batch["image"].to(device))
                encoded = embedder.encode(images)
                rows = slice(row, row + len(encoded.unit))
                units[rows] = encoded.unit.float().cpu().numpy()
                kappa[rows] = torch.linalg.vector_norm(encoded.raw.float(), dim=-1).cpu().numpy()
                row = rows.stop
                if progress is not None:
                    progress(len(encoded.unit))
    finally:
        loader.close()
        embedder.train(was_training)
    return units, kappa


def start_method(name: str) -> str | None:
    """Translate the configuration's ``auto`` to the platform's default.

    Example:
        >>> start_method("auto") is None, start_method("spawn")
        (True, 'spawn')
    """
    return None if name == "auto" else name
