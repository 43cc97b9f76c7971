"""The table of numbers: trained beside untrained, with intervals, differences and a verdict in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from proxemics.report.explain import Explanation, explain

FROZEN = "frozen"
_ORDER = ("recall_at_1", "map_at_r", "r_precision")


@dataclass(frozen=True)
class Estimate:
    """A number with its interval.

    Attributes:
        value: as measured, or None.
        low: lower end of the 95 % interval, or None.
        high: upper end, or None.
    """

    value: float | None
    low: float | None = None
    high: float | None = None

    @property
    def known_interval(self) -> tuple[float, float] | None:
        """Both ends, or None."""
        return None if self.low is None or self.high is None else (self.low, self.high)


@dataclass(frozen=True)
class Number:
    """One metric of the trained and of the untrained model.

    Attributes:
        name: as in ``result.json``.
        about: how to read it.
        trained: with interval.
        untrained: with interval; its value is None when nothing was measured.
        paired: interval of trained minus untrained over the same queries; None where it is not known.
    """

    name: str
    about: Explanation
    trained: Estimate
    untrained: Estimate
    paired: tuple[float, float] | None = None

    @property
    def difference(self) -> float | None:
        """Trained minus untrained."""
        if self.trained.value is None or self.untrained.value is None:
            return None
        return self.trained.value - self.untrained.value

    @property
    def gain(self) -> int:
        """1 when training helped, -1 when it harmed, 0 when neither can be said."""
        difference = self.difference
        if not difference or not self.about.better:
            return 0
        return 1 if (difference > 0) == (self.about.better == "up") else -1

    @property
    def apart(self) -> bool:
        """The two intervals are known and do not overlap."""
        first, second = self.trained.known_interval, self.untrained.known_interval
        if first is None or second is None:
            return False
        return first[0] > second[1] or second[0] > first[1]


def pick_rows(result: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the row of the trained model and that of the untrained trunk (empty when it was not measured).

    Args:
        result: content of ``result.json``.
    """
    rows: Sequence[dict[str, Any]] = result["rows"]
    frozen = next((row for row in rows if row.get("method") == FROZEN), {})
    trained = next((row for row in rows if row.get("method") != FROZEN), rows[0])
    return trained, frozen


def collect_numbers(result: Mapping[str, Any]) -> list[Number]:
    """Return all metrics, the most telling first.

    Args:
        result: content of ``result.json``.

    Example:
        >>> rows = [{"method": "none", "metrics": {"recall_at_1": 0.75}, "intervals": {"recall_at_1": [0.7, 0.8]}},
        ...         {"method": "frozen", "metrics": {"recall_at_1": 0.25}, "intervals": {"recall_at_1": [0.2, 0.3]}}]
        >>> (number,) = collect_numbers({"rows": rows})
        >>> number.difference, number.gain, number.apart
        (0.5, 1, True)
    """
    trained, frozen = pick_rows(result)
    names = list(dict.fromkeys([*trained.get("metrics", {}), *frozen.get("metrics", {})]))
    names.sort(key=_place)
    return [
        Number(name, explain(name), estimate_of(trained, name), estimate_of(frozen, name), _paired(trained, name))
        for name in names
    ]


def _paired(row: Mapping[str, Any], name: str) -> tuple[float, float] | None:
    interval = row.get("over_untrained", {}).get(name, {}).get("interval")
    return (float(interval[0]), float(interval[1])) if interval else None


def _place(name: str) -> int:
    if name in _ORDER:
        return _ORDER.index(name)
    return len(_ORDER) + (not name.startswith("recall_at_"))


def estimate_of(row: Mapping[str, Any], name: str) -> Estimate:
    """Return a metric of a row of ``result.json`` with its interval, as far as they are known.

    Example:
        >>> estimate_of({"metrics": {"map_at_r": 0.5}, "intervals": {"map_at_r": [0.4, 0.6]}}, "map_at_r")
        Estimate(value=0.5, low=0.4, high=0.6)
    """
    value = _number(row.get("metrics", {}).get(name))
    interval = row.get("intervals", {}).get(name)
    if not isinstance(interval, (list, tuple)) or len(interval) != 2:
        return Estimate(value)
    return Estimate(value, _number(interval[0]), _number(interval[1]))


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and value == value else None


def verdict(number: Number | None) -> str:
    """Say in one sentence what training did to a metric.

    Args:
        number: the headline metric, or None.
    """
    if number is None or number.difference is None:
        return "The untrained trunk was not measured, so this report cannot say what training changed."
    title = number.about.title
    if number.gain == 0:
        return f"Training left {title} as it was."
    helped = "raised" if number.difference > 0 else "lowered"
    amount = abs(number.difference) * 100 if number.about.share else abs(number.difference)
    unit = " points" if number.about.share else ""
    text = f"Training {helped} {title} by {amount:.1f}{unit} over the untrained trunk"
    if number.paired is not None:
        scale = 100 if number.about.share else 1
        low, high = (scale * end for end in number.paired)
        chance = ", so with this many test classes it may be chance" if low <= 0 <= high else ""
        return f"{text} (95 % interval over the same queries: {low:+.1f} to {high:+.1f}){chance}."
    if number.trained.known_interval is None or number.untrained.known_interval is None:
        return f"{text}."
    if number.apart:
        return f"{text}; the 95 % intervals do not overlap."
    return f"{text}; the 95 % intervals overlap, so with this many test classes it may be chance."
