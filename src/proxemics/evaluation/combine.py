"""Several retrieval tasks as one result: the unweighted mean over the tasks, with every query kept.

A task counts once, however many images it has. Each query carries a ``weight`` for that: the mean over all counted
queries of value times weight is the unweighted mean over the tasks, so that intervals and paired comparisons can treat
the whole as one list of queries.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from proxemics.core.errors import EvaluationError
from proxemics.evaluation.intervals import class_intervals
from proxemics.evaluation.protocols.rows import Selection
from proxemics.evaluation.result import EvaluationResult

TASK = "task"
"""Group column that says which task a query belongs to."""


def combine_selections(name: str, parts: Mapping[str, Selection]) -> Selection:
    """Put the queries and galleries of several tasks behind each other.

    Args:
        name: of the whole.
        parts: the tasks.

    Returns:
        A selection whose gallery positions are those of :func:`combine_results`. Rows may occur more than once, and
        ranking it as a whole would mean nothing.

    Example:
        >>> one = Selection("a", np.array([0, 1]), np.array([0, 1]), np.array([[0, 0], [1, 1]]))
        >>> two = Selection("b", np.array([2]), np.array([3]), np.zeros((0, 2), np.int64))
        >>> combine_selections("both", {"a": one, "b": two}).gallery.tolist()
        [0, 1, 3]
    """
    steps = _starts([len(part.gallery) for part in parts.values()])
    queries = _starts([len(part.query) for part in parts.values()])
    pairs = [
        part.forbidden + np.array([[first, second]], dtype=np.int64)
        for part, first, second in zip(parts.values(), queries, steps, strict=False)
    ]
    return Selection(
        name,
        np.concatenate([part.query for part in parts.values()]),
        np.concatenate([part.gallery for part in parts.values()]),
        np.concatenate(pairs),
    )


def combine_results(
    results: Mapping[str, EvaluationResult], gallery_sizes: Mapping[str, int], *, bootstrap: int = 0, seed: int = 0
) -> EvaluationResult:
    """Average the results of several tasks, each counting once.

    Args:
        results: one a task; all with the same metrics.
        gallery_sizes: number of gallery images of each task.
        bootstrap: resamples for the intervals; classes are resampled, a class of several tasks as one.
        seed: of the resampling.

    Returns:
        Metrics and bounds are unweighted means over the tasks, counts are sums. ``per_query`` holds all queries with
        ``weight`` (NaN for lone queries that are left out), gallery positions count on from task to task, and
        ``per_group("task")`` gives back the tasks.

    Raises:
        EvaluationError: no task, or tasks with different metrics.
    """
    parts = list(results.values())
    if not parts or any(list(one.metrics) != list(parts[0].metrics) for one in parts):
        raise EvaluationError("Only results with the same metrics can be averaged, and at least one is needed.")
    per_query = _join_queries(results, gallery_sizes)
    names = parts[0].query_metrics
    weight = np.asarray(per_query["weight"], np.float64)
    values = {name: np.asarray(per_query[name], np.float64) * weight for name in names}
    groups = {
        column: np.concatenate([one.groups[column] for one in parts])
        for column in parts[0].groups
        if all(column in one.groups for one in parts)
    }
    sizes = [len(one.per_query["num_positives"]) for one in parts]
    groups[TASK] = np.repeat(np.array(list(results), dtype=np.str_), sizes)
    return EvaluationResult(
        metrics={name: float(np.mean([one.metrics[name] for one in parts])) for name in parts[0].metrics},
        num_queries=sum(one.num_queries for one in parts),
        num_lone=sum(one.num_lone for one in parts),
        num_ties=sum(one.num_ties for one in parts),
        per_query=per_query,
        groups=groups,
        intervals=_intervals(values, weight, groups["class"], bootstrap, seed),
        bounds={
            name: (
                float(np.mean([one.bounds[name][0] for one in parts])),
                float(np.mean([one.bounds[name][1] for one in parts])),
            )
            for name in parts[0].bounds
        },
        missing_labels=tuple(dict.fromkeys(label for one in parts for label in one.missing_labels)),
        notes=_join_notes(results),
        metric=parts[0].metric,
        mean_similarity=float(np.mean([one.mean_similarity for one in parts])),
        counts_lone=parts[0].counts_lone,
        query_metrics=names,
    )


def _starts(sizes: list[int]) -> list[int]:
    return [0, *np.cumsum(sizes).tolist()]


def _join_queries(
    results: Mapping[str, EvaluationResult], gallery_sizes: Mapping[str, int]
) -> dict[str, NDArray[np.generic]]:
    """Put the per-query columns behind each other, with gallery positions moved on and the weights added."""
    parts = list(results.values())
    starts = _starts([gallery_sizes[name] for name in results])
    moved = []
    for one, start in zip(parts, starts, strict=False):
        columns = dict(one.per_query)
        for name in ("nearest", "neighbours"):
            if name in columns:
                columns[name] = np.where(columns[name] >= 0, columns[name] + start, -1)
        moved.append(columns)
    shared = [name for name in moved[0] if all(name in columns for columns in moved)]
    joined = {name: np.concatenate([columns[name] for columns in moved]) for name in shared}
    total = sum(one.num_queries for one in parts)
    weights = [
        np.where((one.per_query["num_positives"] > 0) | one.counts_lone, total / (len(parts) * one.num_queries), np.nan)
        for one in parts
    ]
    return {**joined, "weight": np.concatenate(weights)}


def _intervals(
    values: Mapping[str, NDArray[np.float64]],
    weight: NDArray[np.float64],
    classes: NDArray[np.str_],
    bootstrap: int,
    seed: int,
) -> dict[str, tuple[float, float]]:
    """Bootstrap over classes of the quotient of the sums of value times weight and of weight."""
    codes = np.unique(classes, return_inverse=True)[1].astype(np.int64)
    return class_intervals(values, codes, resamples=bootstrap, seed=seed, weights=weight)


def _join_notes(results: Mapping[str, EvaluationResult]) -> tuple[str, ...]:
    """Keep a note of all tasks once, and name the task of any other."""
    tasks: dict[str, list[str]] = {}
    for name, one in results.items():
        for note in one.notes:
            tasks.setdefault(note, []).append(name)
    return tuple(note if len(names) == len(results) else f"{', '.join(names)}: {note}" for note, names in tasks.items())
