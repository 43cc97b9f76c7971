"""The units of a job: parts, which are written at once, and batches, which are embedded at once.

Both are cut by row number alone, so that a job that was killed, or runs on other machines, or with other threads, forms
the same batches and gives the same vectors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from proxemics.export.jobs.places import Place

PART_ROWS = 512
BATCH = 32


class Batch(NamedTuple):
    """Rows that go through the model together.

    Attributes:
        part: number of the part that they belong to.
        start: the first row; the others follow it.
        places: where their pictures lie.
        data: the bytes themselves, where a source can only be read from the front to the back.
    """

    part: int
    start: int
    places: list[Place]
    data: list[bytes] | None = None


@dataclass(frozen=True, eq=False)
class BatchResult:
    """What came of a batch.

    Attributes:
        part: as in :class:`Batch`.
        count: rows of the batch, unreadable ones too.
        rows: (n,) int64, the rows that could be read.
        vectors: (n, D) float32.
        kappa: (n,) float32.
        failures: row and reason of each that could not.
    """

    part: int
    count: int
    rows: NDArray[np.int64]
    vectors: NDArray[np.float32]
    kappa: NDArray[np.float32]
    failures: list[tuple[int, str]] = field(default_factory=list)


def part_bounds(rows: int, part_rows: int = PART_ROWS) -> list[tuple[int, int]]:
    """Cut rows into parts.

    Example:
        >>> part_bounds(5, 2)
        [(0, 2), (2, 4), (4, 5)]
    """
    return [(start, min(start + part_rows, rows)) for start in range(0, rows, part_rows)]


def cut_batches(
    places: list[Place], parts: Iterable[int], *, part_rows: int = PART_ROWS, batch: int = BATCH
) -> Iterator[Batch]:
    """Cut some parts into batches, none of which reaches into the next part.

    Args:
        places: of all rows.
        parts: numbers of the parts to do.
        part_rows: rows of a part.
        batch: rows of a batch, at most.

    Example:
        >>> places = [Place("file", name) for name in "abcde"]
        >>> [(one.part, one.start, len(one.places)) for one in cut_batches(places, [0, 1], part_rows=3, batch=2)]
        [(0, 0, 2), (0, 2, 1), (1, 3, 2)]
    """
    for part in parts:
        first = part * part_rows
        last = min(first + part_rows, len(places))
        for start in range(first, last, batch):
            yield Batch(part, start, places[start : min(start + batch, last)])
