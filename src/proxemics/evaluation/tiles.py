"""Reading a tile of codes while it is in cache: counts, sparse extraction and the bounds for it.

A tile is (rows, cols); ``axis=1`` looks at it from its rows (queries) against its columns (gallery), ``axis=0`` from its
columns against its rows, which is how one product serves both halves of a symmetric score matrix. Both sizes of the
buffer are multiples of :data:`SEGMENT`; what lies outside the data holds the lowest code.
"""

from __future__ import annotations

import torch
from torch import Tensor

SEGMENT = 64


def padded(count: int) -> int:
    """Round up to a multiple of :data:`SEGMENT`.

    Example:
        >>> padded(64), padded(65)
        (64, 128)
    """
    return -(-count // SEGMENT) * SEGMENT


def count_above(tile: Tensor, limits: Tensor, axis: int, scratch: Tensor) -> Tensor:
    """Count codes above a limit for each query.

    Args:
        tile: (r, c) codes.
        limits: (r,) or (c,) codes, by ``axis``.
        axis: see the module text.
        scratch: (r, c) of the tile's type; overwritten. A result of the tile's own type is what keeps this fast.

    Returns:
        (r,) or (c,) int64.
    """
    torch.gt(tile, limits[:, None] if axis == 1 else limits[None, :], out=scratch)
    if tile.dtype != torch.int16:
        return scratch.sum(dim=axis).long()
    lanes = scratch.view(torch.int64).sum(dim=axis)  # four 16-bit counts a word, none above 2**15
    narrow = lanes.view(torch.int16).long() & 0xFFFF
    return narrow.view(-1, 4).sum(dim=1) if axis == 1 else narrow


def segment_peaks(tile: Tensor, axis: int) -> Tensor:
    """Largest code of every run of :data:`SEGMENT` gallery items, as (queries, runs)."""
    rows, cols = tile.shape
    if axis == 1:
        return tile.view(rows, cols // SEGMENT, SEGMENT).amax(dim=2)
    return tile.view(rows // SEGMENT, SEGMENT, cols).amax(dim=1).T


def extract_above(
    tile: Tensor, peaks: Tensor, limits: Tensor, most: Tensor, axis: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Find all codes above a limit for each query.

    Args:
        tile: (r, c) codes.
        peaks: from :func:`segment_peaks`.
        limits: one code a query.
        most: one count a query; a query with more codes above its limit yields none and is reported.
        axis: see the module text.

    Returns:
        query (n,), gallery item (n,), code (n,), the items of a query in rising order; and the reported queries (m,).
    """
    runs = torch.nonzero(peaks > limits[:, None])
    query, run = runs[:, 0], runs[:, 1]
    if axis == 1:
        found = tile.view(tile.shape[0], -1, SEGMENT)[query, run]
    else:
        found = tile.view(-1, SEGMENT, tile.shape[1])[run, :, query]
    above = found > limits[query, None]
    counts = torch.zeros_like(most).index_add_(0, query, above.sum(dim=1))
    over = counts > most
    if bool(over.any()):
        above &= ~over[query, None]
    hits = torch.nonzero(above)
    which, offset = hits[:, 0], hits[:, 1]
    return query[which], run[which] * SEGMENT + offset, found[which, offset], torch.nonzero(over).flatten()


def nth_largest(tile: Tensor, queries: Tensor, rank: Tensor, axis: int) -> Tensor:
    """Code of rank ``rank`` (1 = largest) of some queries; the lowest code where a query has fewer items.

    Args:
        tile: (queries, items) codes, or (items, queries) with ``axis=0``.
        queries: (n,) int64, which ones.
        rank: (n,) int64, at least 1.
        axis: see the module text.
    """
    part = tile.index_select(1 - axis, queries)
    view = part if axis == 1 else part.T
    most = int(rank.max().clamp_max(view.shape[1]))
    best = torch.topk(view, most, dim=1).values
    value = best.gather(1, (rank.clamp_max(most) - 1)[:, None]).squeeze(1)
    lowest = -torch.inf if tile.is_floating_point() else torch.iinfo(tile.dtype).min
    return torch.where(rank <= most, value, torch.full_like(value, lowest))
