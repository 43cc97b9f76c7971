"""How well a certainty, such as the length of the raw embedding, predicts which queries are answered wrongly.

Two views on the same numbers: the AUROC asks whether right answers are more certain than wrong ones, and the
risk–coverage curve (El-Yaniv and Wiener 2010) asks how many errors are left when only the most certain queries are
answered. The area under that curve and its excess over a perfect order follow Geifman, Uziel and El-Yaniv (2019); both
are exact sums over queries here, not the approximations for large N.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from proxemics.core.errors import EvaluationError

Values: TypeAlias = "Tensor | NDArray[np.generic] | Sequence[float]"
POINTS = 200
"""Points of a curve that are written to JSON at most."""


@dataclass(frozen=True, eq=False)
class RiskCoverage:
    """The error rate among the most certain queries, over how many of them are kept.

    A threshold keeps or drops queries of equal certainty together, so the curve has one point for each different
    certainty. The areas are means of the error rate over all N counts of kept queries; inside a group of equal
    certainty the order is taken as random, and its expectation is exact.

    Attributes:
        coverage: (T,) float64, share of the queries kept, rising to 1.
        risk: (T,) float64, error rate among them; the last is that of all queries.
        aurc: area under the curve, in [0, 1]; lower is better.
        oracle: area if every wrong query were less certain than every right one; the smallest possible.
        random: expected area of an order that knows nothing, which is the error rate of all queries.
    """

    coverage: NDArray[np.float64]
    risk: NDArray[np.float64]
    aurc: float
    oracle: float
    random: float

    @property
    def e_aurc(self) -> float:
        """Excess of the area over that of a perfect order, >= 0 up to rounding."""
        return self.aurc - self.oracle

    def thinned(self, points: int = POINTS) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return at most ``points`` points of the curve, evenly spread over the coverage; the last is always kept.

        Args:
            points: >= 1.

        Returns:
            Coverage and risk, each (T',) float64.
        """
        if len(self.coverage) <= points:
            return self.coverage, self.risk
        wanted = np.arange(1, points + 1) / points
        rows = np.unique(np.searchsorted(self.coverage, wanted - 1e-12).clip(max=len(self.coverage) - 1))
        return self.coverage[rows], self.risk[rows]


def certainty_auroc(certainty: Values, errors: Values) -> float | None:
    """Return the probability that a right query is more certain than a wrong one; equal certainties count half.

    Args:
        certainty: (N,) numbers, N >= 1, infinity allowed; higher is more certain.
        errors: (N,) bool, True where the query was answered wrongly.

    Returns:
        In [0, 1]; 0.5 says nothing, below it the mistakes are the more certain ones. None, never NaN, when all queries
        are right or all are wrong, because there is no pair to compare. O(N log N).

    Raises:
        EvaluationError: other shapes, no query, NaN, or errors that are not bool.

    Example:
        >>> certainty_auroc([3.0, 2.0, 2.0, 1.0], [False, True, False, True])
        0.875
        >>> certainty_auroc([3.0, 2.0], [False, False]) is None
        True
    """
    sizes, wrong = _groups(*_checked(certainty, errors))
    right = sizes - wrong
    pairs = int(right.sum()) * int(wrong.sum())
    if pairs == 0:
        return None
    less_certain = wrong.sum() - wrong.cumsum()
    return int((right * (2 * less_certain + wrong)).sum()) / (2 * pairs)  # whole numbers up to here: exact


def risk_coverage(certainty: Values, errors: Values) -> RiskCoverage:
    """Return the risk–coverage curve and the areas that go with it.

    Args:
        certainty: (N,) numbers, N >= 1, infinity allowed; higher is more certain.
        errors: (N,) bool, True where the query was answered wrongly.

    Returns:
        The curve; O(N log N). All right or all wrong needs no special case: the areas are then 0 or 1.

    Raises:
        EvaluationError: other shapes, no query, NaN, or errors that are not bool.

    Example:
        >>> curve = risk_coverage([4.0, 3.0, 2.0, 1.0], [False, True, False, True])
        >>> curve.coverage.tolist(), curve.risk.round(3).tolist()
        ([0.25, 0.5, 0.75, 1.0], [0.0, 0.5, 0.333, 0.5])
        >>> round(curve.aurc, 4), round(curve.oracle, 4), curve.random
        (0.3333, 0.2083, 0.5)
    """
    values, wrong = _checked(certainty, errors)
    count, total = len(values), int(wrong.sum())
    group_sizes, group_wrong = _groups(values, wrong)
    ends, wrong_at_end = group_sizes.cumsum(), group_wrong.cumsum()
    kept = np.arange(1, count + 1)
    # Expected number of errors among the first k: what stood before the group, and its even share of the group.
    group = np.repeat(np.arange(len(ends)), group_sizes)
    into_group = kept - (ends - group_sizes)[group]
    expected = (wrong_at_end - group_wrong)[group] + into_group * group_wrong[group] / group_sizes[group]
    return RiskCoverage(
        coverage=ends / count,
        risk=wrong_at_end / ends,
        aurc=float((expected / kept).mean()),
        oracle=float((np.maximum(kept - (count - total), 0) / kept).mean()),
        random=total / count,
    )


def score_certainty(certainty: Values, errors: Values) -> dict[str, Any]:
    """Return what a result file says about a certainty, ready for JSON.

    Args:
        certainty: (N,) numbers, N >= 1; higher is more certain.
        errors: (N,) bool.

    Returns:
        ``auroc`` (or None), ``aurc``, ``e_aurc``, ``aurc_oracle``, ``aurc_random``, ``num_queries``, ``num_errors``,
        and the curve as ``coverage`` and ``risk``, at most :data:`POINTS` numbers each, rounded to 6 digits.

    Raises:
        EvaluationError: as :func:`risk_coverage`.

    Example:
        >>> score = score_certainty([2.0, 1.0], [False, True])
        >>> score["auroc"], score["aurc"], score["e_aurc"], score["risk"]
        (1.0, 0.25, 0.0, [0.0, 0.5])
    """
    curve = risk_coverage(certainty, errors)
    coverage, risk = curve.thinned()
    return {
        "auroc": certainty_auroc(certainty, errors),
        "aurc": curve.aurc,
        "e_aurc": curve.e_aurc,
        "aurc_oracle": curve.oracle,
        "aurc_random": curve.random,
        "num_queries": len(certainty),
        "num_errors": round(curve.random * len(certainty)),
        "coverage": coverage.round(6).tolist(),
        "risk": risk.round(6).tolist(),
    }


def _checked(certainty: Values, errors: Values) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    values, wrong = _array(certainty), _array(errors)
    if values.ndim != 1 or values.shape != wrong.shape:
        raise EvaluationError(f"certainty has shape {values.shape} and errors {wrong.shape}; give two of shape (N,).")
    if len(values) == 0:
        raise EvaluationError("There is no query, so there is no certainty to judge.")
    if wrong.dtype != np.bool_:
        raise EvaluationError(f"errors have dtype {wrong.dtype}; give bool, True where the query was answered wrongly.")
    if values.dtype.kind not in "fiu":
        raise EvaluationError(f"certainty has dtype {values.dtype}; give real numbers.")
    values = values.astype(np.float64)
    if np.isnan(values).any():
        row = int(np.flatnonzero(np.isnan(values))[0])
        raise EvaluationError(f"certainty is NaN at row {row}; leave out queries without one.")
    return values, wrong


def _array(values: Values) -> NDArray[Any]:
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        return (values.double() if values.is_floating_point() else values).numpy()
    return np.asarray(values)


def _groups(values: NDArray[np.float64], wrong: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (T,) sizes and (T,) numbers of errors of the groups of equal certainty, the most certain first."""
    order = np.argsort(-values, kind="stable")
    values = values[order]
    starts = np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]]))
    sizes = np.diff(np.append(starts, len(values))).astype(np.int64)
    return sizes, np.add.reduceat(wrong[order].astype(np.int64), starts)
