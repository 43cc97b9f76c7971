"""Measure embeddings of a table under the protocol that the configuration names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from proxemics.core.config import EvaluationConfig
from proxemics.core.errors import EvaluationError, did_you_mean
from proxemics.evaluation import EvaluationResult, evaluate_embeddings

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Assessment:
    """A result and the rows it is about.

    Attributes:
        result: metrics, intervals and per-query arrays.
        query_rows: (Q,) row numbers of the queries in the table.
        gallery_rows: (G,) row numbers of the gallery in the table.
    """

    result: EvaluationResult
    query_rows: NDArray[np.int64]
    gallery_rows: NDArray[np.int64]


def choose_rows(frame: pd.DataFrame, evaluation: EvaluationConfig) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the row numbers of queries and gallery; they are the same array when every picture is both.

    Args:
        frame: the rows of one split, with ``domain`` and, for query_gallery, ``role``.
        evaluation: the protocol and its domains.

    Raises:
        EvaluationError: a domain or role is not in the table.
    """
    everything = np.arange(len(frame), dtype=np.int64)
    if evaluation.protocol == "zero_shot":
        return everything, everything
    if evaluation.protocol == "query_gallery":
        if "role" not in frame.columns:
            raise EvaluationError("protocol query_gallery needs a column `role` with the values query and gallery.")
        role = frame["role"].astype(str).to_numpy()
        return _some(everything[role == "query"], "role=query"), _some(everything[role == "gallery"], "role=gallery")
    domains = frame["domain"].astype(str).to_numpy()
    known = sorted(set(domains))
    for name in (evaluation.query_domain, evaluation.gallery_domain):
        if name is not None and name not in known:
            raise EvaluationError(
                f"No picture of the domain {name!r}; there are {', '.join(known)}.{did_you_mean(name, known)}"
            )
    is_query = domains == evaluation.query_domain
    is_gallery = domains == evaluation.gallery_domain if evaluation.gallery_domain is not None else ~is_query
    return _some(everything[is_query], "queries"), _some(everything[is_gallery], "the gallery")


def assess(
    embeddings: NDArray[np.float32],
    frame: pd.DataFrame,
    evaluation: EvaluationConfig,
    *,
    seed: int = 0,
    intervals: bool = True,
) -> Assessment:
    """Evaluate embeddings of the rows of a table.

    Args:
        embeddings: (N, D) float, row i for row i of the table.
        frame: N rows with ``path``, ``label``, ``domain``.
        evaluation: protocol, k of Recall@k, bootstrap.
        seed: seeds the bootstrap and k-means.
        intervals: whether to compute bootstrap intervals.

    Returns:
        The result with the rows it is about.
    """
    queries, gallery = choose_rows(frame, evaluation)
    labels = frame["label"].astype(str).to_numpy()
    paths = frame["path"].astype(str).to_list()
    same = queries is gallery
    result = evaluate_embeddings(
        embeddings[queries],
        labels[queries],
        None if same else embeddings[gallery],
        None if same else labels[gallery],
        recall_at=evaluation.recall_at,
        bootstrap=evaluation.bootstrap if intervals else 0,
        clustering=evaluation.clustering and intervals,
        seed=seed,
        paths=[paths[row] for row in queries],
    )
    return Assessment(result, queries, gallery)


def _some(rows: NDArray[np.int64], what: str) -> NDArray[np.int64]:
    if len(rows) == 0:
        raise EvaluationError(f"No pictures for {what} in this split; check the columns domain and role.")
    return rows
