"""Confusion between classes: the pairs mixed up most often with their pictures, and a small matrix of the worst."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

PAIRS, EXAMPLES, MATRIX = 24, 4, 12


@dataclass(frozen=True)
class Example:
    """A query of one class, the picture of the other class that is nearest to it, and their cosine, or None."""

    path: str
    nearest: str
    similarity: float | None


@dataclass(frozen=True)
class Confusion:
    """Queries of one class whose nearest picture is of another.

    Attributes:
        label: class of the queries.
        taken_for: class of their nearest picture.
        count: how many queries.
        share: of all queries of the class.
        examples: the most similar first.
    """

    label: str
    taken_for: str
    count: int
    share: float
    examples: tuple[Example, ...]


@dataclass(frozen=True)
class Cell:
    """A cell of the matrix.

    Attributes:
        count: queries of the row's class whose nearest picture is of the column's.
        share: of the queries of the row's class.
        pair: place of the pair in the list, or None: the diagonal, an empty cell, or a pair too rare for the list.
    """

    count: int
    share: float
    pair: int | None


@dataclass(frozen=True)
class Matrix:
    """Counts between a few classes.

    Attributes:
        labels: the classes, those of the most frequent pairs first.
        rows: one list of cells a class, in the order of ``labels``.
        others: for each class, queries whose nearest picture is of none of the classes shown.
    """

    labels: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    others: tuple[int, ...]


@dataclass(frozen=True)
class ConfusionPart:
    """What the section shows.

    Attributes:
        pairs: the most frequent first.
        matrix: of the classes in the first pairs, or None when there are fewer than two.
        wrong: queries whose nearest picture is of another class.
        total: queries with a nearest picture.
        more: pairs that are not listed.
    """

    pairs: tuple[Confusion, ...]
    matrix: Matrix | None
    wrong: int
    total: int
    more: int


def confusion_part(queries: pd.DataFrame | None, *, pairs: int = PAIRS, size: int = MATRIX) -> ConfusionPart | None:
    """Count which classes are taken for which; None when no query is wrong or nothing is known of the nearest.

    Args:
        queries: ``per_query.parquet``.
        pairs: how many pairs at most.
        size: classes of the matrix at most.
    """
    if queries is None or not {"path", "label", "nearest_label", "nearest_path"} <= set(queries.columns):
        return None
    known = queries[queries["nearest_path"].notna()]
    known = known.assign(label=known["label"].astype(str), nearest_label=known["nearest_label"].astype(str))
    wrong = known[known["label"] != known["nearest_label"]]
    if wrong.empty:
        return None
    counts = wrong.groupby(["label", "nearest_label"], sort=True).size().reset_index(name="number")
    sizes = known["label"].value_counts()
    counts["share"] = counts["number"] / counts["label"].map(sizes)
    counts = counts.sort_values(["number", "share"], ascending=False, kind="stable")
    listed = [
        (str(row["label"]), str(row["nearest_label"]), int(row["number"]), float(row["share"]))
        for row in counts.head(pairs).to_dict("records")
    ]
    groups = dict(iter(wrong.groupby(["label", "nearest_label"], sort=False)))
    found = tuple(
        Confusion(label, other, count, share, _examples(groups[(label, other)]))
        for label, other, count, share in listed
    )
    return ConfusionPart(found, _matrix(known, found, size), len(wrong), len(known), len(counts) - len(listed))


def _examples(rows: pd.DataFrame) -> tuple[Example, ...]:
    if "similarity" in rows.columns:
        rows = rows.sort_values("similarity", ascending=False, kind="stable")
    return tuple(
        Example(str(row["path"]), str(row["nearest_path"]), _number(row.get("similarity")))
        for row in rows.head(EXAMPLES).to_dict("records")
    )


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and value == value else None


def _matrix(known: pd.DataFrame, pairs: tuple[Confusion, ...], size: int) -> Matrix | None:
    labels = list(dict.fromkeys(name for pair in pairs for name in (pair.label, pair.taken_for)))[:size]
    if len(labels) < 2:
        return None
    place = {(pair.label, pair.taken_for): number for number, pair in enumerate(pairs)}
    rows, others = [], []
    for label in labels:
        nearest = known.loc[known["label"] == label, "nearest_label"]
        counts, whole = nearest.value_counts(), max(len(nearest), 1)
        row = [int(counts.get(other, 0)) for other in labels]
        rows.append(tuple(Cell(n, n / whole, place.get((label, other))) for n, other in zip(row, labels, strict=True)))
        others.append(len(nearest) - sum(row))
    return Matrix(tuple(labels), tuple(rows), tuple(others))
