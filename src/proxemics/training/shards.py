"""Embed rows on all processes: each takes a share, nothing is padded, every row comes back once."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from proxemics.core.config import Config
from proxemics.data.cache import PixelCache
from proxemics.evaluation.extract import extract_with_certainty
from proxemics.models.embedder import Embedder
from proxemics.training.fabric import Fabric
from proxemics.training.log import Reporter

EXTRACT_BATCH = 64


def share_bounds(num_rows: int, world_size: int) -> list[tuple[int, int]]:
    """Cut ``num_rows`` into contiguous shares whose sizes differ by one at most.

    Example:
        >>> share_bounds(7, 2)
        [(0, 4), (4, 7)]
    """
    sizes = [num_rows // world_size + (number < num_rows % world_size) for number in range(world_size)]
    ends = np.cumsum(sizes).tolist()
    return [(end - size, end) for size, end in zip(sizes, ends, strict=True)]


def embed_rows(
    config: Config,
    embedder: Embedder,
    rows: pd.DataFrame,
    *,
    fabric: Fabric,
    cache: PixelCache | None,
    reporter: Reporter,
    task: str,
) -> NDArray[np.float32]:
    """Embed the pictures of ``rows``; every process returns all of them.

    Returns:
        (N, D) float32 unit embeddings in the order of ``rows``.
    """
    return embed_rows_with_certainty(config, embedder, rows, fabric=fabric, cache=cache, reporter=reporter, task=task)[
        0
    ]


def embed_rows_with_certainty(
    config: Config,
    embedder: Embedder,
    rows: pd.DataFrame,
    *,
    fabric: Fabric,
    cache: PixelCache | None,
    reporter: Reporter,
    task: str,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Embed the pictures of ``rows`` and keep the lengths κ; every process returns all of them.

    Returns:
        (N, D) float32 unit embeddings, and κ, (N,) float32, in the order of ``rows``; see
        :func:`proxemics.evaluation.extract.extract_with_certainty`.
    """
    paths = rows["path"].to_list()
    bounds = share_bounds(len(paths), fabric.world_size)
    start, end = bounds[fabric.global_rank]
    reporter.start(task, end - start)
    units, kappa = extract_with_certainty(
        embedder,
        paths[start:end],
        batch_size=EXTRACT_BATCH,
        workers=config.data.workers,
        worker_start=config.data.worker_start,
        device=fabric.device,
        cache=cache,
        max_pixels=config.data.max_pixels,
        progress=lambda number: reporter.advance(task, number),
    )
    reporter.finish(task)
    return join_shares(units, bounds, fabric), join_shares(kappa, bounds, fabric)


def join_shares(own: NDArray[np.float32], bounds: list[tuple[int, int]], fabric: Fabric) -> NDArray[np.float32]:
    """Give every process the rows of all of them.

    Args:
        own: (n, ...) the share of this process.
        bounds: first row and end of the share of each process; see :func:`share_bounds`.
        fabric: a launched Fabric.

    Returns:
        (N, ...) in the order of the shares.
    """
    if fabric.world_size == 1:
        return own
    parts: list[NDArray[np.float32]] = []
    for number, (first, last) in enumerate(bounds):
        mine = number == fabric.global_rank
        part = torch.from_numpy(own) if mine else torch.empty(last - first, *own.shape[1:])
        part = part.to(fabric.device)
        dist.broadcast(part, src=number)
        parts.append(part.cpu().numpy())
    return np.concatenate(parts)
