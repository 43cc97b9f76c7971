"""What goes into an index and what comes out of a search."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from proxemics.core.errors import SearchError

Scalar: TypeAlias = "str | int | float | bool | None"
Meta: TypeAlias = "dict[str, Scalar]"


@dataclass(frozen=True, eq=False)
class Items:
    """Rows for an index.

    Attributes:
        ids: N different names, none empty, 512 characters at most.
        vectors: (N, D) float32, finite, of unit length.
        meta: N dictionaries of plain values, such as ``{"label": "cat", "domain": "", "path": "cat/1.jpg"}``.

    Example:
        >>> items = Items.make(["a"], [[3.0, 4.0]], [{"label": "cat"}])
        >>> items.vectors.round(1).tolist(), len(items)
        ([[0.6000000238418579, 0.800000011920929]], 1)
    """

    ids: list[str]
    vectors: NDArray[np.float32]
    meta: list[Meta]

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def make(
        cls,
        ids: Sequence[str],
        vectors: NDArray[np.generic] | Sequence[Sequence[float]],
        meta: Sequence[Mapping[str, Scalar]] | None = None,
    ) -> Items:
        """Check rows and put their vectors on the unit sphere.

        Args:
            ids: N different names.
            vectors: (N, D) numbers of any length but zero.
            meta: N dictionaries; None: empty ones.

        Raises:
            SearchError: other shapes, an id twice or empty, a vector that is zero or not finite, a value that is not
                plain.
        """
        names = [str(one) for one in ids]
        rows = unit_rows(vectors, count=len(names))
        about: list[Meta] = [{} for _ in names] if meta is None else [_plain(one) for one in meta]
        if len(about) != len(names):
            raise SearchError(f"{len(names)} ids came with {len(about)} rows of metadata; give one for each id.")
        _check_ids(names)
        return cls(names, rows, about)


@dataclass(frozen=True, eq=False)
class Hits:
    """The neighbours of one query, the nearest first.

    Attributes:
        ids: at most k names.
        scores: (n,) float32 cosines, falling.
        meta: n dictionaries.
        missing: how many of the k rows asked for were not found, because the index (or what the filter leaves of it)
            is smaller, or because an approximate index gave up; 0 is the rule.
    """

    ids: list[str]
    scores: NDArray[np.float32]
    meta: list[Meta] = field(default_factory=list)
    missing: int = 0

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def of_shared(cls, ids: list[str], scores: NDArray[np.float32], shared: list[Meta], missing: int) -> Hits:
        """Make hits whose dictionaries belong to somebody else; they are copied when ``meta`` is first asked for.

        Args:
            ids: n names.
            scores: (n,) float32.
            shared: n dictionaries, which nobody changes.
            missing: as in the class.

        Example:
            >>> kept = {"label": "cat"}
            >>> hits = Hits.of_shared(["a"], np.ones(1, np.float32), [kept], 0)
            >>> hits.meta[0]["label"] = "dog"
            >>> hits.meta, kept
            ([{'label': 'dog'}], {'label': 'cat'})
        """
        hits = cls.__new__(cls)
        hits.__dict__.update(ids=ids, scores=scores, missing=missing, _shared=shared)
        return hits

    if not TYPE_CHECKING:  # a checker would take any name for metadata

        def __getattr__(self, name: str) -> list[Meta]:
            if name != "meta" or "_shared" not in self.__dict__:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            return self.__dict__.setdefault("meta", [dict(one) for one in self.__dict__["_shared"]])

        def __getstate__(self) -> dict[str, object]:
            return {"ids": self.ids, "scores": self.scores, "meta": self.meta, "missing": self.missing}


def unit_rows(
    vectors: NDArray[np.generic] | Sequence[Sequence[float]], *, count: int | None = None, dim: int | None = None
) -> NDArray[np.float32]:
    """Return vectors as (N, D) float32 of unit length; the length is taken in float64.

    Float32 rows that have unit length already, to 5e-7, are kept bit for bit, so that copying rows changes nothing.

    Args:
        vectors: (N, D) numbers.
        count: how many rows there must be.
        dim: how many columns there must be.

    Raises:
        SearchError: another shape, or a row that is zero or not finite; the message names the row.
    """
    rows = np.asarray(vectors, dtype=np.float64)
    if rows.ndim == 1 and rows.size == 0:
        rows = rows.reshape(0, dim or 0)
    if rows.ndim != 2 or (count is not None and len(rows) != count) or (dim is not None and rows.shape[1] != dim):
        wanted = f"({'N' if count is None else count}, {'D' if dim is None else dim})"
        raise SearchError(f"Vectors have shape {rows.shape}; give {wanted}, one row for each picture.")
    lengths = np.sqrt(np.einsum("nd,nd->n", rows, rows))
    is_float32 = isinstance(vectors, np.ndarray) and vectors.dtype == np.float32
    if is_float32 and len(rows) and bool((abs(lengths - 1) <= 5e-7).all()):  # as a rule it ends here
        return np.ascontiguousarray(vectors, dtype=np.float32)
    bad = np.flatnonzero(~np.isfinite(lengths) | (lengths == 0))
    if bad.size:
        raise SearchError(f"Vector {bad[0]} is zero or not finite; leave that picture out, or look at the model.")
    return np.ascontiguousarray((rows / lengths[:, None] if len(rows) else rows).astype(np.float32))


def _check_ids(names: Sequence[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if not name or len(name) > 512 or "\0" in name:
            raise SearchError(f"Id {name[:40]!r} is empty, longer than 512 characters or holds a zero byte.")
        if name in seen:
            raise SearchError(f"Id {name!r} stands twice in one call; ids must differ.")
        seen.add(name)


def _plain(meta: Mapping[str, Scalar]) -> Meta:
    for key, value in meta.items():
        if not isinstance(key, str) or not isinstance(value, str | int | float | bool | None):
            raise SearchError(f"Metadata {key!r}: {type(value).__name__} is not a plain value; give text or a number.")
        if isinstance(value, float) and not math.isfinite(value):
            raise SearchError(f"Metadata {key!r}: {value} is no number that JSON knows; leave it out or give None.")
    return dict(meta)
