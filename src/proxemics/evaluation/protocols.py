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


def zero_shot(table: Table, *, split: str = "test") -> Selection:
    """Every image of a split queries the others of the split (CUB, Cars, SOP).

    Args:
        table: with a column ``split``; without one all rows are taken.
        split: its value.

    Raises:
        DataError: no such rows.

    Example:
        >>> zero_shot({"label": list("aabb"), "split": ["train", "test", "test", "test"]}).query.tolist()
        [1, 2, 3]
    """
    rows = _rows(table, "split", split) if "split" in list(table.keys()) else np.arange(len(_column(table, "label")))
    return _select("zero_shot", rows, rows)


def query_gallery(
    table: Table, *, column: str = "split", query: str = "query", gallery: str = "gallery", absent: str = "error"
) -> Selection:
    """Two parts of a table (In-Shop).

    Args:
        table: with ``label`` and ``column``.
        column: which column names the parts.
        query: its value for queries.
        gallery: its value for gallery items.
        absent: ``error`` refuses queries whose class the gallery lacks, ``skip`` drops them, ``keep`` leaves them to
            the evaluation, which counts them.

    Raises:
        DataError: an empty part, or classes absent from the gallery (they are named).

    Example:
        >>> parts = {"label": ["a", "a", "b"], "split": ["query", "gallery", "query"]}
        >>> query_gallery(parts, absent="skip").query.tolist()
        [0]
    """
    return _with_gallery(
        table, "query_gallery", _rows(table, column, query), _rows(table, column, gallery), absent=absent
    )


def cross_domain(
    table: Table, query_domain: str, gallery_domain: str, *, split: str | None = None, absent: str = "error"
) -> Selection:
    """Queries of one domain search another, e.g. sketches search photographs.

    Args:
        table: with ``label`` and ``domain``.
        query_domain: domain of the queries.
        gallery_domain: domain of the gallery.
        split: keep the rows of this split only.
        absent: as in :func:`query_gallery`.

    Raises:
        DataError: unknown domain, or classes absent from the gallery.

    Example:
        >>> table = {"label": ["a", "a"], "domain": ["sketch", "photo"]}
        >>> cross_domain(table, "sketch", "photo").gallery.tolist()
        [1]
    """
    query, gallery = _rows(table, "domain", query_domain), _rows(table, "domain", gallery_domain)
    if split is not None:
        inside = _rows(table, "split", split)
        query, gallery = np.intersect1d(query, inside), np.intersect1d(gallery, inside)
    return _with_gallery(table, f"cross_domain_{query_domain}_{gallery_domain}", query, gallery, absent=absent)


def leave_one_domain_out(table: Table, *, split: str | None = None, absent: str = "error") -> dict[str, Selection]:
    """Each domain in turn searches all the others.

    Args:
        table: with ``label`` and ``domain``.
        split: keep the rows of this split only.
        absent: as in :func:`query_gallery`.

    Returns:
        One selection a domain, by the domain of the queries.

    Raises:
        DataError: fewer than two domains, or classes absent from a gallery.

    Example:
        >>> table = {"label": ["a"] * 3, "domain": ["photo", "sketch", "art"]}
        >>> {name: part.gallery.tolist() for name, part in leave_one_domain_out(table).items()}
        {'art': [0, 1], 'photo': [1, 2], 'sketch': [0, 2]}
    """
    domains = _column(table, "domain")
    rows = np.arange(len(domains)) if split is None else _rows(table, "split", split)
    names = [str(name) for name in np.unique(domains[rows])]
    if len(names) < 2:
        raise DataError(f"The table has {len(names)} domain(s) ({shorten(names)}); leaving one out needs two or more.")
    return {
        name: _with_gallery(
            table,
            f"leave_one_domain_out_{name}",
            rows[domains[rows] == name],
            rows[domains[rows] != name],
            absent=absent,
        )
        for name in names
    }


def _column(table: Table, name: str) -> NDArray[np.str_]:
    columns = [str(column) for column in table.keys()]  # noqa: SIM118 - a frame iterates over columns, a table need not
    if name not in columns:
        raise DataError(
            f"The table has no column {name!r}; it has {shorten(columns, 12)}.{did_you_mean(name, columns)}"
        )
    return np.asarray([str(value) for value in table[name]], dtype=np.str_)


def _rows(table: Table, column: str, value: str) -> NDArray[np.int64]:
    values = _column(table, column)
    rows = np.flatnonzero(values == value).astype(np.int64)
    if len(rows) == 0:
        present = [str(name) for name in np.unique(values)]
        raise DataError(
            f"No row has {column}={value!r}; the column holds {shorten(present, 12) or 'nothing'}."
            f"{did_you_mean(value, present)}"
        )
    return rows


def _with_gallery(
    table: Table, name: str, query: NDArray[np.int64], gallery: NDArray[np.int64], *, absent: str
) -> Selection:
    if absent not in ("error", "skip", "keep"):
        raise DataError(f"absent={absent!r}; use error, skip or keep.")
    labels = _column(table, "label")
    found = np.isin(labels[query], labels[gallery])
    if absent == "error" and not found.all():
        lacking = [str(label) for label in np.unique(labels[query][~found])]
        raise DataError(
            f"{name}: the gallery has no image of {len(lacking)} query class(es): {shorten(lacking)}. Move images of "
            'them to the gallery, or pass absent="skip" to drop their queries.'
        )
    return _select(name, query[found] if absent == "skip" else query, gallery)


def _select(name: str, query: NDArray[np.int64], gallery: NDArray[np.int64]) -> Selection:
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
