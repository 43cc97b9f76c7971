"""The exact k nearest rows: screened in tiles, then scored in float64, equal scores in the order of ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from proxemics.search.local.pool import Pool
from proxemics.search.local.screens import Screen, empty_tile

QUERIES = 1024
"""Queries of one block."""

LEAST = 1024
"""Columns of a tile at least."""

Names: TypeAlias = "Callable[[Sequence[int]], list[str]]"
"""From slots to ids."""
Found: TypeAlias = "tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]"
"""Query (n,), slot (n,), score (n,)."""


def screened(screen: Screen, k: int, hidden: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find every column that may be among the k nearest of a query.

    Args:
        screen: of all queries.
        k: rows asked for.
        hidden: (n,) rising columns that may not be returned.

    Returns:
        Query (n,) and column (n,), by rising query.
    """
    parts = []
    for start in range(0, len(screen.eps), QUERIES):
        some = slice(start, min(start + QUERIES, len(screen.eps)))
        query, column = _block(screen, some, k, hidden)
        parts.append((query + start, column))
    return np.concatenate([one for one, _ in parts]), np.concatenate([one for _, one in parts])


def _block(
    screen: Screen, some: slice, k: int, hidden: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    count = some.stop - some.start
    pool = Pool(count, k, screen.eps[some])
    width = max(LEAST, min(1 << 16 if count == 1 else 1 << 13, screen.entries // count))
    buffer = np.empty(count * max(width, 2 * k), np.float32)
    first = 0
    while first < screen.columns:
        # A short first tile gives limits early; where much is hidden it must still show k rows to give any.
        last = min(first + (width if first else min(width, 1024) if 2 * k <= 1024 else 2 * k), screen.columns)
        tile = empty_tile(buffer, count, last - first)
        screen.tile(first, last, some, tile)
        gone = hidden[np.searchsorted(hidden, first) : np.searchsorted(hidden, last)]
        if gone.size:
            tile[:, gone - first] = -np.inf
        pool.offer(tile, first)
        first = last
    return pool.candidates()


def rescore(
    vectors: NDArray[np.float32],
    queries: NDArray[np.float32],
    query: NDArray[np.int64],
    slots: NDArray[np.int64],
) -> NDArray[np.float32]:
    """Score pairs in float64, each by itself, so that equal rows have equal scores.

    Args:
        vectors: (N, D) unit rows.
        queries: (Q, D) unit rows.
        query: (n,) which query.
        slots: (n,) which row.

    Returns:
        (n,) float32.
    """
    counts = np.bincount(query, minlength=len(queries))
    most = int(counts.max(initial=0))
    if most * len(queries) <= 2 * len(slots) and bool((query[1:] >= query[:-1]).all()):
        return _rescore_even(vectors, queries, counts, slots)
    scores = np.empty(len(slots), np.float32)
    step = max(1, (1 << 20) // vectors.shape[1])
    for start in range(0, len(slots), step):
        part = slice(start, start + step)
        left, right = vectors[slots[part]].astype(np.float64), queries[query[part]].astype(np.float64)
        scores[part] = np.einsum("nd,nd->n", left, right)
    return scores


def _rescore_even(
    vectors: NDArray[np.float32], queries: NDArray[np.float32], counts: NDArray[np.int64], slots: NDArray[np.int64]
) -> NDArray[np.float32]:
    """The same where pairs go by query and all queries have about as many: each query is read once."""
    taken = np.arange(int(counts.max(initial=0))) < counts[:, None]
    padded = np.zeros(taken.shape, np.int64)
    padded[taken] = slots
    return rescore_lists(vectors, queries, padded)[taken]


def rescore_lists(
    vectors: NDArray[np.float32], queries: NDArray[np.float32], slots: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Score a list of rows for each query in float64.

    Args:
        vectors: (N, D) unit rows.
        queries: (Q, D) unit rows.
        slots: (Q, m) which rows.

    Returns:
        (Q, m) float32.
    """
    scores = np.empty(slots.shape, np.float32)
    step = max(1, (1 << 18) // max(1, slots.shape[1] * vectors.shape[1]))
    for start in range(0, len(queries), step):
        part = slice(start, start + step)
        right = vectors[slots[part]].astype(np.float64)
        scores[part] = np.einsum("qkd,qd->qk", right, queries[part].astype(np.float64))
    return scores


def ranked(found: Found, count: int, k: int, names: Names) -> list[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """Sort pairs into the k best of each query.

    Args:
        found: pairs, each once.
        count: Q, how many queries there are.
        k: rows a query.
        names: gives the ids of slots, asked for where scores are equal.

    Returns:
        For each query its slots and scores, the best first.
    """
    query, slot, score = found
    order = np.lexsort((-score, query))
    query, slot, score = query[order], slot[order], score[order]
    starts = np.searchsorted(query, np.arange(count + 1))
    equal = np.flatnonzero((query[1:] == query[:-1]) & (score[1:] == score[:-1]))
    tied = set(query[equal[equal - starts[query[equal]] < k]].tolist()) if equal.size else set()
    answers = []
    for one in range(count):
        slots, scores = slot[starts[one] : starts[one + 1]], score[starts[one] : starts[one + 1]]
        if one in tied:
            slots = _by_name(slots, scores, k, names)
        answers.append((slots[:k], scores[:k]))
    return answers


def _by_name(slots: NDArray[np.int64], scores: NDArray[np.float32], k: int, names: Names) -> NDArray[np.int64]:
    """Put the rows of each score in the order of their ids; those that cannot come back stay as they are."""
    reach = int(np.searchsorted(-scores, -scores[min(k, len(scores)) - 1], side="right"))
    slots = slots.copy()
    edges = np.flatnonzero(np.diff(scores[:reach])) + 1
    for start, stop in zip([0, *edges.tolist()], [*edges.tolist(), reach], strict=True):
        if stop - start > 1:
            run = slots[start:stop]
            ids = names(run.tolist())
            slots[start:stop] = run[sorted(range(len(run)), key=ids.__getitem__)]
    return slots
