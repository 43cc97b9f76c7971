"""What the back-ends on servers share: names, manifests, and what is checked before a call leaves."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from proxemics.__about__ import __version__
from proxemics.core.errors import SearchError
from proxemics.search.items import Hits, Items, Scalar, unit_rows
from proxemics.search.manifest import FORMAT, Manifest, ModelKey
from proxemics.search.where import OPERATORS, Condition

MOST_ROWS = 10_000
"""Largest ``k`` of a search."""

MOST_CONDITIONS = 100
"""Most conditions in one filter."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,47}")


class AbsentError(SearchError):
    """The server, or the file, is fine and has no index of that name."""


def index_name(text: str) -> str:
    """Return the name of an index when it can stand for a table and a collection.

    Raises:
        SearchError: it is empty, longer than 48 characters, or holds something else than letters, digits and ``_``.

    Example:
        >>> index_name("birds_2024")
        'birds_2024'
        >>> index_name('birds"; DROP TABLE x')
        Traceback (most recent call last):
        proxemics.core.errors.SearchError: The index is called 'birds"; DROP TABLE x'; ...
    """
    if not _NAME.fullmatch(text):
        raise SearchError(
            f"The index is called {text[:60]!r}; end the address with ?index=NAME, where NAME has 1 to 48 letters, "
            "digits or underscores and does not start with a digit."
        )
    return text


def new_manifest(
    key: ModelKey, *, kind: Literal["exact", "hnsw"], dtype: Literal["float32", "int8"], title: str, server: str
) -> Manifest:
    """Return the manifest of an index that is made now.

    Args:
        key: the model of its vectors.
        kind: ``exact`` or ``hnsw``.
        dtype: only ``float32``.
        title: free text.
        server: what the server is called in the message.

    Raises:
        SearchError: the vectors are to be kept as int8.
    """
    if dtype != "float32":
        raise SearchError(
            f"{server} has no {dtype} vectors that keep scores exact; use dtype float32, or a folder as the address."
        )
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return Manifest(key=key, kind=kind, dtype=dtype, version=__version__, created=now, title=title)


def read_manifest(content: Mapping[str, object], address: str) -> Manifest:
    """Check and return the manifest that a server keeps.

    Raises:
        SearchError: a newer Proxemics wrote it, or it is no manifest.
    """
    found = content.get("format")
    if isinstance(found, int) and found > FORMAT:
        raise SearchError(
            f"The index at {address} has format {found}, and this Proxemics reads up to {FORMAT}; update Proxemics."
        )
    try:
        return Manifest.model_validate(dict(content))
    except ValidationError as error:
        raise SearchError(
            f"The manifest of the index at {address} cannot be read ({error.errors()[0]['msg']}); "
            "it was changed by hand or made by something else."
        ) from error


def asked(manifest: Manifest, vectors: NDArray[np.float32], k: int, key: ModelKey | None) -> NDArray[np.float32]:
    """Check a search before it leaves, and return its queries as (Q, D) unit rows.

    Raises:
        SearchError: another model, another length, a query that is zero or not finite, k out of range.
    """
    if key is not None:
        manifest.check(key)
    if isinstance(k, bool) or not 1 <= k <= MOST_ROWS:
        raise SearchError(f"k is {k}; ask for 1 to {MOST_ROWS:,} rows.")
    queries = np.asarray(vectors)
    if queries.ndim == 2 and queries.shape == (0, manifest.key.dim):
        return queries.astype(np.float32)
    if queries.ndim != 2:
        raise SearchError(f"Queries have shape {queries.shape}; give (Q, {manifest.key.dim}), one row for each query.")
    return unit_rows(queries, dim=manifest.key.dim)


def rows_to_write(manifest: Manifest, items: Items, *, read_only: bool) -> Items:
    """Check rows before they leave, and return them with unit vectors.

    Raises:
        SearchError: the index was opened read-only, vectors have another length, an id stands twice, or a value cannot
            be kept.
    """
    refuse_when(read_only)
    if not len(items):
        return items
    vectors = unit_rows(items.vectors, count=len(items.ids), dim=manifest.key.dim)
    if len(set(items.ids)) != len(items.ids):
        raise SearchError("An id stands twice in one call; ids must differ.")
    for name, meta in zip(items.ids, items.meta, strict=True):
        _check_text(name, name)
        for key, value in meta.items():
            _check_text(key, name)
            _check_value(key, value, name)
    return Items(list(items.ids), vectors, list(items.meta))


def refuse_when(read_only: bool) -> None:
    """Refuse a change of an index that was opened read-only."""
    if read_only:
        raise SearchError("The index was opened read-only; open it without read_only to change it.")


def number_in(text: str) -> float | None:
    """Return the finite number that a text writes, or None.

    Example:
        >>> number_in("1e1"), number_in("nan"), number_in("cat")
        (10.0, None, None)
    """
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def equal_to(value: float) -> float | None:
    """Return the finite 64-bit float that a field must equal, or None when no number of a row can.

    Example:
        >>> equal_to(3), equal_to(float("nan")), equal_to(10**400)
        (3.0, None, None)
    """
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def check_where(where: Sequence[Condition]) -> None:
    """Refuse conditions that are not of the form that :class:`Condition` tells.

    Raises:
        SearchError: an operator is unknown, or its value is not of its kind, or there are more than 100.
    """
    if len(where) > MOST_CONDITIONS:
        raise SearchError(f"{len(where)} conditions stand in one filter; give at most {MOST_CONDITIONS}.")
    for one in where:
        if one.operator not in OPERATORS:
            raise SearchError(f"Filter operator {one.operator!r} is unknown; give one of {', '.join(OPERATORS)}.")
        if isinstance(one.value, tuple) != (one.operator == "in"):
            many = "several values" if one.operator == "in" else "one value"
            raise SearchError(f"Filter on {one.field!r}: {one.operator} takes {many}.")


def keepable(text: str) -> bool:
    """Say whether a text has a UTF-8 form and no zero byte; no row holds any other.

    Example:
        >>> keepable("日本"), keepable(chr(0)), keepable(chr(0xD800))
        (True, False, False)
    """
    return "\0" not in text and not any("\ud800" <= one <= "\udfff" for one in text)


def agreement(rows: Items, found: Sequence[Hits], exact: Sequence[Hits]) -> tuple[float, float]:
    """Compare what an index found for rows of its own with the exact answer.

    Args:
        rows: (S, D) rows that were searched for.
        found: what the index answers.
        exact: what a scan of all rows answers.

    Returns:
        The share of rows that found themselves (or a row with an equal vector) first, and the share of the exact
        neighbours that were found; rows of equal score count as each other. Both are 1 when there is no row.
    """
    if not len(rows):
        return 1.0, 1.0
    first = sum(
        bool(len(hits)) and (hits.ids[0] == name or float(hits.scores[0]) >= 1 - 1e-6)
        for name, hits in zip(rows.ids, found, strict=True)
    )
    shared = sum(
        int(np.count_nonzero(hits.scores >= true.scores[-1] - 1e-6)) if len(true) else 0
        for hits, true in zip(found, exact, strict=True)
    )
    total = sum(len(true) for true in exact)
    return first / len(rows), min(1.0, shared / max(total, 1))


def _check_text(text: str, name: str) -> None:
    if not keepable(text):
        raise SearchError(f"Row {name!r} has a text with a zero byte or half a character, {text[:40]!r}; take it out.")


def _check_value(key: str, value: Scalar, name: str) -> None:
    if isinstance(value, str):
        _check_text(value, name)
    elif isinstance(value, float) and not math.isfinite(value):
        raise SearchError(f"Row {name!r} has {key} = {value}, which is no number that a server keeps; leave it out.")
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise SearchError(f"Row {name!r} has a whole number beyond 64 bits in {key!r}; give it as text.")
