"""A look at a collection from inside: do its rows find themselves, and is what it keeps whole?"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from proxemics.search.index import Verified
from proxemics.search.items import Hits, Items
from proxemics.search.milvus.collection import as_items
from proxemics.search.milvus.filters import digest, keys_of
from proxemics.search.milvus.nearest import exactly
from proxemics.search.remote import agreement


def verify(
    read: Callable[[], Iterable[list[Any]]],
    search: Callable[..., list[Hits]],
    dim: int,
    sample: int,
    seed: int,
) -> Verified:
    """Measure an index; see :meth:`proxemics.search.Index.verify`.

    Args:
        read: gives all rows with all that they keep, page by page; called twice.
        search: searches for vectors.
        dim: length of the vectors.
        sample: how many rows to look at.
        seed: which ones.
    """
    count = uneven = 0
    drawn: list[Any] = []
    for page in read():
        count += len(page)
        lengths = np.linalg.norm(as_items(page, dim).vectors, axis=1)
        uneven += int(np.count_nonzero(abs(lengths - 1) > 1e-3))
        drawn = heapq.nsmallest(sample, [*drawn, *page], key=lambda row: digest(f"{seed} {row['id']}"))
    rows = as_items(drawn, dim)
    found: list[Hits] = search(rows.vectors, 10) if len(rows) else []
    exact = exactly((_unit(as_items(page, dim)) for page in read()), rows.vectors, 10) if len(rows) else []
    itself, recall = agreement(rows, found, exact)
    problems = []
    if uneven:
        problems.append(f"{uneven:,} vectors are not of unit length; they were not written by Proxemics.")
    stale = sum(
        any(row.get(key) != value for key, value in keys_of(row["id"], row["metadata"]).items()) for row in drawn
    )
    if stale:
        problems.append(
            f"{stale} of {len(drawn)} rows were changed by another program, so filters miss them; upsert them."
        )
    if itself < 1:
        problems.append(f"{1 - itself:.1%} of the rows looked at do not find themselves first; run compact().")
    return Verified(count, len(rows), itself, recall, tuple(problems))


def _unit(items: Items) -> Items:
    lengths = np.linalg.norm(items.vectors, axis=1, keepdims=True)
    return Items(items.ids, items.vectors / np.maximum(lengths, 1e-12), items.meta)
