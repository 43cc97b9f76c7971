"""Measure embeddings of a table under the protocol that the configuration names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from proxemics.core.config import EvaluationConfig
from proxemics.core.errors import EvaluationError, did_you_mean
from proxemics.evaluation.certainty import score_certainty
from proxemics.evaluation.evaluate import evaluate_embeddings
from proxemics.evaluation.protocols import Selection, cross_domain, leave_one_domain_out, query_gallery, zero_shot
from proxemics.evaluation.result import EvaluationResult

if TYPE_CHECKING:
    import pandas as pd

NEIGHBOURS = 8
"""Neighbours kept for each query: as many as the report shows."""


@dataclass(frozen=True)
class Assessment:
    """A result and the rows it is about.

    Attributes:
        result: metrics, intervals and per-query arrays.
        selection: row numbers of the queries and the gallery in the table.
        kappa: (N,) lengths of the raw embeddings of the table, if they were given.
        certainty: how well they predict which queries are answered wrongly; see :func:`certainty_of`.
    """

    result: EvaluationResult
    selection: Selection
    kappa: NDArray[np.float32] | None = None
    certainty: dict[str, Any] | None = None


def select_rows(frame: pd.DataFrame, evaluation: EvaluationConfig) -> Selection:
    """Choose queries and gallery among the rows of one split.

    Args:
        frame: with ``label``, ``domain`` and, for query_gallery, ``role``.
        evaluation: the protocol and its domains.

    Raises:
        DataError: a domain or role is not in the table, or the gallery lacks classes of queries.
        EvaluationError: the query domain is not in the table.
    """
    table = {name: frame[name].astype(str).to_list() for name in frame.columns if name in ("label", "domain", "role")}
    if evaluation.protocol == "zero_shot":
        return zero_shot(table)
    if evaluation.protocol == "query_gallery":
        return query_gallery(table, column="role", absent=evaluation.absent)
    query = evaluation.query_domain or ""
    if evaluation.gallery_domain is not None:
        return cross_domain(table, query, evaluation.gallery_domain, absent=evaluation.absent)
    known = sorted(set(table["domain"]))
    if query not in known:
        raise EvaluationError(
            f"No picture has the domain {query!r}; there are {', '.join(known)}.{did_you_mean(query, known)}"
        )
    return leave_one_domain_out(table, absent=evaluation.absent)[query]


def assess(
    embeddings: NDArray[np.float32],
    frame: pd.DataFrame,
    evaluation: EvaluationConfig,
    *,
    seed: int = 0,
    intervals: bool = True,
    kappa: NDArray[np.float32] | None = None,
) -> Assessment:
    """Evaluate embeddings of the rows of a table.

    Args:
        embeddings: (N, D) float, row i for row i of the table.
        frame: N rows with ``path``, ``label``, ``domain``.
        evaluation: protocol, k of Recall@k, bootstrap.
        seed: seeds the bootstrap and k-means.
        intervals: whether to compute what takes longer: bootstrap intervals and clustering.
        kappa: (N,) lengths of the raw embeddings, to judge them as certainty.

    Returns:
        The result with the rows it is about.

    Raises:
        EvaluationError: NaN rows (named by file), one class only, no query with a positive, or another number of
            lengths than of rows.
    """
    if kappa is not None and len(kappa) != len(frame):
        raise EvaluationError(f"{len(kappa)} lengths were given for {len(frame)} rows; give one a row.")
    selection = select_rows(frame, evaluation)
    labels, paths, domains = (frame[name].astype(str).to_numpy() for name in ("label", "path", "domain"))
    query, gallery = selection.query, selection.gallery
    result = evaluate_embeddings(
        embeddings[query],
        labels[query],
        None if selection.own else embeddings[gallery],
        None if selection.own else labels[gallery],
        recall_at=evaluation.recall_at,
        neighbours=NEIGHBOURS,
        forbidden=None if selection.own else selection.forbidden,
        groups={"domain": domains[query]},
        bootstrap=evaluation.bootstrap if intervals else 0,
        clustering=evaluation.clustering and intervals,
        seed=seed,
        paths=paths[query].tolist(),
        gallery_paths=None if selection.own else paths[gallery].tolist(),
    )
    certainty = None if kappa is None else certainty_of(result, labels[query], labels[gallery], kappa[query])
    return Assessment(result, selection, kappa, certainty)


def certainty_of(
    result: EvaluationResult, labels: NDArray[Any], gallery_labels: NDArray[Any], kappa: NDArray[np.float32]
) -> dict[str, Any]:
    """Say how well the lengths of the queries predict their mistakes.

    A query is wrong when its nearest item is of another class. Queries without a positive are left out, as they are
    from the metrics.

    Args:
        result: of the queries, with their nearest neighbours.
        labels: (Q,) classes of the queries.
        gallery_labels: (G,) classes of the gallery.
        kappa: (Q,) lengths of the raw embeddings of the queries.

    Returns:
        See :func:`proxemics.evaluation.certainty.score_certainty`.
    """
    counted = result.per_query["num_positives"] > 0
    nearest = result.per_query["nearest"][counted]
    return score_certainty(kappa[counted], gallery_labels[nearest] != labels[counted])
