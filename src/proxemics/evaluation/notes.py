"""Sentences that go with the numbers: what was left out, what coincides by construction, what is suspicious."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from proxemics.evaluation.metrics import Wanted
from proxemics.evaluation.result import shorten

COLLAPSED = 0.99


def exclusion_notes(lone: int, lone_names: Sequence[str], missing_names: Sequence[str], *, counted: bool) -> list[str]:
    """Say which queries have no positive and what became of them.

    Args:
        lone: their number.
        lone_names: their classes.
        missing_names: those of the classes that the gallery lacks altogether.
        counted: whether they count as misses.

    Example:
        >>> exclusion_notes(1, ["cat"], [], counted=True)
        ['1 query without another image of its class in the gallery counts as a miss: class cat.']
    """
    notes = []
    if lone:
        subject = "1 query" if lone == 1 else f"{lone} queries"
        its, verb = ("its", "counts as a miss") if lone == 1 else ("their", "count as misses")
        if not counted:
            verb = ("is" if lone == 1 else "are") + " left out of every mean (count_lone_as_miss=True counts misses)"
        notes.append(
            f"{subject} without another image of {its} class in the gallery {verb}: "
            f"class{'es' if len(lone_names) > 1 else ''} {shorten(lone_names)}."
        )
    if missing_names:
        notes.append(f"The gallery holds no image of {len(missing_names)} query class(es): {shorten(missing_names)}.")
    return notes


def coincidence_notes(wanted: Wanted, positives: NDArray[np.int64], reachable: int, metric: str) -> list[str]:
    """Say which numbers agree, or are fixed, by construction.

    Args:
        wanted: the metrics.
        positives: (Q,) number of positives of each query.
        reachable: gallery items that a query ranks.
        metric: cosine, euclidean or dot.

    Example:
        >>> coincidence_notes(Wanted((1, 5), (1,), None), np.array([1, 1]), 3, "dot")[-1]
        'Recall@5 is 1 by construction: a query ranks only 3 items.'
    """
    notes = []
    if metric == "cosine":
        notes.append(
            "Cosine and Euclidean distance rank unit embeddings alike, so c_recall and e_recall of other reports "
            "coincide by construction."
        )
    if 1 in wanted.recall_at and 1 in wanted.precision_at:
        notes.append("recall_at_1 and precision_at_1 coincide by construction.")
    if len(positives) and bool((positives[positives > 0] == 1).all()) and 1 in wanted.recall_at:
        notes.append("Every query has one positive, so recall_at_1, r_precision and map_at_r coincide by construction.")
    fixed = [str(k) for k in wanted.recall_at if k >= reachable]
    if fixed:
        notes.append(f"Recall@{', @'.join(fixed)} is 1 by construction: a query ranks only {reachable} items.")
    return notes


def quality_notes(ties: int, mean_cosine: float, zero_rows: int) -> list[str]:
    """Say what makes the numbers doubtful.

    Args:
        ties: queries that the order of equal similarities matters to.
        mean_cosine: over pairs of queries.
        zero_rows: embeddings of length 0.

    Example:
        >>> quality_notes(0, 0.1, 0)
        []
    """
    notes = []
    if ties:
        notes.append(
            f"The values of {ties} quer{'y' if ties == 1 else 'ies'} depend on the order of equal similarities, which "
            "is by gallery row; bounds hold the worst and the best order."
        )
    if mean_cosine > COLLAPSED:
        notes.append(
            f"The embeddings have collapsed: the mean cosine between two of them is {mean_cosine:.4f}, "
            f"above {COLLAPSED}."
        )
    if zero_rows:
        notes.append(f"{zero_rows} embedding(s) have length 0; their similarity to everything is taken as 0.")
    return notes
