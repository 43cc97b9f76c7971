"""Exact nearest neighbours, for tables and for search over what fits in memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from proxemics.core.errors import EvaluationError
from proxemics.evaluation.inputs import Embeddings, check_embeddings
from proxemics.evaluation.labels import Labels
from proxemics.evaluation.metrics import nearest_items
from proxemics.evaluation.pairs import forbidden_pairs
from proxemics.evaluation.ranking import Request, rank_chunks
from proxemics.evaluation.screen import full_precision
from proxemics.evaluation.space import make_space


@dataclass(frozen=True)
class Neighbours:
    """The k nearest gallery items of each query.

    Attributes:
        indices: (Q, k) int64 gallery rows, nearest first, equal similarities by rising row; -1 where there are fewer.
        similarities: (Q, k) float32 cosines, inner products or negative distances; NaN where the index is -1.
    """

    indices: NDArray[np.int64]
    similarities: NDArray[np.float32]


def nearest_neighbours(
    embeddings: Embeddings,
    gallery: Embeddings | None = None,
    *,
    k: int = 10,
    metric: str = "cosine",
    ids: Labels | None = None,
    gallery_ids: Labels | None = None,
    device: torch.device | str | None = None,
    precision: str = "auto",
    block_size: int | None = None,
) -> Neighbours:
    """Find the exact k nearest gallery items of each query; see :func:`~proxemics.evaluation.evaluate_embeddings`.

    Args:
        embeddings: (Q, D) queries.
        gallery: (G, D), or None to search the queries among themselves, each without itself.
        k: length of the lists, at least 1.
        metric: ``cosine``, ``euclidean`` or ``dot``.
        ids: (Q,) identities; pairs of equal identity are left out.
        gallery_ids: (G,) identities.
        device: where to compute.
        precision: first screen; changes speed only.
        block_size: side of a tile; changes speed and memory only.

    Raises:
        EvaluationError: k below 1, or embeddings that cannot be ranked.

    Example:
        >>> nearest_neighbours([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]], k=1).indices.tolist()
        [[1], [0], [1]]
    """
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise EvaluationError(f"k={k!r}; give a positive integer.")
    query = check_embeddings(embeddings, device=device)
    target = None if gallery is None else check_embeddings(gallery, "gallery", device=query.device)
    size = len(query) if target is None else len(target)
    pairs = forbidden_pairs(len(query), size, own=target is None, ids=ids, gallery_ids=gallery_ids, device=query.device)
    # Without labels there are no positives: every item has a class of its own.
    codes = torch.arange(len(query), device=query.device)
    others = codes if target is None else torch.arange(len(query), len(query) + size, device=query.device)
    request = Request(ks=(), nearest=k, precision=precision, block=block_size)
    items, similarities = [], []
    with full_precision():
        space = make_space(query, target, metric)
        for rows, ranks in rank_chunks(space, codes, others, pairs, request):
            found, scores = nearest_items(ranks)
            owner = codes[rows, None].expand_as(found)
            values = space.similarity(owner.flatten(), scores.flatten()).view_as(scores).float()
            items.append(found.cpu().numpy())
            similarities.append(torch.where(found >= 0, values, torch.nan).cpu().numpy())
    return Neighbours(np.concatenate(items), np.concatenate(similarities))
