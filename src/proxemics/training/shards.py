"""Embed rows on all processes: each takes a share, nothing is padded, every row comes back once."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
import torch.distributed as dist
from lightning_fabric import Fabric
from numpy.typing import NDArray

from proxemics.core.config import Config
from proxemics.data.cache import PixelCache
from proxemics.evaluation.extract import extract_embeddings
from proxemics.models.embedder import Embedder
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
    paths = rows["path"].to_list()
    bounds = share_bounds(len(paths), fabric.world_size)
    start, end = bounds[fabric.global_rank]
    reporter.start(task, end - start)
    own = extract_embeddings(
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
    if fabric.world_size == 1:
        return own
    parts: list[NDArray[np.float32]] = []
    for number, (first, last) in enumerate(bounds):
        part = torch.from_numpy(own) if number == fabric.global_rank else torch.empty(last - first, own.shape[1])
        part = part.to(fabric.device)
        dist.broadcast(part, src=number)
        parts.append(part.cpu().numpy())
    return np.concatenate(parts)
