"""The index in a thread of its own, so that a back-end which belongs to one thread is only ever touched by it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from proxemics.core.errors import SearchError
from proxemics.search.index import Index
from proxemics.search.items import Hits
from proxemics.search.where import Condition

R = TypeVar("R")


@dataclass(frozen=True, eq=False)
class IndexQuery:
    """One search.

    Attributes:
        vector: (D,) float32.
        k: rows wanted.
        where: conditions.
    """

    vector: NDArray[np.float32]
    k: int
    where: tuple[Condition, ...] = ()


class IndexThread:
    """Opens an index and calls it, all in one thread.

    Args:
        address: see :class:`proxemics.search.index.Index`.
        read_only: never take the writer's place.

    Raises:
        SearchError: as :meth:`proxemics.search.index.Index.open`.
    """

    def __init__(self, address: str, *, read_only: bool) -> None:
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="index")
        try:
            self._index = self.thread.submit(Index.open, address, read_only=read_only).result()
        except BaseException:
            self.thread.shutdown(wait=False)
            raise

    def call_now(self, work: Callable[[Index], R]) -> R:
        """Call ``work`` with the index and wait; for the time before and after requests."""
        return self.thread.submit(work, self._index).result()

    async def call(self, work: Callable[[Index], R]) -> R:
        """Call ``work`` with the index while other requests go on."""
        return await asyncio.get_running_loop().run_in_executor(self.thread, work, self._index)

    def search(self, queries: Sequence[IndexQuery]) -> list[Hits | Exception]:
        """Search for several requests at once; call it in the thread.

        Queries with equal conditions go together. Conditions that the index refuses fail those queries and no others.
        """
        results: dict[int, Hits | Exception] = {}
        for rows in _alike(queries):
            k = max(queries[row].k for row in rows)
            vectors = np.stack([queries[row].vector for row in rows])
            try:
                found = self._index.search(vectors, k, where=queries[rows[0]].where)
            except SearchError as error:
                results.update(dict.fromkeys(rows, error))
                continue
            for row, hits in zip(rows, found, strict=True):
                results[row] = first(hits, queries[row].k, asked=k)
        return [results[row] for row in range(len(queries))]

    def close(self) -> None:
        """Close the index and end the thread."""
        self.thread.submit(self._index.close).result()
        self.thread.shutdown(wait=True)


def first(hits: Hits, k: int, *, asked: int) -> Hits:
    """Return the first k of hits that were found when more were asked for.

    Example:
        >>> first(Hits(["a", "b"], np.array([1, 0], np.float32), [{}, {}], missing=3), 4, asked=5).missing
        2
    """
    if k == asked:
        return hits
    return Hits(hits.ids[:k], hits.scores[:k], hits.meta[:k], missing=max(0, k - len(hits)))


def _alike(queries: Sequence[IndexQuery]) -> list[list[int]]:
    groups: dict[tuple[Condition, ...], list[int]] = {}
    for row, query in enumerate(queries):
        groups.setdefault(query.where, []).append(row)
    return list(groups.values())
