"""What an evaluation returns: numbers with their definitions, counts, intervals and a row for every query."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from proxemics.core.errors import EvaluationError, did_you_mean


@dataclass(frozen=True, repr=False)
class EvaluationResult(Mapping[str, float]):
    """Metric values by name, ``result["recall_at_1"]``, and everything needed to read them.

    Attributes:
        metrics: value by name, each in [0, 1] except ``rho_spectrum``.
        num_queries: queries that the means are taken over.
        num_lone: queries without another item of their class in the gallery.
        num_ties: queries whose values depend on how equal similarities are ordered.
        per_query: arrays of length Q by name: the metrics (NaN for lone queries; ``average_precision`` is that of
            ``map_at_r``), ``num_positives``, ``nearest`` (gallery row, -1 if none) and its ``similarity``, and
            ``neighbours`` and ``neighbour_similarities`` (Q, k).
        groups: column name to group names (Q,), for :meth:`per_group`.
        intervals: (low, high) by name: 95 % bootstrap over classes, with the given seed.
        bounds: (pessimistic, optimistic) by name: every tie read against the query, or for it.
        missing_labels: labels of queries that the gallery does not hold.
        notes: sentences that a reader of the numbers must know.
        metric: ``cosine``, ``euclidean`` or ``dot``.
        mean_similarity: mean cosine over all pairs of different queries.
    """

    metrics: dict[str, float]
    num_queries: int
    num_lone: int
    num_ties: int
    per_query: dict[str, NDArray[Any]]
    groups: dict[str, NDArray[np.str_]]
    intervals: dict[str, tuple[float, float]]
    bounds: dict[str, tuple[float, float]]
    missing_labels: tuple[str, ...]
    notes: tuple[str, ...]
    metric: str
    mean_similarity: float
    counts_lone: bool = False
    query_metrics: tuple[str, ...] = field(default=())

    def __getitem__(self, name: str) -> float:
        if name not in self.metrics:
            raise KeyError(
                f"No metric {name!r}; computed are {', '.join(self.metrics)}.{did_you_mean(name, self.metrics)}"
            )
        return self.metrics[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.metrics)

    def __len__(self) -> int:
        return len(self.metrics)

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value:.4f}" for name, value in self.metrics.items())
        return f"EvaluationResult({values}; {self.num_queries} queries, {self.num_lone} lone, {self.num_ties} tied)"

    def per_group(self, column: str = "class") -> dict[str, dict[str, float]]:
        """Mean of every per-query metric within each group.

        Args:
            column: ``class``, or a column that was passed as ``groups``, such as ``domain``.

        Returns:
            By group name in sorted order: ``num_queries``, ``num_lone`` and the metrics (NaN where all are lone).

        Raises:
            EvaluationError: unknown column.
        """
        if column not in self.groups:
            raise EvaluationError(
                f"No column {column!r}; there are {', '.join(self.groups)}.{did_you_mean(column, self.groups)} "
                "Pass others as groups={name: values}."
            )
        names, codes = np.unique(self.groups[column], return_inverse=True)
        lone = self.per_query["num_positives"] == 0
        counted = np.ones_like(lone) if self.counts_lone else ~lone
        sizes = np.bincount(codes, weights=counted, minlength=len(names))
        table = {"num_queries": sizes, "num_lone": np.bincount(codes, weights=lone, minlength=len(names))}
        for name in self.query_metrics:
            total = np.bincount(codes, weights=np.where(lone, 0.0, self.per_query[name]), minlength=len(names))
            table[name] = np.divide(total, sizes, out=np.full(len(names), np.nan), where=sizes > 0)
        return {
            str(group): {
                key: int(value[i]) if key.startswith("num_") else float(value[i]) for key, value in table.items()
            }
            for i, group in enumerate(names)
        }

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the per-query rows, ready for JSON (NaN becomes None)."""
        return {
            "metrics": {name: _plain(value) for name, value in self.metrics.items()},
            "intervals": {name: [_plain(value) for value in pair] for name, pair in self.intervals.items()},
            "bounds": {name: [_plain(value) for value in pair] for name, pair in self.bounds.items()},
            "num_queries": self.num_queries,
            "num_lone": self.num_lone,
            "num_ties": self.num_ties,
            "missing_labels": list(self.missing_labels),
            "metric": self.metric,
            "mean_similarity": _plain(self.mean_similarity),
            "notes": list(self.notes),
        }


def _plain(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def shorten(names: Sequence[str], most: int = 5) -> str:
    """Join names for a message, cutting a long list.

    Example:
        >>> shorten(["a", "b", "c"], 2)
        'a, b and 1 more'
    """
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[:most])} and {len(names) - most} more"
