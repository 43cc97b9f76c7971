"""Rows of an index that came by enrolment: they carry a mark, and only marked rows are ever taken out again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from proxemics.search.index import Index
from proxemics.search.items import Items, Meta
from proxemics.search.where import Condition

ENROLLED = "enrolled"
"""The key in the metadata of rows that came by enrolment; forgetting a class removes these and no others."""
_BATCH = 1000


def put_rows(index: Index, ids: Sequence[str], vectors: NDArray[np.float32], meta: Sequence[Meta]) -> tuple[int, int]:
    """Write pictures of enrolled classes as rows.

    A row that was there before, without the mark, gets the new vector and keeps its metadata: it stays when its class
    is forgotten.

    Args:
        index: open for writing.
        ids: N ids.
        vectors: (N, D) of unit length.
        meta: N mappings; the mark is added.

    Returns:
        How many rows were added, and how many replaced.
    """
    before = index.get(ids)
    kept = {name: one for name, one in zip(before.ids, before.meta, strict=True) if one.get(ENROLLED) is not True}
    marked = [kept.get(name, {**one, ENROLLED: True}) for name, one in zip(ids, meta, strict=True)]
    return index.upsert(Items.make(list(ids), vectors, marked))


def enrolled_rows(index: Index, labels: Sequence[str]) -> list[str]:
    """Return the ids of all rows that were enrolled under some labels."""
    wheres = [[Condition("label", "eq", label), Condition(ENROLLED, "eq", True)] for label in labels]
    return [name for where in wheres for items in index.scan(_BATCH, where=where) for name in items.ids]


def take_rows(index: Index, ids: Sequence[str]) -> int:
    """Remove rows for good, and return how many there were."""
    if not ids:
        return 0
    removed = index.remove(ids)
    index.compact()  # else the vectors would stay on disk, marked as removed
    return removed
