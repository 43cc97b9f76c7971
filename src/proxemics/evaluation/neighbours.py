"""The k nearest gallery items of each query, kept exactly while tiles go by."""

from __future__ import annotations

import torch
from torch import Tensor

_GRID = 2.0**40  # scores are ordered on this grid, so that equal scores fall back to the gallery row


class NearestList:
    """The best k of the items offered so far, by falling score, equal scores by rising gallery row.

    Args:
        queries: number of queries.
        k: length of the lists; 0 keeps nothing.
        floor: (Q,) float64, a score which k admissible items outside the list are known to reach (-inf if none).

    Example:
        >>> best = NearestList(1, 2, torch.full((1,), -torch.inf, dtype=torch.float64))
        >>> best.offer(torch.tensor([0, 0, 0]), torch.tensor([4, 5, 6]), torch.tensor([0.1, 0.9, 0.9]).double())
        >>> best.items.tolist()
        [[5, 6]]
    """

    def __init__(self, queries: int, k: int, floor: Tensor) -> None:
        self.k = k
        self.scores = torch.full((queries, k), -torch.inf, dtype=torch.float64, device=floor.device)
        self.items = torch.full((queries, k), -1, dtype=torch.int64, device=floor.device)
        self._floor = floor

    def bound(self, rows: slice) -> Tensor:
        """Scores (n,) below which an item can no longer enter; +inf when nothing is kept."""
        if self.k == 0:
            return torch.full_like(self._floor[rows], torch.inf)
        return torch.maximum(self.scores[rows, -1], self._floor[rows])

    def forget(self, rows: Tensor) -> None:
        """Empty the lists of some queries."""
        self.scores[rows], self.items[rows] = -torch.inf, -1

    def offer(self, rows: Tensor, items: Tensor, scores: Tensor) -> None:
        """Offer n items: query rows (n,), gallery rows (n,), exact scores (n,) float64."""
        if self.k == 0 or len(rows) == 0:
            return
        order = _order(items, scores)
        order = order[torch.sort(rows[order], stable=True).indices]
        rows, items, scores = rows[order], items[order], scores[order]
        touched, where, counts = torch.unique_consecutive(rows, return_inverse=True, return_counts=True)
        place = torch.arange(len(rows), device=rows.device) - (counts.cumsum(0) - counts)[where]
        kept = place < self.k
        slots = where[kept] * self.k + place[kept]
        new_scores = torch.full((len(touched) * self.k,), -torch.inf, dtype=torch.float64, device=rows.device)
        new_items = torch.full_like(new_scores, -1, dtype=torch.int64)
        new_scores[slots], new_items[slots] = scores[kept], items[kept]
        all_scores = torch.cat([self.scores[touched], new_scores.view(-1, self.k)], dim=1)
        all_items = torch.cat([self.items[touched], new_items.view(-1, self.k)], dim=1)
        best = _order(all_items, all_scores)[:, : self.k]
        self.scores[touched], self.items[touched] = all_scores.gather(1, best), all_items.gather(1, best)


def _order(items: Tensor, scores: Tensor) -> Tensor:
    """Order of the last axis by falling score, then rising item."""
    by_item = torch.sort(items, dim=-1, stable=True).indices
    grid = torch.round(scores * _GRID).gather(-1, by_item)
    return by_item.gather(-1, torch.sort(grid, dim=-1, descending=True, stable=True).indices)
