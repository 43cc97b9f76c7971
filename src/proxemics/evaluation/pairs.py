"""Pairs of a query and a gallery item that must not be ranked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from proxemics.core.errors import EvaluationError
from proxemics.evaluation.labels import Labels, encode_labels, label_array
from proxemics.evaluation.positives import Forbidden


def forbidden_pairs(
    queries: int,
    gallery: int,
    *,
    own: bool,
    ids: Labels | None = None,
    gallery_ids: Labels | None = None,
    listed: NDArray[np.int64] | Sequence[tuple[int, int]] | None = None,
    device: torch.device | str | None = None,
) -> Forbidden:
    """Join the pairs of equal identity and the listed pairs.

    Args:
        queries: Q.
        gallery: G.
        own: whether query i is gallery item i.
        ids: (Q,) identities.
        gallery_ids: (G,) identities; ``ids`` when the set is searched for itself.
        listed: (F, 2) rows.
        device: of the result.

    Raises:
        EvaluationError: one of the identities is missing, wrong lengths, or rows outside the sets.

    Example:
        >>> pairs = forbidden_pairs(2, 3, own=False, ids=[7, 8], gallery_ids=[8, 9, 7])
        >>> pairs.rows.tolist(), pairs.cols.tolist()
        ([0, 1], [2, 0])
    """
    parts = [] if listed is None or len(listed) == 0 else [_check_listed(np.asarray(listed), queries, gallery)]
    if own and ids is not None and gallery_ids is None:
        gallery_ids = ids
    if (ids is None) != (gallery_ids is None):
        raise EvaluationError("Give ids and gallery_ids together: a pair is left out when the two are equal.")
    if ids is not None and gallery_ids is not None:
        parts.append(_equal_ids(label_array(ids, "ids"), label_array(gallery_ids, "gallery_ids"), queries, gallery))
    pairs = np.concatenate(parts) if parts else np.empty((0, 2), dtype=np.int64)
    if own:
        pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    pairs = np.unique(pairs, axis=0)
    table = torch.from_numpy(np.ascontiguousarray(pairs.T)).to(device=device)
    return Forbidden(table[0], table[1], own)


def _check_listed(pairs: NDArray[np.generic], queries: int, gallery: int) -> NDArray[np.int64]:
    if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.dtype.kind not in "iu":
        raise EvaluationError(
            f"forbidden has shape {pairs.shape} and dtype {pairs.dtype}; give integer (query, gallery) rows."
        )
    rows = pairs.astype(np.int64)
    outside = (rows < 0) | (rows >= np.array([queries, gallery]))
    if outside.any():
        bad = tuple(rows[outside.any(axis=1)][0].tolist())
        raise EvaluationError(f"forbidden holds the pair {bad}, outside {queries} queries and {gallery} gallery items.")
    return rows


def _equal_ids(left: NDArray[np.generic], right: NDArray[np.generic], queries: int, gallery: int) -> NDArray[np.int64]:
    if len(left) != queries or len(right) != gallery:
        raise EvaluationError(
            f"{len(left)} ids for {queries} queries and {len(right)} gallery_ids for {gallery} gallery items; "
            "give one a row."
        )
    first, second, _ = encode_labels(left, right)
    order = np.argsort(second, kind="stable")
    low = np.searchsorted(second[order], first)
    counts = np.searchsorted(second[order], first, side="right") - low
    rows = np.repeat(np.arange(queries), counts)
    offset = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.stack([rows, order[np.repeat(low, counts) + offset]], axis=1)
