"""Sums over the queries of each class: all that paired differences need, small enough for a result file."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from proxemics.core.config import Config
from proxemics.evaluation.assess import Assessment
from proxemics.evaluation.paired import ClassSums, class_sums, paired_bootstrap

PAIRED = ("recall_at_1", "map_at_r")
"""Metrics whose gain over the untrained trunk gets an interval."""


def per_class(found: Assessment, labels: NDArray[Any]) -> dict[str, Any]:
    """Add up the queries of each class.

    Args:
        found: the measurement.
        labels: (N,) classes of the table that it is about.

    Returns:
        ``labels``; ``count``, their queries with a picture to find, or the sum of the weights of these in a mean over
        tasks; and the sums of each metric that is a mean over queries. Classes without such a query are left out.
    """
    sums = {name: _sums(found, None, labels, name) for name in found.result.query_metrics}
    one = next(iter(sums.values()))
    return {
        "labels": one.names.tolist(),
        "count": [round(float(value), 8) for value in one.count],
        **{name: [round(float(value), 8) for value in part.total] for name, part in sums.items()},
    }


def paired_differences(
    first: Assessment, second: Assessment, labels: NDArray[Any], config: Config
) -> dict[str, dict[str, Any]]:
    """Return the difference of two models over the same queries.

    Args:
        first: one model.
        second: the other, measured on the same rows.
        labels: (N,) classes of the rows.
        config: the number of resamples, and their seed.

    Returns:
        For each of :data:`PAIRED` that was measured, ``difference`` and ``interval``, 95 % over test classes; None
        where there is only one class.
    """
    found = {}
    for name in (name for name in PAIRED if name in first.result.query_metrics):
        sums = _sums(first, second, labels, name)
        one = paired_bootstrap([sums], resamples=config.evaluation.bootstrap, seed=config.seed)
        interval = None if np.isnan(one.low) else [round(one.low, 6), round(one.high, 6)]
        found[name] = {"difference": round(one.difference, 6), "interval": interval}
    return found


def _sums(first: Assessment, second: Assessment | None, labels: NDArray[Any], name: str) -> ClassSums:
    """Of first minus second, or of first alone."""
    values = np.asarray(first.result.per_query[name], np.float64)
    nothing = np.where(np.isnan(values), np.nan, 0.0)
    others = nothing if second is None else np.asarray(second.result.per_query[name], np.float64)
    weights = first.result.per_query.get("weight")
    queries = labels[first.selection.query].astype(str)
    if weights is None:
        return class_sums(values, others, queries)
    weights = np.asarray(weights, np.float64)
    return class_sums(values * weights, others * weights, queries, weights=weights)
