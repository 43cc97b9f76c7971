"""The certainty section: the most and least certain queries, and how well certainty predicts mistakes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from proxemics.evaluation.certainty import RiskCoverage, certainty_auroc, risk_coverage
from proxemics.evaluation.lengths import length_is_trained
from proxemics.report.charts import Chart, line_chart
from proxemics.report.curves import Series
from proxemics.report.numbers import pick_rows

if TYPE_CHECKING:
    import pandas as pd

_NEEDED = {"path", "label", "kappa", "nearest_label"}
_FEW_ERRORS = 20


@dataclass(frozen=True)
class CertainPicture:
    """A query and its certainty.

    Attributes:
        path: of the picture.
        label: its class.
        kappa: length of its raw embedding, as text.
        correct: its nearest picture is of its class.
        taken_for: the class of its nearest picture.
    """

    path: str
    label: str
    kappa: str
    correct: bool
    taken_for: str


@dataclass(frozen=True)
class CertaintyPart:
    """What the section shows.

    Attributes:
        auroc: probability that a right query is more certain than a wrong one; None when all are right or all wrong.
        untrained_auroc: that of the untrained trunk, or None.
        reading: sentences on what this says.
        trained: a term of the training loss looked at the lengths.
        chart: the risk–coverage curve, or None.
        most: the most certain queries first.
        least: the least certain queries first.
        count: queries that were ranked.
    """

    auroc: float | None
    untrained_auroc: float | None
    reading: tuple[str, ...]
    trained: bool
    chart: Chart | None
    most: tuple[CertainPicture, ...]
    least: tuple[CertainPicture, ...]
    count: int


def certainty_part(queries: pd.DataFrame | None, result: Mapping[str, Any], *, shown: int = 12) -> CertaintyPart | None:
    """Return the section, or None when the run has no certainty or the same one for all queries.

    Queries without another picture of their class are left out, as they are from the metrics.

    Args:
        queries: ``per_query.parquet``.
        result: content of ``result.json``.
        shown: pictures at each end; fewer when there are not that many.
    """
    if queries is None or not set(queries.columns) >= _NEEDED:
        return None
    known = queries[queries["kappa"].notna()]
    if "average_precision" in known.columns:
        known = known[known["average_precision"].notna()]
    kappa = known["kappa"].to_numpy(dtype=np.float64)
    if len(np.unique(kappa)) < 2:
        return None
    errors = (known["nearest_label"].astype(str) != known["label"].astype(str)).to_numpy()
    curve, auroc = risk_coverage(kappa, errors), certainty_auroc(kappa, errors)
    order = np.argsort(-kappa, kind="stable")
    ends = min(shown, len(order) // 2)
    pictures = [_picture(known.iloc[int(row)]) for row in (*order[:ends], *order[::-1][:ends])]
    before = pick_rows(result)[1].get("certainty") or {}
    return CertaintyPart(
        auroc=auroc,
        untrained_auroc=before.get("auroc"),
        reading=tuple(read_certainty(auroc, curve, len(errors))),
        trained=length_is_trained((result.get("config") or {}).get("methods")),
        chart=risk_chart(curve, len(errors)),
        most=tuple(pictures[:ends]),
        least=tuple(pictures[ends:]),
        count=len(errors),
    )


def read_certainty(auroc: float | None, curve: RiskCoverage, count: int) -> list[str]:
    """Say in words what the AUROC and the curve mean.

    Args:
        auroc: of certainty against right and wrong, or None.
        curve: of the same queries.
        count: how many queries.

    Example:
        >>> curve = risk_coverage([4.0, 3.0, 2.0, 1.0], np.array([False, False, True, True]))
        >>> read_certainty(1.0, curve, 4)[0]
        'Certainty tells right answers from mistakes: it is higher for the right one in 100 % of pairs.'
    """
    total = round(curve.random * count)
    if auroc is None:
        return [f"All {count:,} queries are {'right' if total == 0 else 'wrong'}, so there is nothing to predict."]
    row = int(np.searchsorted(curve.coverage, 0.5))
    kept, risk = curve.coverage[row], curve.risk[row]
    reading = [_verdict(auroc)]
    if kept < 1:
        reading.append(
            f"Of all {count:,} queries {100 * curve.random:.1f} % are wrong; of the {100 * kept:.0f} % most certain, "
            f"{100 * risk:.1f} %."
        )
    reading.append(
        f"The area under the curve (AURC), the mean over all shares kept, is {100 * curve.aurc:.1f} %, "
        f"{100 * max(curve.e_aurc, 0):.1f} points above a perfect order."
    )
    few = min(total, count - total)
    if few < _FEW_ERRORS:
        what = "wrong" if total == few else "right"
        reading.append(f"Only {few} {'query is' if few == 1 else 'queries are'} {what}, so this may be chance.")
    return reading


def _verdict(auroc: float) -> str:
    share = f"{100 * auroc:.0f} % of pairs"
    if auroc < 0.45:
        return f"Mistakes are the more certain answers: certainty is higher for the right one in only {share}."
    if auroc >= 0.8:
        told = "Certainty tells right answers from mistakes"
    elif auroc >= 0.65:
        told = "Certainty tells some mistakes from right answers"
    else:
        told = f"Certainty says {'little' if auroc > 0.55 else 'nothing'} about mistakes"
    chance = "" if auroc >= 0.65 else ", and chance is 50 %"
    return f"{told}: it is higher for the right one in {share}{chance}."


def risk_chart(curve: RiskCoverage, count: int) -> Chart | None:
    """Draw the risk–coverage curve beside a perfect and a random order.

    The first points, of fewer than ten queries or a tenth of them, jump between 0 and 1 and are not drawn.

    Args:
        curve: of all queries.
        count: how many queries.
    """
    coverage, risk = curve.thinned()
    drawn = coverage * count >= min(10, count / 10) - 1e-9
    coverage, risk = coverage[drawn], risk[drawn]
    perfect = np.maximum(coverage - (1 - curve.random), 0) / coverage
    x = tuple((100 * coverage).tolist())
    series = [
        Series("most certain first", x, tuple(risk.tolist())),
        Series("perfect order", x, tuple(perfect.tolist())),
        Series("random order", x, (curve.random,) * len(x)),
    ]
    areas = [f"area {100 * area:.1f} %" for area in (curve.aurc, curve.oracle, curve.random)]
    return line_chart(
        "Risk–coverage: wrong queries among those kept", series, x_title="% of queries kept", percent=True, notes=areas
    )


def _picture(row: pd.Series[Any]) -> CertainPicture:
    label, nearest = str(row["label"]), str(row["nearest_label"])
    return CertainPicture(str(row["path"]), label, length(float(row["kappa"])), label == nearest, nearest)


def length(value: float) -> str:
    """Write a length with about three digits.

    Example:
        >>> length(0.01234), length(7.126), length(41), length(99.97), length(12345.6)
        ('0.0123', '7.13', '41.0', '100', '12,346')
    """
    return f"{value:#.3g}" if value < 99.95 else f"{value:,.0f}"
