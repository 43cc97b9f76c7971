"""One set, two parts of a set, or domains: the protocols that only choose queries and a gallery."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from proxemics.core.errors import DataError
from proxemics.evaluation.protocols.rows import Selection, Table, column_of, rows_with, select, select_with_gallery
from proxemics.evaluation.result import shorten


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
    rows = (
        rows_with(table, "split", split) if "split" in list(table.keys()) else np.arange(len(column_of(table, "label")))
    )
    return select("zero_shot", rows, rows)


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
    return select_with_gallery(
        table, "query_gallery", rows_with(table, column, query), rows_with(table, column, gallery), absent=absent
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
    query, gallery = rows_with(table, "domain", query_domain), rows_with(table, "domain", gallery_domain)
    if split is not None:
        inside = rows_with(table, "split", split)
        query, gallery = np.intersect1d(query, inside), np.intersect1d(gallery, inside)
    return select_with_gallery(table, f"cross_domain_{query_domain}_{gallery_domain}", query, gallery, absent=absent)


def all_domain_pairs(table: Table, *, split: str | None = None, absent: str = "error") -> dict[str, Selection]:
    """Each domain searches each other one; the protocol's number is the unweighted mean over the ordered pairs.

    Args:
        table: with ``label`` and ``domain``.
        split: keep the rows of this split only.
        absent: as in :func:`query_gallery`.

    Returns:
        One selection a pair, named ``query -> gallery``.

    Raises:
        DataError: fewer than two domains, or classes absent from a gallery.

    Example:
        >>> table = {"label": ["a"] * 3, "domain": ["photo", "sketch", "art"]}
        >>> list(all_domain_pairs(table))[:3]
        ['art -> photo', 'art -> sketch', 'photo -> art']
    """
    _, names = _domains(table, split, "cross-domain retrieval")
    return {
        f"{one} -> {other}": cross_domain(table, one, other, split=split, absent=absent)
        for one in names
        for other in names
        if one != other
    }


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
    rows, names = _domains(table, split, "leaving one out")
    domains = column_of(table, "domain")
    return {
        name: select_with_gallery(
            table,
            f"leave_one_domain_out_{name}",
            rows[domains[rows] == name],
            rows[domains[rows] != name],
            absent=absent,
        )
        for name in names
    }


def _domains(table: Table, split: str | None, what: str) -> tuple[NDArray[np.int64], list[str]]:
    """Return the rows of a split and the names of their domains, of which there must be two."""
    domains = column_of(table, "domain")
    rows = np.arange(len(domains)) if split is None else rows_with(table, "split", split)
    names = [str(name) for name in np.unique(domains[rows])]
    if len(names) < 2:
        raise DataError(f"The table has {len(names)} domain(s) ({shorten(names)}); {what} needs two or more.")
    return rows, names
