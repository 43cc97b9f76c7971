"""Ranking in float64 from end to end: slow, needs no bound, and finishes what the screens leave open."""

from __future__ import annotations

import torch
from torch import Tensor

from proxemics.evaluation.inputs import row_chunks
from proxemics.evaluation.neighbours import NearestList
from proxemics.evaluation.positives import Forbidden, Positives
from proxemics.evaluation.scan import Slots
from proxemics.evaluation.space import Space

_ROWS, _COLS = 256, 2048


def hide(
    tile: Tensor,
    lowest: float,
    *,
    queries: Tensor,
    columns: slice,
    positives: Positives,
    forbidden: Forbidden,
    first: int,
) -> None:
    """Overwrite positives, forbidden pairs and the query itself in a tile, so that only foreign items are left.

    Args:
        tile: (n, c) scores or codes.
        lowest: what to write.
        queries: (n,) int64 rising queries of the scan.
        columns: gallery rows of the tile.
        positives: of the scan's queries.
        forbidden: pairs left out.
        first: row in the space of the scan's query 0.
    """
    begin, end = positives.start[queries], positives.start[queries + 1]
    if int(queries[-1] - queries[0]) + 1 == len(queries):
        low, item = int(begin[0]), positives.index[int(begin[0]) : int(end[-1])]
    else:
        low, counts = 0, end - begin
        owner = torch.arange(len(queries), device=tile.device).repeat_interleave(counts)
        flat = torch.arange(len(owner), device=tile.device) + (begin - (counts.cumsum(0) - counts))[owner]
        item = positives.index[flat]
        begin = counts.cumsum(0) - counts
    inside = torch.nonzero((item >= columns.start) & (item < columns.stop)).flatten()
    owner = torch.searchsorted(begin - low, inside, right=True) - 1
    tile[owner, item[inside].long() - columns.start] = lowest
    if forbidden.own:
        own = queries + first
        here = torch.nonzero((own >= columns.start) & (own < columns.stop)).flatten()
        tile[here, own[here] - columns.start] = lowest
    if len(forbidden.rows):
        _hide_listed(tile, lowest, queries + first, columns, forbidden)


def _hide_listed(tile: Tensor, lowest: float, queries: Tensor, columns: slice, forbidden: Forbidden) -> None:
    rows, cols = forbidden.between(int(queries[0]), int(queries[-1]) + 1)
    place = torch.searchsorted(queries, rows).clamp_max(len(queries) - 1)
    inside = (queries[place] == rows) & (cols >= columns.start) & (cols < columns.stop)
    tile[place[inside], cols[inside] - columns.start] = lowest


def rank_exactly(
    space: Space,
    positives: Positives,
    forbidden: Forbidden,
    queries: Tensor,
    *,
    first: int,
    slots: Slots,
    nearest: NearestList | None,
) -> None:
    """Fill the slots, and the lists, of some queries in float64.

    Args:
        space: exact scores.
        positives: of the scan's queries.
        forbidden: pairs left out.
        queries: (n,) int64 rising queries of the scan.
        first: row in the space of the scan's query 0.
        slots: emptied for these queries and filled again.
        nearest: lists that these queries have not been offered anything for, or None.
    """
    slots.forget(queries)
    for part in row_chunks(len(queries), _ROWS):
        some = queries[part]
        for columns in row_chunks(space.gallery.raw.shape[0], _COLS):
            tile = space.tile(some + first, columns)
            hide(tile, -torch.inf, queries=some, columns=columns, positives=positives, forbidden=forbidden, first=first)
            if nearest is not None and nearest.k:
                row, col = _nearest(tile, min(nearest.k, tile.shape[1]), space.tie)
                nearest.offer(some[row], col + columns.start, tile[row, col])
            _fill(tile, some, columns.start, positives, slots, space.tie)


def _nearest(tile: Tensor, k: int, tie: float) -> tuple[Tensor, Tensor]:
    """Entries (n,), (n,) of the k largest scores of each row; of equal scores the first ones, which topk ignores."""
    best = torch.topk(tile, min(k + 1, tile.shape[1]), dim=1)
    last = best.values[:, k - 1 : k]
    open_ = (best.values[:, k:] >= last - tie).any(dim=1) & (last[:, 0] > -torch.inf)
    found = (best.values[:, :k] > -torch.inf) & ~open_[:, None]
    row, place = torch.nonzero(found, as_tuple=True)
    parts = [(row, best.indices[row, place])]
    some = torch.nonzero(open_).flatten()
    if len(some):
        above = tile[some] > last[some] + tie
        equal = (tile[some] >= last[some] - tie) & ~above
        kept = above | (equal & (equal.cumsum(dim=1) <= k - above.sum(dim=1, keepdim=True)))
        row, col = torch.nonzero(kept, as_tuple=True)
        parts.append((some[row], col))
    return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])


def _fill(tile: Tensor, queries: Tensor, column: int, positives: Positives, slots: Slots, tie: float) -> None:
    """Count the items of a tile in their slots; the tile is negated in place."""
    counts = positives.counts[queries]
    deepest = int(counts.max())
    if deepest == 0:
        return
    ladder = torch.full((len(queries), deepest), torch.inf, dtype=torch.float64, device=tile.device)
    owner = torch.arange(len(queries), device=tile.device).repeat_interleave(counts)
    place = torch.arange(len(owner), device=tile.device) - (counts.cumsum(0) - counts)[owner]
    flat = positives.start[queries][owner] + place
    ladder[owner, place] = -positives.score[flat]
    tile.neg_()
    width = deepest + 1
    base = torch.arange(len(queries), device=tile.device)[:, None] * width

    def histogram(slot: Tensor) -> Tensor:
        counts = torch.bincount((slot + base).flatten(), minlength=len(queries) * width)
        return counts.view(-1, width)[owner, place].int()

    high = torch.searchsorted(ladder, tile + tie, right=True)  # positives at or above the item
    placed = histogram(high)
    slots.counts[flat] += placed
    # The positive just ahead ties when it is not above the item.
    tied = (ladder.gather(1, (high - 1).clamp_min(0)) >= tile - tie) & (high > 0) & (tile < torch.inf)
    if not bool(tied.any()):
        return
    low = torch.where(tied, torch.searchsorted(ladder, tile - tie), high)
    # Among equals, positives and items go by gallery row: one rising key holds first the run, then the row.
    size = int(positives.index.max()) + column + tile.shape[1] + 1
    run = torch.searchsorted(ladder, ladder)
    key = torch.full_like(run, torch.iinfo(torch.int64).max)
    key[owner, place] = run[owner, place] * size + positives.index[flat]
    item = torch.arange(column, column + tile.shape[1], device=tile.device)
    middle = torch.where(tied, torch.searchsorted(key, low * size + item), high)
    by_row, before = slots.shifts()
    by_row[flat] += histogram(middle) - placed
    before[flat] += histogram(low) - placed
    slots.tied_first[queries] += (tied & (low == 0)).sum(dim=1)
