"""Keeping, tile by tile, every row that may be among the k nearest, by a bound that is proven."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class Pool:
    """Candidates of Q queries over tiles of screened scores.

    With ``|exact - screened| <= eps`` a row among the exact k nearest has a screened score of at least the k-th largest
    screened score less ``2 eps``: the k-th exact score is at least that less ``eps``, and its own is at most ``eps``
    below. So a pool keeps all of those, equal scores included, and raises its limits as better rows come.

    Args:
        queries: how many.
        k: rows asked for.
        eps: (Q,) float32 bounds, in the unit of the scores.
    """

    def __init__(self, queries: int, k: int, eps: NDArray[np.float32]) -> None:
        self._k = k
        self._slack = 2 * eps.astype(np.float32)
        self._limits = np.full(queries, -np.inf, np.float32)
        self._open = True
        self._parts: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]] = []
        self._waiting = 0
        self._seen = self._settled = 0

    def offer(self, scores: NDArray[np.float32], first: int) -> None:
        """Take a tile.

        Args:
            scores: (Q, T) screened scores; -inf where a row may not be returned.
            first: column of the gallery that the tile starts at.
        """
        if self._open:
            self._begin(scores)
        query, column = self._passing(scores)
        if query.size:
            self._parts.append((query, column + first, scores[query, column]))
            self._waiting += query.size
        self._seen += scores.shape[1]
        if not self._settled and not self._open:
            self._settled = self._seen  # the first limits are as high as they can be
        elif self._seen >= 2 * self._settled or self._waiting > 16 * self._k * len(self._limits):
            self._settle()

    def _passing(self, scores: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where scores reach the limits."""
        by_query = scores.flags.c_contiguous
        table = scores if by_query else scores.T
        if self._open:
            found = _places(table > -np.inf)
            return found if by_query else found[::-1]
        reached = None
        if self._seen > 8 * self._k * scores.shape[1]:  # later, few queries have any: look for those first
            reached = np.flatnonzero(scores.max(axis=1) >= self._limits)
        if reached is None or 8 * reached.size > len(scores):
            found = _places(table >= (self._limits[:, None] if by_query else self._limits))
            return found if by_query else found[::-1]
        if by_query:
            query, column = _places(table[reached] >= self._limits[reached, None])
        else:
            column, query = _places(table[:, reached] >= self._limits[reached])
        return reached[query], column

    def candidates(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return query (n,) and column (n,), by rising query."""
        if not self._parts:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        if len(self._limits) > 4 or self._waiting > 16 * self._k:  # fewer are scored as fast as sorted
            self._settle()
        return np.concatenate([part[0] for part in self._parts]), np.concatenate([part[1] for part in self._parts])

    def _begin(self, scores: NDArray[np.float32]) -> None:
        """Set the first limits, once a tile has k rows."""
        if scores.shape[1] < self._k:
            return
        place = scores.shape[1] - self._k
        limits = np.partition(scores, place, axis=1)[:, place] - self._slack
        self._limits = np.maximum(limits, np.finfo(np.float32).min)  # a row that may not be returned never reaches it
        self._open = False

    def _settle(self) -> None:
        """Join the parts, raise the limits, drop what is below."""
        self._settled, self._waiting = self._seen, 0
        if not self._parts:
            return
        query, column, score = (np.concatenate(part) for part in zip(*self._parts, strict=True))
        order = np.argsort(query * (4.0 * float(np.abs(score).max()) + 1.0) - score)  # by query, then by falling score
        query, column, score = query[order], column[order], score[order]
        starts = np.searchsorted(query, np.arange(len(self._limits) + 1))
        enough = np.flatnonzero(np.diff(starts) >= self._k)
        last = score[starts[enough] + self._k - 1]
        self._limits[enough] = np.maximum(self._limits[enough], last - self._slack[enough])
        kept = score >= self._limits[query]
        self._parts = [(query[kept], column[kept], score[kept])]


def _places(flags: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return row and column of what is true."""
    flat = np.flatnonzero(flags).astype(np.int64, copy=False)  # several times as fast as for a matrix
    row = flat // max(1, flags.shape[1])
    return row, flat - row * flags.shape[1]
