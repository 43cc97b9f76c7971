"""The items of a query's own class: which they are, and their exact scores, best first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from proxemics.evaluation.inputs import row_chunks
from proxemics.evaluation.space import Space

_ENTRIES = 2**18  # float64 numbers gathered at a time


@dataclass(frozen=True)
class Positives:
    """Positives of queries ``rows`` in compressed rows: those of query q are ``[start[q], start[q + 1])``.

    Attributes:
        start: (Q + 1,) int64.
        index: (P,) int32 gallery rows; by falling score, equal scores by rising row.
        score: (P,) float64 exact scores; scores that tie are made identical.
    """

    start: Tensor
    index: Tensor
    score: Tensor

    @property
    def counts(self) -> Tensor:
        """(Q,) int64 number of positives of each query."""
        return self.start.diff()


@dataclass(frozen=True)
class Forbidden:
    """Pairs that must not be ranked, beside the query itself.

    Attributes:
        rows: (F,) int64 query rows, sorted.
        cols: (F,) int64 gallery rows, sorted within a query.
        own: whether query i is gallery item i and is left out.
    """

    rows: Tensor
    cols: Tensor
    own: bool

    def between(self, first: int, last: int) -> tuple[Tensor, Tensor]:
        """Return the listed pairs whose query row is in [first, last)."""
        edge = torch.searchsorted(self.rows, torch.tensor([first, last], device=self.rows.device))
        part = slice(int(edge[0]), int(edge[1]))
        return self.rows[part], self.cols[part]


def count_positives(query: Tensor, gallery: Tensor, forbidden: Forbidden) -> Tensor:
    """Count the admissible gallery items of each query's class.

    Args:
        query: (Q,) int64 class codes.
        gallery: (G,) int64 class codes.
        forbidden: pairs left out.

    Returns:
        (Q,) int64.
    """
    classes = int(max(query.max(), gallery.max())) + 1
    counts = torch.bincount(gallery, minlength=classes)[query]
    if forbidden.own:
        counts -= 1
    lost = forbidden.rows[query[forbidden.rows] == gallery[forbidden.cols]]
    return counts - torch.bincount(lost, minlength=len(query))


def find_positives(space: Space, query: Tensor, gallery: Tensor, forbidden: Forbidden, rows: slice) -> Positives:
    """Score every query of ``rows`` against its own class.

    Args:
        space: exact scores.
        query: (Q,) int64 class codes of all queries.
        gallery: (G,) int64 class codes.
        forbidden: pairs left out.
        rows: the queries wanted; the result counts them from 0.
    """
    counts = count_positives(query, gallery, forbidden)[rows]
    start = torch.zeros(len(counts) + 1, dtype=torch.int64, device=query.device)
    torch.cumsum(counts, 0, out=start[1:])
    total = int(start[-1])
    index = torch.empty(total, dtype=torch.int32, device=query.device)
    score = torch.empty(total, dtype=torch.float64, device=query.device)
    for left, right in _blocks(query[rows], gallery, space.dim):
        _score_block(space, left + rows.start, right, rows.start, forbidden, (start, index, score))
    return Positives(start, index, score)


def _blocks(query: Tensor, gallery: Tensor, dim: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (C, q) query rows and (C, g) gallery rows of classes that share both sizes."""
    classes = int(max(query.max(), gallery.max())) + 1
    query_order, gallery_order = torch.argsort(query, stable=True), torch.argsort(gallery, stable=True)
    query_size, gallery_size = torch.bincount(query, minlength=classes), torch.bincount(gallery, minlength=classes)
    query_start, gallery_start = query_size.cumsum(0) - query_size, gallery_size.cumsum(0) - gallery_size
    present = torch.nonzero((query_size > 0) & (gallery_size > 0)).flatten()
    shape = query_size[present] * (len(gallery) + 1) + gallery_size[present]
    present = present[torch.argsort(shape, stable=True)]
    _, lengths = torch.unique_consecutive(
        query_size[present] * (len(gallery) + 1) + gallery_size[present], return_counts=True
    )
    if len(present) == 0:
        return
    for group in present.tensor_split(lengths.cumsum(0)[:-1].cpu()):
        q, g = int(query_size[group[0]]), int(gallery_size[group[0]])
        take = max(1, _ENTRIES // ((q + g) * dim + q * g))
        many = max(1, min(q, _ENTRIES // (g + dim)))
        for part in (group[piece] for piece in row_chunks(len(group), take)):
            right = gallery_order[gallery_start[part, None] + torch.arange(g, device=query.device)]
            for first in range(0, q, many):
                offset = torch.arange(first, min(first + many, q), device=query.device)
                yield query_order[query_start[part, None] + offset], right


def _score_block(
    space: Space,
    left: Tensor,
    right: Tensor,
    first: int,
    forbidden: Forbidden,
    out: tuple[Tensor, Tensor, Tensor],
) -> None:
    start, index, score = out
    classes, q, g = left.shape[0], left.shape[1], right.shape[1]
    rows = space.query.rows(left.flatten()).view(classes, q, -1)
    if space.query is space.gallery and torch.equal(left, right):
        values = torch.bmm(rows, rows.transpose(1, 2))
    else:
        values = torch.empty(classes, q, g, dtype=torch.float64, device=left.device)
        for part in row_chunks(g, max(1, _ENTRIES // (classes * space.dim))):
            cols = space.gallery.rows(right[:, part].flatten()).view(classes, -1, space.dim)
            values[:, :, part] = torch.bmm(rows, cols.transpose(1, 2))
    if space.bias is not None:
        values += space.bias[right][:, None, :]
    if forbidden.own:
        values.masked_fill_(left[:, :, None] == right[:, None, :], -torch.inf)
    if len(forbidden.rows):
        values.masked_fill_(_listed(left, right, space.gallery.raw.shape[0], forbidden), -torch.inf)
    values, order = torch.sort(values.view(-1, g), dim=1, descending=True, stable=True)
    items = right.repeat_interleave(q, dim=0).gather(1, order)
    items, values = _settle_ties(items, values, space.tie)
    target = start[left.flatten() - first, None] + torch.arange(g, device=left.device)
    kept = values > -torch.inf
    index[target[kept]] = items[kept].int()
    score[target[kept]] = values[kept]


def _listed(left: Tensor, right: Tensor, width: int, forbidden: Forbidden) -> Tensor:
    keys = forbidden.rows * width + forbidden.cols
    wanted = left[:, :, None] * width + right[:, None, :]
    place = torch.searchsorted(keys, wanted).clamp_max(len(keys) - 1)
    return keys[place] == wanted


def _settle_ties(items: Tensor, values: Tensor, tie: float) -> tuple[Tensor, Tensor]:
    """Order runs of equal scores by gallery row and give them one score."""
    gap = values[:, :-1] - values[:, 1:]
    tied = gap <= tie
    rows = torch.nonzero(tied.any(dim=1)).flatten()
    if len(rows) == 0:
        return items, values
    run = torch.zeros_like(items[rows])
    run[:, 1:] = (~tied[rows]).cumsum(dim=1)
    width = int(items.max()) + 1
    order = torch.argsort(run * width + items[rows], dim=1)
    items[rows] = items[rows].gather(1, order)
    first = torch.searchsorted(run, run)  # place of the first member of each run
    values[rows] = values[rows].gather(1, first)
    return items, values
