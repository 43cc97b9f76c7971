"""Series for the curves: loss over steps, validation metrics over epochs, and the epoch that was chosen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_POINTS = 240  # points drawn at most; more cannot be told apart


@dataclass(frozen=True)
class Series:
    """One line of a chart.

    Attributes:
        name: for the legend.
        x: steps or epochs, rising.
        y: values, as long as ``x``.
    """

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]


def loss_series(records: Sequence[Mapping[str, Any]]) -> list[Series]:
    """Return the loss, and its terms when there are several, over optimiser steps.

    Args:
        records: lines of ``metrics.jsonl``.

    Example:
        >>> loss_series([{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}])
        [Series(name='loss', x=(1.0, 2.0), y=(2.0, 1.0))]
    """
    points: dict[str, list[tuple[float, float]]] = {}
    for record in records:
        if "loss" not in record or "step" not in record:
            continue
        terms = record.get("terms") or {}
        values = {"loss": record["loss"], **(terms if len(terms) > 1 else {})}
        for name, value in values.items():
            if _is_finite(value):
                points.setdefault(name, []).append((float(record["step"]), float(value)))
    return [thin(Series(name, *_columns(sorted(pairs)))) for name, pairs in points.items()]


def validation_series(records: Sequence[Mapping[str, Any]]) -> list[Series]:
    """Return each validation metric over epochs, counted from 1.

    Args:
        records: lines of ``metrics.jsonl``.
    """
    points: dict[str, dict[float, float]] = {}
    for record in records:
        for name, value in (record.get("val") or {}).items():
            if _is_finite(value) and "epoch" in record:
                points.setdefault(name, {})[float(record["epoch"]) + 1] = float(value)
    return [Series(name, *_columns(sorted(pairs.items()))) for name, pairs in points.items()]


def chosen_epoch(records: Sequence[Mapping[str, Any]], metric: str | None) -> int | None:
    """Return the epoch, counted from 1, whose weights were kept, or None when it is not known.

    Args:
        records: lines of ``metrics.jsonl``.
        metric: the validation metric that chooses, ``last``, or None.
    """
    epochs = [record for record in records if record.get("val") and "epoch" in record]
    if not epochs:
        return None
    if metric == "last":
        return int(epochs[-1]["epoch"]) + 1
    best = [record for record in epochs if record.get("best")]
    if best:
        return int(best[-1]["epoch"]) + 1
    measured = [record for record in epochs if metric and _is_finite(record["val"].get(metric))]
    if not measured:
        return None
    return int(max(measured, key=lambda record: record["val"][metric])["epoch"]) + 1


def thin(series: Series, points: int = _POINTS) -> Series:
    """Replace runs of neighbouring points by their means, so that at most ``points`` remain.

    Example:
        >>> thin(Series("a", (1, 2, 3, 4), (0, 2, 4, 6)), points=2)
        Series(name='a', x=(1.5, 3.5), y=(1.0, 5.0))
    """
    run = math.ceil(len(series.x) / points)
    if run <= 1:
        return series
    starts = range(0, len(series.x), run)
    x = tuple(sum(part) / len(part) for part in (series.x[start : start + run] for start in starts))
    y = tuple(sum(part) / len(part) for part in (series.y[start : start + run] for start in starts))
    return Series(series.name, x, y)


def _columns(pairs: Sequence[tuple[float, float]]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return tuple(x for x, _ in pairs), tuple(y for _, y in pairs)


def _is_finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
