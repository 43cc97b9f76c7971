"""The table of a protocol with several tasks: one row a domain, the mean, and what is reported beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from proxemics.report.explain import Explanation, explain
from proxemics.report.numbers import Estimate, Number, estimate_of, pick_rows

_SHOWN = ("recall_at_1", "map_at_r")


@dataclass(frozen=True)
class TaskRow:
    """A task.

    Attributes:
        name: such as the domain of the queries.
        kind: ``task``, ``beside`` (not part of the mean) or ``mean``.
        queries: how many, or None.
        numbers: one for each metric of the table.
    """

    name: str
    kind: str
    queries: int | None
    numbers: tuple[Number, ...]


@dataclass(frozen=True)
class TaskTable:
    """The whole table.

    Attributes:
        metrics: how to read each column.
        rows: the tasks, their mean, and those beside it.
        has_untrained: the untrained trunk was measured on the tasks as well.
        hint: what the rows are.
    """

    metrics: tuple[Explanation, ...]
    rows: tuple[TaskRow, ...]
    has_untrained: bool
    hint: str


def task_table(result: Mapping[str, Any]) -> TaskTable | None:
    """Return the table, or None when the protocol has a single task.

    Args:
        result: content of ``result.json``.

    Example:
        >>> row = {"method": "none", "metrics": {"recall_at_1": 0.5}, "tasks": {
        ...     "photo": {"metrics": {"recall_at_1": 0.7}, "num_queries": 3},
        ...     "sketch": {"metrics": {"recall_at_1": 0.3}, "num_queries": 9}}}
        >>> [(one.name, one.numbers[0].trained.value) for one in task_table({"rows": [row]}).rows]
        [('photo', 0.7), ('sketch', 0.3), ('Mean', 0.5)]
    """
    trained, frozen = pick_rows(result)
    tasks: Mapping[str, Any] = trained.get("tasks") or {}
    beside: Mapping[str, Any] = trained.get("beside") or {}
    if not tasks:
        return None
    names = [name for name in _SHOWN if any(name in one.get("metrics", {}) for one in tasks.values())]
    rows = [_row(name, "task", one, (frozen.get("tasks") or {}).get(name), names) for name, one in tasks.items()]
    rows.append(_row("Mean", "mean", trained, frozen, names))
    rows += [_row(name, "beside", one, (frozen.get("beside") or {}).get(name), names) for name, one in beside.items()]
    hint = (
        "Each row is a task of the protocol, searched by itself; the mean counts every task alike, however many "
        "queries it has."
    )
    if beside:
        hint += " Rows under the mean are no part of it."
    return TaskTable(tuple(explain(name) for name in names), tuple(rows), bool(frozen.get("tasks")), hint)


def _row(
    name: str, kind: str, trained: Mapping[str, Any], frozen: Mapping[str, Any] | None, names: list[str]
) -> TaskRow:
    count = trained.get("num_queries")
    numbers = tuple(
        Number(
            metric,
            explain(metric),
            estimate_of(trained, metric),
            estimate_of(frozen, metric) if frozen else Estimate(None),
        )
        for metric in names
    )
    return TaskRow(name, kind, int(count) if isinstance(count, int) else None, numbers)
