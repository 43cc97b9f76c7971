"""``evaluate_embeddings``: every retrieval metric of a set of embeddings in one pass."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from proxemics.core.errors import EvaluationError
from proxemics.evaluation.clustering import clustering_scores, rho_spectrum
from proxemics.evaluation.inputs import Embeddings, check_embeddings, row_chunks
from proxemics.evaluation.intervals import class_intervals
from proxemics.evaluation.labels import Labels, encode_labels, label_array
from proxemics.evaluation.metrics import Wanted, check_wanted, nearest_items, query_metrics
from proxemics.evaluation.notes import COLLAPSED, coincidence_notes, exclusion_notes, quality_notes
from proxemics.evaluation.pairs import forbidden_pairs
from proxemics.evaluation.positives import Forbidden, count_positives
from proxemics.evaluation.ranking import Ranks, Request, rank_chunks
from proxemics.evaluation.result import EvaluationResult, shorten
from proxemics.evaluation.screen import full_precision
from proxemics.evaluation.space import Space, make_space, norms


def evaluate_embeddings(
    embeddings: Embeddings,
    labels: Labels,
    gallery: Embeddings | None = None,
    gallery_labels: Labels | None = None,
    *,
    recall_at: Sequence[int] = (1, 10, 100, 1000),
    precision_at: Sequence[int] = (),
    map_horizon: int | None = None,
    roth_horizon: int | None = None,
    metric: str = "cosine",
    neighbours: int = 1,
    ids: Labels | None = None,
    gallery_ids: Labels | None = None,
    forbidden: NDArray[np.int64] | Sequence[tuple[int, int]] | None = None,
    groups: Mapping[str, Sequence[str] | NDArray[np.generic]] | None = None,
    paths: Sequence[str] | None = None,
    gallery_paths: Sequence[str] | None = None,
    count_lone_as_miss: bool = False,
    clustering: bool = False,
    spectrum: bool = False,
    bootstrap: int = 1000,
    seed: int = 0,
    device: torch.device | str | None = None,
    precision: str = "auto",
    block_size: int | None = None,
) -> EvaluationResult:
    """Rank a gallery for every query and average the metrics of spec and literature; see ``docs/metrics.md`` for names.

    Similarities are those of exact arithmetic on the given numbers (float64, whatever screens them first), so no
    value depends on block size, thread count or ``precision``. Equal similarities are ordered by gallery row;
    ``bounds`` hold what the best and the worst order would give. A query is never its own neighbour: it is left out
    by its row (or its id), not by dropping the first neighbour.

    Args:
        embeddings: (Q, D) queries, NumPy or torch, any floating type; normalised here for ``cosine``.
        labels: (Q,) integers of any width, or strings.
        gallery: (G, D), or None to search the queries among themselves.
        gallery_labels: (G,), with ``gallery``.
        recall_at: values of k for Recall@k, any hit.
        precision_at: values of k for Precision@k.
        map_horizon: H for MAP@H with the divisor min(R, H).
        roth_horizon: H for the ``map_H_roth`` of Roth et al. with the divisor R + 1; theirs is 1000.
        metric: ``cosine``, ``euclidean`` or ``dot``.
        neighbours: how many nearest neighbours to keep for each query.
        ids: (Q,) identities of queries; with ``gallery_ids``, pairs of equal identity are not ranked.
        gallery_ids: (G,) identities of gallery items.
        forbidden: (F, 2) further (query row, gallery row) pairs that are not ranked.
        groups: column name to (Q,) values, for :meth:`EvaluationResult.per_group`; ``class`` is always there.
        paths: (Q,) file names for messages.
        gallery_paths: (G,) file names for messages.
        count_lone_as_miss: count queries without positives as 0 in every mean (they are left out by default).
        clustering: also compute ``nmi``, ``ami`` and ``f1`` (slow; needs scikit-learn).
        spectrum: also compute ``rho_spectrum``.
        bootstrap: resamples for the 95 % intervals; 0 for none.
        seed: of bootstrap and k-means.
        device: where to compute; where ``embeddings`` are by default.
        precision: first screen of similarities, ``auto``, ``bfloat16``, ``float32`` or ``float64``; changes speed only.
        block_size: side of a tile of similarities; changes speed and memory only.

    Returns:
        The metrics, in [0, 1], as a mapping, with counts, intervals and per-query arrays.

    Raises:
        EvaluationError: shapes, labels or numbers that no ranking can be made of; fewer than two classes; no query with
            a positive.

    Example:
        >>> result = evaluate_embeddings(torch.eye(3)[[0, 0, 1, 1]], ["cat", "cat", "dog", "dog"], recall_at=(1,))
        >>> result["recall_at_1"], result["map_at_r"], result.num_queries
        (1.0, 1.0, 4)
    """
    wanted = check_wanted(tuple(recall_at), tuple(precision_at), map_horizon, roth_horizon)
    if isinstance(neighbours, bool) or not isinstance(neighbours, int) or neighbours < 0:
        raise EvaluationError(f"neighbours={neighbours!r}; give 0 or a positive integer.")
    data = _read(embeddings, labels, gallery, gallery_labels, paths, gallery_paths, device)
    pairs = forbidden_pairs(
        len(data.query_codes),
        len(data.gallery_codes),
        own=gallery is None,
        ids=ids,
        gallery_ids=gallery_ids,
        listed=forbidden,
        device=data.query.device,
    )
    request = Request(
        ks=wanted.recall_at, depth=wanted.depth, nearest=neighbours, precision=precision, block=block_size
    )
    with full_precision():
        space = make_space(data.query, data.gallery, metric)
        per_query, readings = _rank(space, data, pairs, wanted, request)
        mean_cosine = _mean_cosine(data.query, space.query.scale if metric == "cosine" else None)
    return _collect(
        data,
        per_query,
        readings,
        wanted,
        metric=metric,
        mean_cosine=mean_cosine,
        groups=groups or {},
        count_lone=count_lone_as_miss,
        extra=_extra_metrics(data, metric, clustering, spectrum, seed),
        zero_rows=int((space.query.norm == 0).sum()) if metric == "cosine" else 0,
        bootstrap=bootstrap,
        seed=seed,
    )


@dataclass(frozen=True)
class _Data:
    """Checked inputs."""

    query: Tensor
    gallery: Tensor | None
    query_codes: NDArray[np.int64]
    gallery_codes: NDArray[np.int64]
    names: list[str]


def _read(
    embeddings: Embeddings,
    labels: Labels,
    gallery: Embeddings | None,
    gallery_labels: Labels | None,
    paths: Sequence[str] | None,
    gallery_paths: Sequence[str] | None,
    device: torch.device | str | None,
) -> _Data:
    if (gallery is None) != (gallery_labels is None):
        given, absent = ("gallery", "gallery_labels") if gallery_labels is None else ("gallery_labels", "gallery")
        raise EvaluationError(
            f"{given} was given without {absent}; give both, or neither to search the queries themselves."
        )
    query = check_embeddings(embeddings, paths=paths, device=device)
    query_labels = label_array(labels)
    _same_length(query, query_labels, "embeddings", "labels")
    if gallery is None or gallery_labels is None:
        codes, _, names = encode_labels(query_labels, query_labels[:0])
        return _Data(query, None, codes, codes, names)
    target = check_embeddings(gallery, "gallery", paths=gallery_paths, device=query.device)
    target_labels = label_array(gallery_labels, "gallery_labels")
    _same_length(target, target_labels, "gallery", "gallery_labels")
    query_codes, gallery_codes, names = encode_labels(query_labels, target_labels)
    return _Data(query, target, query_codes, gallery_codes, names)


def _same_length(rows: Tensor, labels: NDArray[np.generic], name: str, labels_name: str) -> None:
    if len(rows) != len(labels):
        raise EvaluationError(f"{len(rows)} rows of {name} and {len(labels)} {labels_name}; give one label a row.")


def _rank(
    space: Space, data: _Data, pairs: Forbidden, wanted: Wanted, request: Request
) -> tuple[dict[str, NDArray[np.generic]], list[dict[str, NDArray[np.float64]]]]:
    """Per-query columns, and the metrics under the three readings of a tie."""
    query = torch.from_numpy(data.query_codes).to(data.query.device)
    gallery = query if data.gallery is None else torch.from_numpy(data.gallery_codes).to(data.query.device)
    _check_classes(data, query, gallery, pairs)
    columns: list[dict[str, NDArray[np.generic]]] = []
    readings: list[list[dict[str, NDArray[np.float64]]]] = [[], [], []]
    for rows, ranks in rank_chunks(space, query, gallery, pairs, request):
        for reading in range(3):
            known = reading > 0 and ranks.same_reading(reading)
            readings[reading].append(readings[0][-1] if known else query_metrics(ranks, wanted, reading))
        columns.append(_neighbour_columns(space, ranks, rows))
    joined = {name: np.concatenate([part[name] for part in columns]) for name in columns[0]}
    merged = [{name: np.concatenate([part[name] for part in parts]) for name in wanted.names} for parts in readings]
    return {**merged[0], "average_precision": merged[0]["map_at_r"], **joined}, merged


def _check_classes(data: _Data, query: Tensor, gallery: Tensor, pairs: Forbidden) -> None:
    present = np.unique(data.gallery_codes)
    if len(present) == 1 and len(np.unique(data.query_codes)) == 1 and present[0] == data.query_codes[0]:
        raise EvaluationError(
            f"All {len(data.gallery_codes)} images are of one class ({data.names[present[0]]}): every neighbour is "
            "right, so retrieval metrics are undefined. Evaluate at least two classes."
        )
    if bool((count_positives(query, gallery, pairs) == 0).all()):
        raise EvaluationError(
            f"None of the {len(query)} queries has another image of its class in the gallery, e.g. "
            f"{shorten([data.names[code] for code in np.unique(data.query_codes)])}; metrics are undefined. "
            "Check the labels, or the split into queries and gallery."
        )


def _neighbour_columns(space: Space, ranks: Ranks, rows: slice) -> dict[str, NDArray[np.generic]]:
    columns: dict[str, NDArray[np.generic]] = {"num_positives": ranks.start.diff().cpu().numpy()}
    items, scores = nearest_items(ranks)
    if items.shape[1] == 0:
        return columns
    owner = torch.arange(rows.start, rows.stop, device=items.device)[:, None].expand_as(items)
    similarity = space.similarity(owner.flatten(), scores.flatten()).view_as(scores).float()
    similarity = torch.where(items >= 0, similarity, torch.nan)
    columns["neighbours"], columns["neighbour_similarities"] = items.cpu().numpy(), similarity.cpu().numpy()
    columns["nearest"], columns["similarity"] = columns["neighbours"][:, 0], columns["neighbour_similarities"][:, 0]
    return columns


def _mean_cosine(matrix: Tensor, scale: Tensor | None) -> float:
    """Mean cosine over all ordered pairs of different rows; NaN for one row."""
    if scale is None:
        length = norms(matrix)
        scale = torch.where(length > 0, 1 / length, 0.0)
    total = torch.zeros(matrix.shape[1], dtype=torch.float64, device=matrix.device)
    for rows in row_chunks(matrix.shape[0]):
        total += scale[rows].to(matrix.dtype) @ matrix[rows]
    count = matrix.shape[0]
    return (float(total @ total) - int((scale > 0).sum())) / (count * (count - 1)) if count > 1 else float("nan")


def _extra_metrics(data: _Data, metric: str, clustering: bool, spectrum: bool, seed: int) -> dict[str, float]:
    if not clustering and not spectrum:
        return {}
    points = data.query.double()
    if metric == "cosine":
        points = torch.nn.functional.normalize(points, dim=1)
    extra = clustering_scores(points.cpu().numpy(), data.query_codes, seed=seed) if clustering else {}
    return {**extra, "rho_spectrum": rho_spectrum(points.cpu().numpy())} if spectrum else extra


def _collect(
    data: _Data,
    per_query: dict[str, NDArray[np.generic]],
    readings: list[dict[str, NDArray[np.float64]]],
    wanted: Wanted,
    *,
    metric: str,
    mean_cosine: float,
    groups: Mapping[str, Sequence[str] | NDArray[np.generic]],
    count_lone: bool,
    extra: dict[str, float],
    zero_rows: int,
    bootstrap: int,
    seed: int,
) -> EvaluationResult:
    lone = per_query["num_positives"] == 0
    counted = [
        {name: np.where(lone, 0.0, values) if count_lone else values for name, values in reading.items()}
        for reading in readings
    ]
    kept = np.ones_like(lone) if count_lone else ~lone
    means, hopeful, strict = ({name: float(values[kept].mean()) for name, values in part.items()} for part in counted)
    differ = np.zeros_like(lone)
    for name in wanted.names:
        differ |= (readings[1][name] != readings[2][name]) & ~lone
    missing = np.setdiff1d(data.query_codes, data.gallery_codes)
    if mean_cosine > COLLAPSED:
        warnings.warn(
            f"The embeddings have collapsed: the mean cosine between two of them is {mean_cosine:.4f} "
            f"(above {COLLAPSED}), so rankings rest on rounding.",
            stacklevel=3,
        )
    lone_names = [data.names[code] for code in np.unique(data.query_codes[lone])]
    missing_names = [data.names[code] for code in missing]
    reachable = len(data.gallery_codes) - (1 if data.gallery is None else 0)
    notes = exclusion_notes(int(lone.sum()), lone_names, missing_names, counted=count_lone)
    notes += coincidence_notes(wanted, per_query["num_positives"].astype(np.int64), reachable, metric)
    notes += quality_notes(int(differ.sum()), mean_cosine, zero_rows)
    columns = {"class": np.array(data.names)[data.query_codes]}
    for name, values in groups.items():
        if len(values) != len(lone):
            raise EvaluationError(
                f"groups[{name!r}] has {len(values)} values for {len(lone)} queries; give one a query."
            )
        columns[name] = np.asarray(values).astype(np.str_)
    return EvaluationResult(
        metrics={**means, **extra},
        num_queries=int(kept.sum()),
        num_lone=int(lone.sum()),
        num_ties=int(differ.sum()),
        per_query=per_query,
        groups=columns,
        intervals=class_intervals(counted[0], data.query_codes, resamples=bootstrap, seed=seed),
        bounds={name: (strict[name], hopeful[name]) for name in means},
        missing_labels=tuple(missing_names),
        notes=tuple(notes),
        metric=metric,
        mean_similarity=mean_cosine,
        counts_lone=count_lone,
        query_metrics=tuple(wanted.names),
    )
