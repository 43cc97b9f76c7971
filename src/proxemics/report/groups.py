"""Numbers by class and by domain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Group:
    """A class or a domain.

    Attributes:
        name: of the class or domain.
        queries: how many.
        recall: share of queries whose nearest picture is of their class, or None.
        precision: MAP@R of its queries, or None.
        taken_for: the class its queries are most often mistaken for, or empty.
        taken_count: how often.
        path: an example picture.
    """

    name: str
    queries: int
    recall: float | None
    precision: float | None
    taken_for: str
    taken_count: int
    path: str


def group_queries(queries: pd.DataFrame, column: str) -> list[Group]:
    """Return one group a value of ``column``, the worst first: lowest Recall@1, then lowest average precision.

    Args:
        queries: ``per_query.parquet``.
        column: ``label`` or ``domain``.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"path": ["1", "2"], "label": ["a", "b"], "recall_at_1": [1.0, 0.0]})
        >>> [group.name for group in group_queries(frame, "label")]
        ['b', 'a']
    """
    if column not in queries.columns:
        return []
    frame = queries.assign(**{column: queries[column].fillna("").astype(str)})
    grouped = frame.groupby(column, sort=True)
    recall, precision = _mean(frame, column, "recall_at_1"), _mean(frame, column, "average_precision")
    taken = _most_taken_for(frame, column)
    groups = [
        Group(
            name=str(name),
            queries=int(size),
            recall=recall.get(name),
            precision=precision.get(name),
            taken_for=taken.get(name, ("", 0))[0],
            taken_count=taken.get(name, ("", 0))[1],
            path=str(path),
        )
        for (name, size), path in zip(grouped.size().items(), grouped["path"].first(), strict=True)
    ]
    return sorted(groups, key=lambda group: (_key(group.recall), _key(group.precision), group.name))


def _key(value: float | None) -> float:
    return 2.0 if value is None else value  # groups without a number come last


def _mean(frame: pd.DataFrame, column: str, name: str) -> dict[object, float]:
    if name not in frame.columns:
        return {}
    means = frame[name].astype(float).groupby(frame[column]).mean().dropna()
    return {key: float(value) for key, value in means.items()}


def _most_taken_for(frame: pd.DataFrame, column: str) -> dict[object, tuple[str, int]]:
    if column != "label" or "nearest_label" not in frame.columns:
        return {}
    wrong = frame[frame["nearest_label"].astype(str) != frame["label"]]
    counts = wrong.groupby(["label", "nearest_label"], observed=True).size().reset_index(name="number")
    counts = counts.sort_values("number", ascending=False, kind="stable").drop_duplicates("label")
    columns = (counts[name].tolist() for name in ("label", "nearest_label", "number"))
    return {name: (str(other), int(number)) for name, other, number in zip(*columns, strict=True)}
