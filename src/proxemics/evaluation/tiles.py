"""Reading a tile of codes while it is in cache: counts, sparse extraction and the bounds for it.

A tile is (rows, cols); ``axis=1`` looks at it from its rows (queries) against its columns (gallery), ``axis=0`` from
its columns against its rows, which is how one product serves both halves of a symmetric score matrix. Both sizes of the
buffer are multiples of :data:`GROUPS`; what lies outside the data holds the lowest code.

Where few items pass a limit, gallery items are looked at in :data:`GROUPS` groups first, and a query opens only groups
whose largest code passes. On the CPU, NumPy compares and lists the hits, several times faster than torch does.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

GROUPS = 64
STRIP = 256  # rows that stay in a core's own cache


def padded(count: int) -> int:
    """Round up to a multiple of :data:`GROUPS`.

    Example:
        >>> padded(64), padded(65)
        (64, 128)
    """
    return -(-count // GROUPS) * GROUPS


def count_above(tile: Tensor, limits: tuple[Tensor, ...], axis: int) -> list[Tensor]:
    """Count codes above each of some limits for each query.

    Args:
        tile: (r, c) codes, r and c at most 2**15.
        limits: each (r,) or (c,) codes, by ``axis``.
        axis: see the module text.

    Returns:
        For each limit, (r,) or (c,) int64.
    """
    rows, cols = tile.shape
    # A result of the tile's own type is what compares fast; four 16-bit counts add up in one word.
    word = torch.int64 if tile.dtype == torch.int16 else tile.dtype
    scratch = torch.empty(min(STRIP, rows), cols, dtype=tile.dtype, device=tile.device)
    parts: list[list[Tensor]] = [[] for _ in limits]
    for start in range(0, rows, STRIP):
        strip = tile[start : start + STRIP]
        for limit, sums in zip(limits, parts, strict=True):
            bound = limit[start : start + STRIP, None] if axis == 1 else limit[None, :]
            above = torch.gt(strip, bound, out=scratch[: len(strip)])
            sums.append(above.view(word).sum(dim=axis))
    return [_join(torch.cat(sums) if axis == 1 else torch.stack(sums).sum(dim=0), axis) for sums in parts]


def _join(sums: Tensor, axis: int) -> Tensor:
    if sums.is_floating_point():
        return sums.long()
    narrow = sums.view(torch.int16).long()
    return narrow.view(-1, 4).sum(dim=1) if axis == 1 else narrow


def group_peaks(tile: Tensor, axis: int) -> Tensor:
    """Largest code of each group, as (queries, GROUPS)."""
    rows, cols = tile.shape
    if axis == 1:
        return tile.view(rows, cols // GROUPS, GROUPS).amax(dim=1)  # every 64th item: the quick layout to reduce
    return tile.view(GROUPS, rows // GROUPS, cols).amax(dim=1).T


def extract_above(tile: Tensor, peaks: Tensor | None, limits: Tensor, axis: int) -> tuple[Tensor, Tensor, Tensor]:
    """Find all codes above a limit for each query.

    Args:
        tile: (r, c) codes.
        peaks: from :func:`group_peaks`; None to look at every code.
        limits: one code a query.
        axis: see the module text.

    Returns:
        query (n,), gallery item (n,), code (n,).
    """
    if peaks is None:
        row, col = where_above(tile, limits[:, None] if axis == 1 else limits[None, :])
        code = tile.flatten()[row * tile.shape[1] + col]
        return (row, col, code) if axis == 1 else (col, row, code)
    query, group = where_above(peaks, limits[:, None])
    size = tile.shape[axis] // GROUPS
    found = tile.view(-1, size, GROUPS)[query, :, group] if axis == 1 else tile.view(GROUPS, size, -1)[group, :, query]
    which, member = where_above(found, limits[query, None])
    group = group[which]
    item = member * GROUPS + group if axis == 1 else group * size + member
    return query[which], item, found[which, member]


def where_above(values: Tensor, limits: Tensor) -> tuple[Tensor, Tensor]:
    """Rows and columns (n,), (n,) of the entries of a matrix that exceed ``limits`` (broadcast)."""
    if values.device.type != "cpu":
        row, col = torch.nonzero(values > limits, as_tuple=True)
        return row, col
    flat = torch.from_numpy(np.flatnonzero(np.greater(values.numpy(), limits.numpy())))
    row = torch.div(flat, values.shape[1], rounding_mode="floor")
    return row, flat - row * values.shape[1]


def nth_largest(view: Tensor, rank: Tensor) -> Tensor:
    """Code of rank ``rank`` (1 = largest) of each query; the lowest code where a query has fewer items.

    Args:
        view: (n, items) codes.
        rank: (n,) int64, at least 1.
    """
    most = int(rank.max().clamp_max(view.shape[1]))
    if view.device.type == "cpu":
        upper = np.partition(view.numpy(), view.shape[1] - most, axis=1)[:, view.shape[1] - most :]
        best = torch.from_numpy(np.sort(upper, axis=1)).flip(1)
    else:
        best = torch.topk(view, most, dim=1).values
    value = best.gather(1, (rank.clamp_max(most) - 1)[:, None]).squeeze(1)
    lowest = -torch.inf if view.is_floating_point() else torch.iinfo(view.dtype).min
    return torch.where(rank <= most, value, torch.full_like(value, lowest))
