"""The metric set of Roth et al. ("Revisiting Training Strategies and Generalization Performance in DML", 2020).

Their code differs from the usual definitions in two ways, and both are kept here: a query whose class has no other
image counts as a miss, and both kinds of mean average precision divide by the class size with the query counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from proxemics.evaluation.evaluate import evaluate_embeddings
from proxemics.evaluation.inputs import Embeddings
from proxemics.evaluation.labels import Labels
from proxemics.evaluation.result import EvaluationResult

RECALL_AT = (1, 2, 4, 8)
HORIZON = 1000
METRICS = (*(f"recall_at_{k}" for k in RECALL_AT), "nmi", "f1", "map_c_roth", f"map_{HORIZON}_roth", "rho_spectrum")
"""R@1, R@2, R@4, R@8, NMI, F1, mAP_c, mAP_1000 and the ρ-spectrum, as the result names them."""


def roth(
    embeddings: Embeddings,
    labels: Labels,
    *,
    clustering: bool = True,
    neighbours: int = 1,
    groups: Mapping[str, Sequence[str] | NDArray[np.generic]] | None = None,
    paths: Sequence[str] | None = None,
    bootstrap: int = 0,
    seed: int = 0,
) -> EvaluationResult:
    """Measure test classes as Roth et al. do: every image against all others, with their metrics.

    Args:
        embeddings: (N, D) of the test images.
        labels: (N,) their classes.
        clustering: whether to compute ``nmi``, ``f1`` and ``rho_spectrum``, which take longer; the first two need
            scikit-learn, and are means over three k-means seeds, where the paper has one.
        neighbours: how many to keep for each query.
        groups: column name to (N,) values.
        paths: (N,) file names for messages.
        bootstrap: resamples for intervals.
        seed: of k-means and the resampling.

    Returns:
        A result with :data:`METRICS` and what every evaluation has. ``map_at_r`` and ``r_precision`` in it count lone
        queries as misses too, so they are not those of the other protocols when there are any.

    Raises:
        EvaluationError: as :func:`evaluate_embeddings`.

    Example:
        >>> result = roth(np.eye(3)[[0, 0, 1, 1]], ["a", "a", "b", "b"], clustering=False)
        >>> result["recall_at_1"], result["map_c_roth"], result["map_1000_roth"]
        (1.0, 0.5, 0.5)
    """
    return evaluate_embeddings(
        embeddings,
        labels,
        recall_at=RECALL_AT,
        roth_horizon=HORIZON,
        count_lone_as_miss=True,
        clustering=clustering,
        spectrum=clustering,
        neighbours=neighbours,
        groups=groups,
        paths=paths,
        bootstrap=bootstrap,
        seed=seed,
    )
