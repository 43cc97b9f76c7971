"""Who is a query, who is in the gallery: pure functions from a table to row numbers.

A table is any mapping of column names to sequences of one length (a dictionary, a pandas frame). Rows are numbered from
0 in the order of the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from proxemics.core.errors import DataError, did_you_mean
from proxemics.evaluation.result import shorten


class Table(Protocol):
    """Columns by name; a dictionary of lists or a pandas frame."""

    def __getitem__(self, column: str, /) -> Any:
        """Return one column."""
        ...

    def keys(self) -> Any:
        """Return the column names."""
        ...


@dataclass(frozen=True)
class Selection:
    """A retrieval task over the rows of a table.

    Attributes:
        name: of the protocol, for reports.
        query: (Q,) int64 rows.
        gallery: (G,) int64 rows; the same rows as ``query`` when the set is searched for itself.
        forbidden: (F, 2) int64 pairs of positions in ``query`` and ``gallery`` that must not be ranked: an image and
            itself.
    """

    name: str
    query: NDArray[np.int64]
    gallery: NDArray[np.int64]
    forbidden: NDArray[np.int64]

    @property
    def own(self) -> bool:
        """Whether the queries search themselves."""
        return bool(np.array_equal(self.query, self.gallery))


def column_of(table: Table, name: str) -> NDArray[np.str_]:
    """Return a column as text.

    Raises:
        DataError: the table does not have it; the message names those it has.

    Example:
        >>> column_of({"label": [1, 2]}, "label").tolist()
        ['1', '2']
    """
    columns = [str(column) for column in table.keys()]  # noqa: SIM118 - a frame iterates over columns, a table need not
    if name not in columns:
        raise DataError(
            f"The table has no column {name!r}; it has {shorten(columns, 12)}.{did_you_mean(name, columns)}"
        )
    return np.asarray([str(value) for value in table[name]], dtype=np.str_)


def rows_with(table: Table, column: str, value: str) -> NDArray[np.int64]:
    """Return the numbers of the rows whose column has a value.

    Raises:
        DataError: no row has it.

    Example:
        >>> rows_with({"domain": ["photo", "sketch", "photo"]}, "domain", "photo").tolist()
        [0, 2]
    """
    values = column_of(table, column)
    rows = np.flatnonzero(values == value).astype(np.int64)
    if len(rows) == 0:
        present = [str(name) for name in np.unique(values)]
        raise DataError(
            f"No row has {column}={value!r}; the column holds {shorten(present, 12) or 'nothing'}."
            f"{did_you_mean(value, present)}"
        )
    return rows


def select_with_gallery(
    table: Table, name: str, query: NDArray[np.int64], gallery: NDArray[np.int64], *, absent: str
) -> Selection:
    """Make a selection, and deal with queries whose class the gallery lacks.

    Args:
        table: with ``label``.
        name: of the protocol.
        query: (Q,) rows.
        gallery: (G,) rows.
        absent: ``error`` refuses such queries, ``skip`` drops them, ``keep`` leaves them to the evaluation.

    Raises:
        DataError: nothing is left, or classes are absent and ``absent`` is ``error``.
    """
    if absent not in ("error", "skip", "keep"):
        raise DataError(f"absent={absent!r}; use error, skip or keep.")
    labels = column_of(table, "label")
    found = np.isin(labels[query], labels[gallery])
    if absent == "error" and not found.all():
        lacking = [str(label) for label in np.unique(labels[query][~found])]
        raise DataError(
            f"{name}: the gallery has no image of {len(lacking)} query class(es): {shorten(lacking)}. Move images of "
            'them to the gallery, or pass absent="skip" to drop their queries.'
        )
    return select(name, query[found] if absent == "skip" else query, gallery)


def select(name: str, query: NDArray[np.int64], gallery: NDArray[np.int64]) -> Selection:
    """Make a selection in which no row is its own neighbour.

    Raises:
        DataError: no query or no gallery row is left.

    Example:
        >>> select("x", np.array([0, 2]), np.array([1, 2])).forbidden.tolist()
        [[1, 1]]
    """
    for part, rows in (("query", query), ("gallery", gallery)):
        if len(rows) == 0:
            raise DataError(f"{name}: no {part} images are left; check the split and domain names.")
    _, left, right = np.intersect1d(query, gallery, return_indices=True)
    return Selection(name, query, gallery, np.stack([left, right], axis=1).astype(np.int64))


def rows_of(values: Sequence[Any] | NDArray[Any], rows: NDArray[np.int64]) -> list[Any]:
    """Pick rows of a plain sequence.

    Example:
        >>> rows_of(["a", "b", "c"], np.array([2, 0]))
        ['c', 'a']
    """
    return [values[int(row)] for row in rows]
