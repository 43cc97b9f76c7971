"""From embeddings of test pictures to numbers: which domain searches which, and the means that a table shows.

Every number is a mean over pairs (domain of the queries, domain of the gallery), each pair counting once however many
pictures it has. Within a domain each picture searches the others of its domain.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from proxemics.core.errors import EvaluationError
from proxemics.evaluation import evaluate_embeddings
from proxemics.evaluation.paired import ClassSums

RECALL_AT = (1, 2, 4, 8)
METRICS = ("recall_at_1", "recall_at_2", "recall_at_4", "recall_at_8", "map_at_r")
Pair = tuple[str, str]
Pairs = tuple[Pair, ...]

EMOJI = ("noto", "twemoji", "openmoji", "fluent-emoji-flat", "fluent-emoji-high-contrast")
PACS_TARGETS = ("art_painting", "cartoon", "sketch")


def within(domains: Sequence[str]) -> Pairs:
    """Each domain searches itself.

    Example:
        >>> within(["photo"])
        (('photo', 'photo'),)
    """
    return tuple((one, one) for one in domains)


def across(domains: Sequence[str]) -> Pairs:
    """Each domain searches each other one.

    Example:
        >>> across(["a", "b"])
        (('a', 'b'), ('b', 'a'))
    """
    return tuple(itertools.permutations(domains, 2))


MEASURES: dict[str, dict[str, Pairs]] = {
    "cub200_2010": {"test": within(["photo"])},
    "cars196": {"test": within(["photo"])},
    "grocery": {"natural to iconic": (("natural", "iconic"),)},
    # Within a style only skin tones have a partner, so retrieval there says little and is left out.
    "emoji": {"across styles": across(EMOJI), "across unseen styles": across(EMOJI[1:])},
    "pacs_unseen": {
        "within targets": within(PACS_TARGETS),
        "across targets": across(PACS_TARGETS),
        "within photos": within(["photo"]),
    },
    "pacs_all": {"within targets": within(PACS_TARGETS), "across targets": across(PACS_TARGETS)},
}
"""Set to its measures, the first of which is the one that counts."""


def pair_sums(embeddings: NDArray[np.float32], rows: pd.DataFrame, pairs: Sequence[Pair]) -> pd.DataFrame:
    """Evaluate each pair of domains and add up the queries of each class.

    Args:
        embeddings: (N, D) of the test pictures.
        rows: N rows with ``label`` and ``domain``.
        pairs: (query domain, gallery domain).

    Returns:
        One row a pair and class: ``query, gallery, label, count`` and the sum of every metric over these queries.

    Raises:
        EvaluationError: a domain is absent, or no query of a pair could find its class.
    """
    labels, domains = (rows[name].astype(str).to_numpy() for name in ("label", "domain"))
    if len(labels) != len(embeddings):
        raise EvaluationError(f"{len(embeddings)} embeddings for {len(labels)} test pictures.")
    parts = []
    for query, gallery in pairs:
        q, g = (np.flatnonzero(domains == name) for name in (query, gallery))
        if not len(q) or not len(g):
            raise EvaluationError(f"No test picture has the domain {query if not len(q) else gallery!r}.")
        apart = query != gallery
        found = evaluate_embeddings(
            embeddings[q],
            labels[q],
            embeddings[g] if apart else None,
            labels[g] if apart else None,
            recall_at=RECALL_AT,
            bootstrap=0,
        )
        values = pd.DataFrame({name: np.asarray(found.per_query[name], np.float64) for name in METRICS})
        counted = np.asarray(found.per_query["num_positives"]) > 0
        sums = values[counted].groupby(labels[q][counted]).agg("sum")
        sums.insert(0, "count", values[counted].groupby(labels[q][counted]).size())
        sums = sums.rename_axis("label").reset_index()
        sums.insert(0, "gallery", gallery)
        sums.insert(0, "query", query)
        parts.append(sums)
    return pd.concat(parts, ignore_index=True)


def measure_sums(sums: pd.DataFrame, pairs: Sequence[Pair], metric: str) -> ClassSums:
    """Weigh the pairs so that each counts once; the quotient of the sums is then the unweighted mean over pairs.

    Args:
        sums: from :func:`pair_sums`.
        pairs: those of the measure.
        metric: one of :data:`METRICS`.
    """
    names = np.unique(sums["label"].to_numpy(str))
    total, count = np.zeros(len(names)), np.zeros(len(names))
    for query, gallery in pairs:
        part = sums[(sums["query"] == query) & (sums["gallery"] == gallery)]
        if part.empty:
            raise EvaluationError(f"{query} to {gallery} was not evaluated.")
        at = np.searchsorted(names, part["label"].to_numpy(str))
        queries = float(part["count"].sum())
        total[at] += part[metric].to_numpy(float) / queries
        count[at] += part["count"].to_numpy(float) / queries
    kept = count > 0
    return ClassSums(names[kept], total[kept], count[kept])


def mean(sums: pd.DataFrame, pairs: Sequence[Pair], metric: str) -> float:
    """Return the unweighted mean over pairs."""
    return measure_sums(sums, pairs, metric).difference


def subtract(first: ClassSums, second: ClassSums) -> ClassSums:
    """Return first minus second, class by class.

    Raises:
        EvaluationError: they are not about the same queries.
    """
    if not (np.array_equal(first.names, second.names) and np.allclose(first.count, second.count)):
        raise EvaluationError("Two runs were tested on different queries, so they cannot be paired.")
    return ClassSums(first.names, first.total - second.total, first.count)
