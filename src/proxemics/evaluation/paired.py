"""Paired differences of two models over the same queries: bootstrap over seeds and classes, and Holm's correction.

Two models are compared query by query. Queries of one class are not independent, and neither are the queries of one
training run, so both are resampled: runs (seeds) and, within them, test classes. A class that is tested under several
seeds is drawn together for all of them, because an easy class is easy under each seed; with the same test classes
everywhere this is a bootstrap over seeds x classes, with different ones it is seeds first, then classes within each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from proxemics.core.errors import EvaluationError
from proxemics.core.seeds import numpy_generator
from proxemics.evaluation.result import shorten

RESAMPLES = 2000
_DRAWS = 2**20  # class draws at a time


@dataclass(frozen=True)
class ClassSums:
    """Differences of one pair of runs, added up within each class; all that the bootstrap needs.

    Attributes:
        names: (C,) class names, sorted.
        total: (C,) float, sum over the queries of the class of first minus second.
        count: (C,) float, number of those queries, or the sum of their weights.
    """

    names: NDArray[np.str_]
    total: NDArray[np.float64]
    count: NDArray[np.float64]

    @property
    def difference(self) -> float:
        """Mean over queries of first minus second."""
        return float(self.total.sum() / self.count.sum())


@dataclass(frozen=True)
class PairedEstimate:
    """A difference and what is known of it.

    Attributes:
        difference: mean over seeds of the mean over queries, first minus second.
        low: lower end of the interval; NaN where there is nothing to resample.
        high: upper end of the interval; NaN likewise.
        p: two-sided bootstrap p-value, at least 2 / (resamples + 1); NaN likewise.
        num_seeds: pairs of runs.
        num_classes: different test classes over all seeds.
    """

    difference: float
    low: float
    high: float
    p: float
    num_seeds: int
    num_classes: int


def match_queries(
    first: Sequence[str] | NDArray[np.str_], second: Sequence[str] | NDArray[np.str_]
) -> NDArray[np.int64]:
    """Find each query of the first run in the second.

    Args:
        first: (Q,) paths, each once.
        second: (Q,) the same paths in any order.

    Returns:
        (Q,) row numbers: ``second[rows]`` equals ``first``.

    Raises:
        EvaluationError: a path is in only one of them (the message names it) or is listed twice.

    Example:
        >>> match_queries(["a", "b", "c"], ["c", "a", "b"])
        array([1, 2, 0])
    """
    place = {str(path): row for row, path in enumerate(second)}
    names = [str(path) for path in first]
    if len(place) != len(second) or len(set(names)) != len(names):
        raise EvaluationError("A query is listed more than once in one run; per-query values cannot be paired.")
    alone = sorted(set(names) ^ set(place))
    if alone:
        raise EvaluationError(
            f"{len(alone)} queries are in only one of the two runs: {shorten(alone, 2)}. They were tested on different "
            "pictures; give runs that share their split."
        )
    return np.array([place[name] for name in names], dtype=np.int64)


def class_sums(
    first: NDArray[np.float64],
    second: NDArray[np.float64],
    classes: Sequence[str] | NDArray[np.str_],
    *,
    weights: NDArray[np.float64] | None = None,
) -> ClassSums:
    """Add up the differences within each class.

    Args:
        first: (Q,) per-query values of one run; NaN where the query counts in no mean.
        second: (Q,) those of the other run for the same queries.
        classes: (Q,) class of each query.
        weights: (Q,) what the values were multiplied by, as in a mean over tasks of unequal size; None: 1.

    Raises:
        EvaluationError: lengths differ, a query counts in only one run, or none counts.

    Example:
        >>> sums = class_sums(np.array([1.0, 0, 1]), np.array([0.0, 0, 1]), ["x", "x", "y"])
        >>> sums.total, sums.count
        (array([1., 0.]), array([2., 1.]))
    """
    a, b, names = np.asarray(first, np.float64), np.asarray(second, np.float64), np.asarray(classes).astype(np.str_)
    if not a.shape == b.shape == names.shape or a.ndim != 1:
        raise EvaluationError(
            f"Per-query values of shapes {a.shape} and {b.shape} for {names.shape} classes; give (Q,)."
        )
    if (np.isnan(a) != np.isnan(b)).any():
        raise EvaluationError("A query counts in one run and not in the other; their galleries differ.")
    known = ~np.isnan(a)
    if not known.any():
        raise EvaluationError("No query counts in both runs, so there is nothing to compare.")
    found, codes = np.unique(names[known], return_inverse=True)
    total = np.bincount(codes, weights=(a - b)[known], minlength=len(found)).astype(np.float64)
    every = np.ones(len(a)) if weights is None else np.asarray(weights, np.float64)
    if every.shape != a.shape or not np.isfinite(every[known]).all():
        raise EvaluationError(f"Weights of shape {every.shape} for {len(a)} queries; give (Q,) finite numbers.")
    counted = every[known]
    return ClassSums(found, total, np.bincount(codes, weights=counted, minlength=len(found)).astype(np.float64))


def paired_bootstrap(
    pairs: Sequence[ClassSums], *, resamples: int = RESAMPLES, level: float = 0.95, seed: int = 0
) -> PairedEstimate:
    """Estimate the mean difference over seeds, with a percentile interval and a two-sided p-value.

    Each resample draws S - 1 of the S seeds and all test classes, both with replacement. One seed fewer makes the
    variance over a few seeds unbiased (McCarthy and Snowden, 1985). A single seed is kept as it is: then the
    interval speaks of other test classes, and not of other training runs.

    Args:
        pairs: one a seed, from :func:`class_sums`.
        resamples: n, number of bootstrap samples.
        level: coverage in (0, 1).
        seed: of the resampling.

    Returns:
        The estimate; with p = 2 (1 + k) / (n + 1), at most 1, where k counts the resamples on the rarer side of 0.

    Raises:
        EvaluationError: no pairs, or fewer than one resample.

    Example:
        >>> same = class_sums(np.ones(4), np.ones(4), list("aabb"))
        >>> paired_bootstrap([same])
        PairedEstimate(difference=0.0, low=0.0, high=0.0, p=1.0, num_seeds=1, num_classes=2)
    """
    if not pairs:
        raise EvaluationError("No pair of runs to compare.")
    if resamples < 1 or not 0 < level < 1:
        raise EvaluationError(f"resamples={resamples}, level={level}: give a positive number and a share in (0, 1).")
    names = np.unique(np.concatenate([one.names for one in pairs]))
    difference = float(np.mean([one.difference for one in pairs]))
    if len(names) < 2 and len(pairs) < 2:
        return PairedEstimate(difference, float("nan"), float("nan"), float("nan"), len(pairs), len(names))
    draws = _resample(pairs, names, resamples, seed)
    tail = 100 * (1 - level) / 2
    low, high = np.percentile(draws, [tail, 100 - tail])
    rarer = min(int((draws <= 0).sum()), int((draws >= 0).sum()))
    p = min(1.0, 2 * (1 + rarer) / (len(draws) + 1))
    return PairedEstimate(difference, float(low), float(high), p, len(pairs), len(names))


def _resample(pairs: Sequence[ClassSums], names: NDArray[np.str_], resamples: int, seed: int) -> NDArray[np.float64]:
    """(n,) resampled mean differences; resamples that drew no class of the drawn seeds are left out."""
    columns = [np.searchsorted(names, one.names) for one in pairs]
    sums = [np.stack([one.total, one.count], axis=1) for one in pairs]
    count, seeds = len(names), len(pairs)
    generator = numpy_generator(seed, "paired_bootstrap")
    kept = max(seeds - 1, 1)
    result = np.empty(resamples)
    step = max(1, _DRAWS // count)
    for start in range(0, resamples, step):
        rows = min(step, resamples - start)
        weights = _multiplicities(generator.integers(0, count, size=(rows, count)), count)
        chosen = _multiplicities(generator.integers(0, seeds, size=(rows, kept)), seeds)
        means = np.empty((rows, seeds))
        for number, (column, table) in enumerate(zip(columns, sums, strict=True)):
            total = weights[:, column] @ table
            means[:, number] = np.divide(total[:, 0], total[:, 1], out=np.full(rows, np.nan), where=total[:, 1] > 0)
        chosen = np.where(np.isnan(means), 0.0, chosen)
        drawn = chosen.sum(axis=1)
        value = (chosen * np.nan_to_num(means)).sum(axis=1)
        result[start : start + rows] = np.divide(value, drawn, out=np.full(rows, np.nan), where=drawn > 0)
    return result[~np.isnan(result)]


def _multiplicities(drawn: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """(R, count) how often each number was drawn in each row of (R, D)."""
    rows = len(drawn)
    flat = (drawn + np.arange(rows)[:, None] * count).ravel()
    return np.bincount(flat, minlength=rows * count).reshape(rows, count).astype(np.float64)


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for the number of comparisons (Holm, 1979).

    Sorted upwards, the i-th of m p-values (i from 0) is multiplied by m - i; none becomes smaller than one before it,
    and none larger than 1. NaN stays NaN and is not counted.

    Args:
        p_values: in any order.

    Returns:
        The corrected values in the same order.

    Example:
        >>> holm([0.04, 0.01, 0.03])
        [0.06, 0.03, 0.06]
    """
    values = np.asarray(p_values, np.float64)
    known = np.flatnonzero(~np.isnan(values))
    order = known[np.argsort(values[known], kind="stable")]
    result = np.full(len(values), np.nan)
    scaled = values[order] * np.arange(len(order), 0, -1)
    result[order] = np.minimum(np.maximum.accumulate(scaled), 1.0) if len(order) else scaled
    return [float(value) for value in result]
