"""Two runs of one seed: were they tested on the same pictures, and by how much do they differ class by class?"""

from __future__ import annotations

import numpy as np

from proxemics.core.errors import EvaluationError
from proxemics.evaluation.paired import ClassSums, class_sums, match_queries
from proxemics.report.compare_rows import FileRow
from proxemics.report.compare_runs import Run

Compared = Run | FileRow


def check_pair(first: Compared, second: Compared) -> str | None:
    """Refuse two runs that were tested on different pictures.

    Args:
        first: any run or row.
        second: of the same data set, protocol and seed.

    Returns:
        A sentence where something must be said, else None.

    Raises:
        EvaluationError: the test pictures differ; the message names both.
    """
    marks = (first.fingerprint, second.fingerprint)
    if None in marks:
        unmarked = first if marks[0] is None else second
        return f"{unmarked.folder.name} has no data fingerprints, so the test pictures cannot be compared with others'."
    if marks[0] == marks[1]:
        return None
    if not _same_test(first, second):
        raise EvaluationError(
            f"{first.folder} and {second.folder} were tested on different pictures (data fingerprints "
            f"{str(marks[0])[:8]} and {str(marks[1])[:8]}), so they cannot be compared. Give both runs the same "
            "source, split and seed."
        )
    return (
        f"{first.variant} and {second.variant} share their test pictures but not all others (seed {first.seed}); "
        "they were trained on different data."
    )


def _same_test(first: Compared, second: Compared) -> bool:
    """Whether test pictures agree where the fingerprints of all pictures do not; a file knows them by class alone."""
    if isinstance(first, Run) and isinstance(second, Run):
        return first.test_fingerprint == second.test_fingerprint
    for metric in first.row["metrics"]:
        one, other = first.class_totals(metric), second.class_totals(metric)
        if one is not None and other is not None:
            return _same_queries(one, other)
    return False


def _same_queries(one: ClassSums, other: ClassSums) -> bool:
    return np.array_equal(one.names, other.names) and np.allclose(one.count, other.count)


def paired_sums(first: Compared, second: Compared, metric: str) -> ClassSums | None:
    """Return first minus second, added up within each test class.

    Run folders are paired query by query. Where a row of a file takes part, its sums over classes are paired.

    Args:
        first: any run or row.
        second: of the same data set, protocol and seed.
        metric: name as in ``result.json``.

    Returns:
        None where the metric is no mean over queries, or where a row has no sums over classes.

    Raises:
        EvaluationError: their queries differ.
    """
    if isinstance(first, Run) and isinstance(second, Run):
        return _by_query(first, second, metric)
    one, other = first.class_totals(metric), second.class_totals(metric)
    if one is None or other is None:
        return None
    if not _same_queries(one, other):
        raise EvaluationError(
            f"{first.folder} and {second.folder} cannot be compared: {first.variant} and {second.variant} with seed "
            f"{first.seed} have other test classes, or other numbers of queries in them; evaluate both anew."
        )
    return ClassSums(one.names, one.total - other.total, one.count)


def _by_query(first: Run, second: Run, metric: str) -> ClassSums | None:
    values, others = first.values(metric), second.values(metric)
    if values is None or others is None:
        return None
    try:
        rows = match_queries(first.query_paths, second.query_paths)
        return class_sums(values, others[rows], first.queries["label"].to_numpy(str), weights=first.weights)
    except EvaluationError as error:
        raise EvaluationError(f"{first.folder} and {second.folder} cannot be compared: {error}") from None
