"""Measure embeddings of a table under the protocol that the configuration names."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from proxemics.core.config import EvaluationConfig
from proxemics.core.errors import EvaluationError, did_you_mean
from proxemics.evaluation.certainty import score_certainty
from proxemics.evaluation.combine import combine_results, combine_selections
from proxemics.evaluation.evaluate import evaluate_embeddings
from proxemics.evaluation.protocols import (
    Selection,
    all_domain_pairs,
    cross_domain,
    leave_one_domain_out,
    query_gallery,
    roth,
    single_domain,
    zero_shot,
)
from proxemics.evaluation.result import EvaluationResult
from proxemics.evaluation.verification import VerificationResult, verify_embeddings

if TYPE_CHECKING:
    import pandas as pd

NEIGHBOURS = 8
"""Neighbours kept for each query: as many as the report shows."""


@dataclass(frozen=True)
class Tasks:
    """What a protocol measures.

    Attributes:
        headline: the tasks that the number of the protocol is the unweighted mean of, by name.
        beside: tasks that are reported beside it.
    """

    headline: dict[str, Selection]
    beside: dict[str, Selection] = field(default_factory=dict)


@dataclass(frozen=True)
class Assessment:
    """A result and the rows it is about.

    Attributes:
        result: metrics, intervals and per-query arrays.
        selection: row numbers of the queries and the gallery in the table.
        kappa: (N,) lengths of the raw embeddings of the table, if they were given.
        certainty: how well they predict which queries are answered wrongly; see :func:`certainty_of`.
        tasks: the result of each task, when the protocol is a mean over several.
        beside: results that are reported beside the mean.
        verification: errors of comparing every two pictures of the table, if they were asked for.
    """

    result: EvaluationResult
    selection: Selection
    kappa: NDArray[np.float32] | None = None
    certainty: dict[str, Any] | None = None
    tasks: dict[str, EvaluationResult] = field(default_factory=dict)
    beside: dict[str, EvaluationResult] = field(default_factory=dict)
    verification: VerificationResult | None = None


def select_tasks(frame: pd.DataFrame, evaluation: EvaluationConfig) -> Tasks:
    """Choose queries and galleries among the rows of one split.

    Args:
        frame: with ``label``, ``domain`` and, for query_gallery, ``role``.
        evaluation: the protocol and its domains.

    Raises:
        DataError: a domain or role is not in the table, or the gallery lacks classes of queries.
        EvaluationError: the query domain is not in the table, or no source domain is named.
    """
    table = {name: frame[name].astype(str).to_list() for name in frame.columns if name in ("label", "domain", "role")}
    protocol = evaluation.protocol
    if protocol == "query_gallery":
        return _single(query_gallery(table, column="role", absent=evaluation.absent))
    if protocol == "cross_domain" and not evaluation.query_domain:
        return Tasks(all_domain_pairs(table, absent=evaluation.absent))
    if protocol == "cross_domain":
        return _single(_cross_domain(table, evaluation))
    if protocol == "leave_one_domain_out":
        return Tasks(leave_one_domain_out(table, absent=evaluation.absent))
    if protocol == "single_domain":
        if not evaluation.source_domain:
            raise EvaluationError(
                "evaluation.protocol=single_domain needs evaluation.source_domain, the domain the model was trained on."
            )
        chosen = single_domain(table, evaluation.source_domain, across=evaluation.across, absent=evaluation.absent)
        return Tasks(chosen.targets, chosen.beside)
    return _single(zero_shot(table))


def _is_mean(evaluation: EvaluationConfig) -> bool:
    """Say whether the number of a protocol is a mean over tasks, however many there are."""
    pairs = evaluation.protocol == "cross_domain" and not evaluation.query_domain
    return pairs or evaluation.protocol in ("leave_one_domain_out", "single_domain")


def _single(selection: Selection) -> Tasks:
    return Tasks({selection.name: selection})


def _cross_domain(table: dict[str, list[str]], evaluation: EvaluationConfig) -> Selection:
    query = evaluation.query_domain or ""
    if evaluation.gallery_domain is not None:
        return cross_domain(table, query, evaluation.gallery_domain, absent=evaluation.absent)
    known = sorted(set(table["domain"]))
    if query not in known:
        raise EvaluationError(
            f"No picture has the domain {query!r}; there are {', '.join(known)}.{did_you_mean(query, known)}"
        )
    return leave_one_domain_out(table, absent=evaluation.absent)[query]


def check_answerable(frame: pd.DataFrame, evaluation: EvaluationConfig, *, split: str) -> None:
    """Find out without embeddings whether every task of a protocol can be measured on the rows of one split.

    Args:
        frame: as for :func:`select_tasks`.
        evaluation: the protocol and its domains.
        split: name of the split, for messages.

    Raises:
        DataError: a domain or role is not in the table, or the gallery lacks classes of queries.
        EvaluationError: a task has one class only, or no query with a picture of its class to find.

    Example:
        >>> import pandas as pd
        >>> rows = pd.DataFrame({"label": ["a", "b", "c"], "domain": ""})
        >>> check_answerable(rows, EvaluationConfig(), split="val")
        Traceback (most recent call last):
        ...
        proxemics.core.errors.EvaluationError: The split val has 3 pictures for zero_shot, and none has another ...
    """
    labels = frame["label"].astype(str).to_numpy()
    tasks = select_tasks(frame, evaluation)
    for name, one in (tasks.headline | tasks.beside).items():
        query, gallery = labels[one.query], labels[one.gallery]
        about = f"The split {split} has {len(query)} pictures for {name}"
        if len(set(query) | set(gallery)) < 2:
            raise EvaluationError(
                f"{about}, all of one class ({query[0]}), so that every neighbour is right; give the split two classes "
                "or more."
            )
        known, count = np.unique(gallery, return_counts=True)
        found = dict(zip(known.tolist(), count.tolist(), strict=True))
        own = np.bincount(one.forbidden[:, 0], minlength=len(query)) if len(one.forbidden) else np.zeros(len(query))
        if not any(found.get(label, 0) > itself for label, itself in zip(query.tolist(), own.tolist(), strict=True)):
            raise EvaluationError(
                f"{about}, and none has another of its class to find; give classes of the split two pictures or more, "
                "or another split."
            )


def for_choosing(evaluation: EvaluationConfig, rows: pd.DataFrame) -> EvaluationConfig:
    """Return what the validation classes are measured with.

    They are searched among themselves where the protocol needs domains or roles that they do not have, or where it only
    adds to the metrics that can choose an epoch.

    Args:
        evaluation: what the test classes are measured with.
        rows: of the validation classes.

    Example:
        >>> import pandas as pd
        >>> rows = pd.DataFrame({"label": ["a", "a"], "domain": "photo", "role": ""})
        >>> for_choosing(EvaluationConfig(protocol="query_gallery"), rows).protocol
        'zero_shot'
    """
    if _has_what_is_needed(evaluation, rows):
        return evaluation
    return evaluation.model_copy(update={"protocol": "zero_shot"})


def _has_what_is_needed(evaluation: EvaluationConfig, rows: pd.DataFrame) -> bool:
    domains = set(rows["domain"].astype(str))
    if evaluation.protocol == "query_gallery":
        return "role" not in rows or {"query", "gallery"} <= set(rows["role"].astype(str))
    if evaluation.protocol == "leave_one_domain_out":
        return len(domains) > 1
    if evaluation.protocol == "cross_domain":
        named = {one for one in (evaluation.query_domain, evaluation.gallery_domain) if one}
        return len(domains) > 1 and named <= domains
    return evaluation.protocol == "zero_shot"


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
        The result with the rows it is about. Where the protocol has several tasks it is their unweighted mean, and
        ``tasks`` holds each.

    Raises:
        EvaluationError: NaN rows (named by file), one class only, no query with a positive, or another number of
            lengths than of rows.
    """
    if kappa is not None and len(kappa) != len(frame):
        raise EvaluationError(f"{len(kappa)} lengths were given for {len(frame)} rows; give one a row.")
    tasks = select_tasks(frame, evaluation)
    settings = evaluation if intervals else evaluation.model_copy(update={"bootstrap": 0, "clustering": False})
    cheap = not intervals
    found = {name: _measure(embeddings, frame, one, settings, seed, cheap) for name, one in tasks.headline.items()}
    beside = {name: _measure(embeddings, frame, one, settings, seed, cheap) for name, one in tasks.beside.items()}
    ((name, selection), *more) = tasks.headline.items()
    result = found[name]
    several = bool(more) or _is_mean(evaluation)
    if several:
        selection = combine_selections(evaluation.protocol, tasks.headline)
        sizes = {task: len(one.gallery) for task, one in tasks.headline.items()}
        result = combine_results(found, sizes, bootstrap=settings.bootstrap, seed=seed)
    certainty = None
    if kappa is not None:
        labels = frame["label"].astype(str).to_numpy()
        certainty = certainty_of(result, labels[selection.query], labels[selection.gallery], kappa[selection.query])
    pairs = (
        verify_embeddings(embeddings, frame["label"].astype(str).to_list())
        if evaluation.verification and intervals
        else None
    )
    return Assessment(result, selection, kappa, certainty, found if several else {}, beside, pairs)


def _measure(
    embeddings: NDArray[np.float32],
    frame: pd.DataFrame,
    selection: Selection,
    evaluation: EvaluationConfig,
    seed: int,
    cheap: bool,
) -> EvaluationResult:
    labels, paths, domains = (frame[name].astype(str).to_numpy() for name in ("label", "path", "domain"))
    query, gallery = selection.query, selection.gallery
    if evaluation.protocol == "roth":
        result = roth(
            embeddings[query],
            labels[query],
            clustering=not cheap,
            neighbours=NEIGHBOURS,
            groups={"domain": domains[query]},
            paths=paths[query].tolist(),
            bootstrap=evaluation.bootstrap,
            seed=seed,
        )
        return _count_lone(result)
    return evaluate_embeddings(
        embeddings[query],
        labels[query],
        None if selection.own else embeddings[gallery],
        None if selection.own else labels[gallery],
        recall_at=evaluation.recall_at,
        neighbours=NEIGHBOURS,
        forbidden=None if selection.own else selection.forbidden,
        groups={"domain": domains[query]},
        bootstrap=evaluation.bootstrap,
        clustering=evaluation.clustering,
        seed=seed,
        paths=paths[query].tolist(),
        gallery_paths=None if selection.own else paths[gallery].tolist(),
    )


def _count_lone(result: EvaluationResult) -> EvaluationResult:
    """Write the 0 that a lone query counts as into its row, so that the rows average to the metric."""
    names = (*result.query_metrics, "average_precision")
    filled = {name: np.nan_to_num(result.per_query[name], nan=0.0) for name in names if name in result.per_query}
    return replace(result, per_query={**result.per_query, **filled})


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
