"""Which queries to show: the worst and the best, with their neighbours, and the classes most often mistaken."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

UNKNOWN = "unknown"


@dataclass(frozen=True)
class Neighbour:
    """A picture near a query.

    Attributes:
        path: of the picture.
        label: its class, or ``unknown`` when the split does not hold it.
        similarity: cosine to the query, or None.
        correct: it shows the query's class; None when its class is unknown.
    """

    path: str
    label: str
    similarity: float | None
    correct: bool | None


@dataclass(frozen=True)
class Query:
    """A query with its neighbours, nearest first.

    Attributes:
        path: of the picture.
        label: its class.
        domain: its domain, or empty.
        precision: average precision at R of its ranking.
        neighbours: nearest first.
    """

    path: str
    label: str
    domain: str
    precision: float
    neighbours: tuple[Neighbour, ...]


@dataclass(frozen=True)
class Mistake:
    """Two classes that are mixed up.

    Attributes:
        label: class of the queries.
        taken_for: class of their nearest picture.
        count: how many queries.
        share: of all queries of the class.
        path: an example query.
        nearest_path: the nearest picture of that query.
    """

    label: str
    taken_for: str
    count: int
    share: float
    path: str
    nearest_path: str


def extreme_queries(
    queries: pd.DataFrame, split: pd.DataFrame | None, *, worst: int = 20, best: int = 6
) -> tuple[list[Query], list[Query]]:
    """Return the worst and the best queries.

    Worst are those of lowest average precision, the most confident mistake first among equals. Best are those of
    highest average precision, at most one a class, the least similar nearest picture (the hardest success) first
    among equals. Queries without any other picture of their class have no average precision and are left out.

    Args:
        queries: ``per_query.parquet``.
        split: ``split.parquet``, which knows the classes of the neighbours.
        worst: how many of the worst.
        best: how many of the best.

    Returns:
        Both lists, most extreme first.
    """
    if "average_precision" not in queries.columns:
        return [], []
    known = queries[queries["average_precision"].notna()]
    similarity = known["similarity"] if "similarity" in known.columns else known["average_precision"] * 0
    order = known.assign(_similarity=similarity)
    low = order.sort_values(["average_precision", "_similarity"], ascending=[True, False], kind="stable")
    high = order.sort_values(["average_precision", "_similarity"], ascending=[False, True], kind="stable")
    high = high.drop_duplicates("label")
    high = high[high["average_precision"] > 0]
    labels = labels_by_path(queries, split)
    low = low[low["average_precision"] < 1].head(worst)
    return [_query(row, labels) for row in _rows(low)], [_query(row, labels) for row in _rows(high.head(best))]


def frequent_mistakes(queries: pd.DataFrame, *, count: int = 8) -> list[Mistake]:
    """Return the pairs of classes that are mixed up most often, by the nearest picture of each query.

    Args:
        queries: ``per_query.parquet``.
        count: how many pairs at most.
    """
    if not {"nearest_label", "nearest_path"} <= set(queries.columns):
        return []
    wrong = queries[queries["nearest_label"] != queries["label"]]
    sizes = queries["label"].value_counts()
    groups = wrong.groupby(["label", "nearest_label"], observed=True, sort=True)
    pairs = groups.agg(number=("path", "size"), path=("path", "first"), nearest=("nearest_path", "first")).reset_index()
    pairs = pairs[pairs["number"] > 1].sort_values("number", ascending=False, kind="stable").head(count)
    return [
        Mistake(
            label=str(row["label"]),
            taken_for=str(row["nearest_label"]),
            count=int(row["number"]),
            share=float(row["number"] / sizes[row["label"]]),
            path=str(row["path"]),
            nearest_path=str(row["nearest"]),
        )
        for row in _rows(pairs)
    ]


def labels_by_path(queries: pd.DataFrame, split: pd.DataFrame | None) -> dict[str, str]:
    """Return the class of every picture that is known.

    Args:
        queries: ``per_query.parquet``.
        split: ``split.parquet``, or None.
    """
    labels: dict[str, str] = {}
    for frame in (split, queries):
        if frame is not None and {"path", "label"} <= set(frame.columns):
            labels.update(zip(frame["path"].astype(str), frame["label"].astype(str), strict=True))
    return labels


def _rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]


def _query(row: Mapping[str, Any], labels: Mapping[str, str]) -> Query:
    label = str(row["label"])
    return Query(
        path=str(row["path"]),
        label=label,
        domain=_text(row.get("domain")),
        precision=float(row["average_precision"]),
        neighbours=tuple(neighbours_of(row, label, labels)),
    )


def neighbours_of(row: Mapping[str, Any], label: str, labels: Mapping[str, str]) -> list[Neighbour]:
    """Return the nearest pictures of a query.

    Args:
        row: of ``per_query.parquet``.
        label: class of the query.
        labels: class by path, from :func:`labels_by_path`.
    """
    paths, similarities = _sequence(row.get("neighbours")), _sequence(row.get("neighbour_similarities"))
    if not paths and row.get("nearest_path"):
        paths, similarities = [row["nearest_path"]], [row.get("similarity")]
        labels = {str(row["nearest_path"]): str(row.get("nearest_label", UNKNOWN)), **labels}
    found = []
    for number, path in enumerate(map(str, paths)):
        similarity = similarities[number] if number < len(similarities) else None
        name = labels.get(path)
        known = similarity is not None and math.isfinite(similarity)
        found.append(
            Neighbour(
                path=path,
                label=UNKNOWN if name is None else name,
                similarity=float(similarity) if known and similarity is not None else None,
                correct=None if name is None else name == label,
            )
        )
    return found


def _sequence(value: Any) -> Sequence[Any]:
    return [] if value is None or isinstance(value, float) else list(value)


def _text(value: Any) -> str:
    return "" if value is None or value != value else str(value)
