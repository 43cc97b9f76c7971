"""Reading a tile of codes while it is in cache: counts, sparse extraction and the bounds for it.

A tile is (rows, cols); ``axis=1`` looks at it from its rows (queries) against its columns (gallery), ``axis=0`` from its
columns against its rows, which is how one product serves both halves of a symmetric score matrix. Both sizes of the
buffer are multiples of :data:`GROUPS`; what lies outside the data holds the lowest code.

Gallery items are looked at in :data:`GROUPS` groups first: a query opens only groups whose largest code passes its limit.
"""

from __future__ import annotations

import torch
from torch import Tensor

GROUPS = 64


def padded(count: int) -> int:
    """Round up to a multiple of :data:`GROUPS`.

    Example:
        >>> padded(64), padded(65)
        (64, 128)
    """
    return -(-count // GROUPS) * GROUPS


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


def group_peaks(tile: Tensor, axis: int) -> Tensor:
    """Largest code of each group, as (queries, GROUPS)."""
    rows, cols = tile.shape
    if axis == 1:
        return tile.view(rows, cols // GROUPS, GROUPS).amax(dim=1)  # every 64th item: the quick layout to reduce
    return tile.view(GROUPS, rows // GROUPS, cols).amax(dim=1).T


def extract_above(
    tile: Tensor, peaks: Tensor, limits: Tensor, most: Tensor, axis: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Find all codes above a limit for each query.

    Args:
        tile: (r, c) codes.
        peaks: from :func:`group_peaks`.
        limits: one code a query.
        most: one count a query; a query with more codes above its limit yields none and is reported.
        axis: see the module text.

    Returns:
        query (n,), gallery item (n,), code (n,), by query; and the reported queries (m,).
    """
    opened = torch.nonzero(peaks > limits[:, None])
    query, group = opened[:, 0], opened[:, 1]
    size = tile.shape[axis] // GROUPS
    if axis == 1:
        found = tile.view(-1, size, GROUPS)[query, :, group]
    else:
        found = tile.view(GROUPS, size, -1)[group, :, query]
    hits = torch.nonzero(found > limits[query, None])
    which, member = hits[:, 0], hits[:, 1]
    hit = query[which]
    item = member * GROUPS + group[which] if axis == 1 else group[which] * size + member
    over = torch.bincount(hit, minlength=len(most)) > most
    code = found[which, member]
    if bool(over.any()):
        kept = ~over[hit]
        hit, item, code = hit[kept], item[kept], code[kept]
    return hit, item, code, torch.nonzero(over).flatten()


def nth_largest(view: Tensor, rank: Tensor) -> Tensor:
    """Code of rank ``rank`` (1 = largest) of each query; the lowest code where a query has fewer items.

    Args:
        view: (n, items) codes.
        rank: (n,) int64, at least 1.
    """
    most = int(rank.max().clamp_max(view.shape[1]))
    best = torch.topk(view, most, dim=1).values
    value = best.gather(1, (rank.clamp_max(most) - 1)[:, None]).squeeze(1)
    lowest = -torch.inf if view.is_floating_point() else torch.iinfo(view.dtype).min
    return torch.where(rank <= most, value, torch.full_like(value, lowest))
