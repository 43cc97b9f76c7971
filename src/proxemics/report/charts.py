"""Geometry of our own charts: from numbers to the coordinates that the template draws as inline SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from proxemics.report.curves import Series

WIDTH, HEIGHT = 520, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 16, 16, 34


@dataclass(frozen=True)
class Tick:
    """A mark on an axis: where it is drawn, and what it says."""

    at: float
    text: str


@dataclass(frozen=True)
class Line:
    """A drawn series: its path, its points when there are few, and what the legend says beside its name."""

    name: str
    path: str
    dots: tuple[tuple[float, float, str], ...]
    note: str


@dataclass(frozen=True)
class Chart:
    """Everything the template needs to draw a line chart.

    Attributes:
        title: caption.
        x_title: what the horizontal axis counts.
        summary: one sentence for screen readers.
        lines: one a series.
        x_ticks: marks of the horizontal axis.
        y_ticks: marks of the vertical axis.
        mark: x of the vertical line, or None.
        mark_text: what stands at it.
        mark_end: the text is to the left of the line.
        width: of the drawing.
        height: of the drawing.
        plot: left, top, right and bottom of the plotting area.
    """

    title: str
    x_title: str
    summary: str
    lines: tuple[Line, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    mark: float | None
    mark_text: str
    mark_end: bool
    width: int = WIDTH
    height: int = HEIGHT
    plot: tuple[int, int, int, int] = (_LEFT, _TOP, WIDTH - _RIGHT, HEIGHT - _BOTTOM)


def nice_ticks(low: float, high: float, *, count: int = 5, whole: bool = False) -> list[float]:
    """Return round numbers that cover [low, high].

    Args:
        low: smallest value.
        high: largest value.
        count: about how many.
        whole: only whole numbers.

    Example:
        >>> nice_ticks(0.03, 0.47)
        [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]
        >>> nice_ticks(1, 6, whole=True)
        [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    """
    if high <= low:
        low, high = low - 0.5, high + 0.5
    raw = (high - low) / max(count, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    if whole:
        step = max(1.0, round(step))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def line_chart(
    title: str,
    series: Sequence[Series],
    *,
    x_title: str,
    percent: bool = False,
    mark: float | None = None,
    mark_text: str = "",
    notes: Sequence[str] = (),
) -> Chart | None:
    """Lay out a line chart; None when there is nothing to draw.

    Args:
        title: caption.
        series: the lines; empty ones are left out.
        x_title: what the horizontal axis counts.
        percent: values are shares and are labelled in per cent.
        mark: x at which a vertical line is drawn.
        mark_text: what the line means.
        notes: what the legend says of each series; default: its last value.
    """
    notes = [note for one, note in zip(series, notes or [""] * len(series), strict=True) if one.x]
    series = [one for one in series if one.x]
    if not series:
        return None
    xs, ys = [x for one in series for x in one.x], [y for one in series for y in one.y]
    x_low, x_high = min(xs), max(xs)
    if x_high == x_low:
        x_low, x_high = x_low - 0.5, x_high + 0.5
    y_values = nice_ticks(min(ys), max(ys), count=4)
    y_low, y_high = y_values[0], y_values[-1]

    def at_x(value: float) -> float:
        return round(_LEFT + (value - x_low) / (x_high - x_low) * (WIDTH - _LEFT - _RIGHT), 1)

    def at_y(value: float) -> float:
        return round(HEIGHT - _BOTTOM - (value - y_low) / (y_high - y_low) * (HEIGHT - _TOP - _BOTTOM), 1)

    def shown(value: float) -> str:
        return f"{100 * value:.1f} %" if percent else f"{value:.3g}"

    inside = [value for value in nice_ticks(x_low, x_high, whole=True) if x_low <= value <= x_high]
    return Chart(
        title=title,
        x_title=x_title,
        summary=_summary(title, series, x_title, shown, mark_text),
        lines=tuple(
            _line(one, at_x, at_y, shown, x_title, note or f"{shown(one.y[-1])} at the end")
            for one, note in zip(series, notes, strict=True)
        ),
        x_ticks=tuple(Tick(at_x(value), f"{value:,.0f}") for value in inside),
        y_ticks=tuple(Tick(at_y(value), _axis_text(value, percent)) for value in y_values),
        mark=at_x(mark) if mark is not None and x_low <= mark <= x_high else None,
        mark_text=mark_text,
        mark_end=mark is not None and mark > (x_low + x_high) / 2,
    )


@dataclass(frozen=True)
class SmallCurve:
    """A curve as small as a line of text, over equal steps and from 0 to 1.

    Attributes:
        lines: a path and its points for each series, the first on top.
        text: one sentence for screen readers.
        width: of the drawing.
        height: of the drawing.
    """

    lines: tuple[tuple[str, tuple[tuple[float, float], ...]], ...]
    text: str
    width: int = 180
    height: int = 44


def small_curve(series: Sequence[Sequence[float]], *, text: str) -> SmallCurve:
    """Lay out curves of shares over equal steps.

    Args:
        series: of equal length, two or more values in [0, 1] each.
        text: what they say.

    Example:
        >>> small_curve([[1.0, 0.0]], text="falls").lines[0][0]
        'M8 5 L172 39'
    """
    width, height, side, edge = 180, 44, 8, 5
    lines = []
    for values in series:
        step = (width - 2 * side) / max(len(values) - 1, 1)
        points = tuple(
            (round(side + step * place, 1), round(edge + (1 - min(max(value, 0), 1)) * (height - 2 * edge), 1))
            for place, value in enumerate(values)
        )
        lines.append(("M" + " L".join(f"{x:g} {y:g}" for x, y in points), points))
    return SmallCurve(tuple(lines), text, width, height)


def _axis_text(value: float, percent: bool) -> str:
    return f"{100 * value:.3g} %" if percent else f"{value:g}"


def _line(
    one: Series,
    at_x: Callable[[float], float],
    at_y: Callable[[float], float],
    shown: Callable[[float], str],
    x_title: str,
    note: str,
) -> Line:
    points = [(at_x(x), at_y(y)) for x, y in zip(one.x, one.y, strict=True)]
    path = "M" + " L".join(f"{x:g} {y:g}" for x, y in points)
    few = len(points) <= 40
    dots = tuple(
        (px, py, f"{one.name}, {x_title} {x:,.0f}: {shown(y)}")
        for (px, py), x, y in zip(points, one.x, one.y, strict=True)
        if few
    )
    return Line(one.name, path, dots, note)


def _summary(title: str, series: Sequence[Series], x_title: str, shown: Callable[[float], str], mark_text: str) -> str:
    parts = [
        f"{one.name} goes from {shown(one.y[0])} at {x_title} {one.x[0]:,.0f} to {shown(one.y[-1])} at "
        f"{x_title} {one.x[-1]:,.0f}"
        for one in series
    ]
    return f"{title}: {'; '.join(parts)}." + (f" {mark_text}." if mark_text else "")
