"""Are these two pictures of one class? The errors of answering by a threshold on their cosine, over all pairs.

A pair matches when its score is at least the threshold. FMR, the false-match rate, is the share of pairs of different
classes that match; FNMR, the false-non-match rate, the share of pairs of one class that do not (ISO/IEC 19795-1). How
scores are counted is written in :mod:`proxemics.evaluation.pair_scan`, where the intervals come from in
:mod:`proxemics.evaluation.class_spread`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from proxemics.core.errors import EvaluationError
from proxemics.evaluation.class_spread import LEVEL, Interval, rate_interval
from proxemics.evaluation.inputs import Embeddings
from proxemics.evaluation.labels import Labels
from proxemics.evaluation.pair_scan import (
    BINS,
    ClassCounts,
    PairCounts,
    PairSet,
    count_by_class,
    count_pairs,
    pair_set,
    smallest_index,
    threshold_of,
)

FMR_AT = (1e-1, 1e-2, 1e-3, 1e-4)
FEW = 3
"""Expected false matches below which a target cannot be measured: not one is likely to be seen (rule of three)."""
_A_DECADE = 24  # points of the curve in every factor of ten of the false-match rate
_LEVELS = 100  # points evenly spread over the false-non-match rate


@dataclass(frozen=True)
class FnmrAtFmr:
    """The smallest threshold whose FMR does not exceed a target, and what is lost there.

    Attributes:
        target: the FMR that was asked for.
        threshold: pairs with a score of at least this match; None where the target cannot be measured.
        fmr: measured there, at most the target.
        fnmr: measured there; None without a pair of one class.
        interval: of the FNMR at this target; None where it is unknown.
        false_matches: pairs of different classes that match there.
    """

    target: float
    threshold: float | None
    fmr: float | None
    fnmr: float | None
    interval: Interval | None
    false_matches: int


@dataclass(frozen=True, eq=False)
class VerificationResult:
    """Errors over all pairs. Numbers about pairs of one class are None where there is no such pair.

    Attributes:
        auc: probability that a pair of one class scores higher than one of two classes; equal scores count half.
        eer: equal error rate, where the line through the points of the curve has FMR = FNMR.
        eer_threshold: the smallest threshold at which the FMR is not above the FNMR.
        points: one for each FMR that was asked for.
        thresholds: (K,) of the curve, rising; the first lets every pair match, the last none.
        fmr: (K,) there.
        fnmr: (K,) there; NaN without a pair of one class.
        intervals: of ``auc`` and ``eer``, by class; empty with fewer than two classes that count.
        level: coverage of the intervals.
        num_pictures: N.
        num_classes: C.
        num_lone: classes of one picture; they are in pairs of different classes only.
        num_genuine: pairs of one class.
        num_impostor: pairs of different classes.
        notes: sentences that a reader of the numbers must know.
    """

    auc: float | None
    eer: float | None
    eer_threshold: float | None
    points: tuple[FnmrAtFmr, ...]
    thresholds: NDArray[np.float64]
    fmr: NDArray[np.float64]
    fnmr: NDArray[np.float64]
    intervals: dict[str, Interval]
    level: float
    num_pictures: int
    num_classes: int
    num_lone: int
    num_genuine: int
    num_impostor: int
    notes: tuple[str, ...]

    def fnmr_at(self, fmr: float) -> float | None:
        """Return the FNMR at one of the FMRs that were asked for.

        Raises:
            EvaluationError: it was not asked for.
        """
        for point in self.points:
            if point.target == fmr:
                return point.fnmr
        raise EvaluationError(
            f"FNMR at FMR {fmr:g} was not computed; there are {', '.join(f'{one.target:g}' for one in self.points)}. "
            "Name it in fmr_at=(...)."
        )

    def to_dict(self) -> dict[str, Any]:
        """Return everything ready for JSON; NaN becomes None."""
        plain = {name: getattr(self, name) for name in ("auc", "eer", "eer_threshold", "level")}
        counts = {
            name: getattr(self, name)
            for name in ("num_pictures", "num_classes", "num_lone", "num_genuine", "num_impostor")
        }
        return {
            **plain,
            **counts,
            "intervals": {name: list(one) for name, one in self.intervals.items()},
            "fnmr_at_fmr": [
                {**vars(one), "interval": None if one.interval is None else list(one.interval)} for one in self.points
            ],
            "curve": {
                "threshold": self.thresholds.round(6).tolist(),
                "fmr": self.fmr.tolist(),
                "fnmr": [None if np.isnan(value) else float(value) for value in self.fnmr],
            },
            "notes": list(self.notes),
        }


def verify_embeddings(
    embeddings: Embeddings,
    labels: Labels,
    *,
    fmr_at: Sequence[float] = FMR_AT,
    level: float = LEVEL,
    device: torch.device | str | None = None,
    block_size: int | None = None,
) -> VerificationResult:
    """Compare every two pictures and measure how well a threshold on the cosine tells one class from two.

    Args:
        embeddings: (N, D) numbers of any length.
        labels: (N,) integers of any size or strings.
        fmr_at: false-match rates in (0, 1) at which the FNMR is wanted.
        level: coverage of the intervals in (0, 1).
        device: where to compute.
        block_size: changes speed and memory only.

    Returns:
        The result. O(N² D) time in two passes; memory does not grow with the number of pairs.

    Raises:
        EvaluationError: one class only, other lengths, or embeddings that cannot be scored.

    Example:
        >>> result = verify_embeddings([[1, 0], [0.9, 0.1], [0, 1], [0.1, 0.9]], ["a", "a", "b", "b"], fmr_at=[0.8])
        >>> result.auc, result.eer, result.fnmr_at(0.8), result.num_genuine, result.num_impostor
        (1.0, 0.0, 0.0, 2, 4)
    """
    for target in fmr_at:
        check_target(target, "fmr_at")
    if not 0 < level < 1:
        raise EvaluationError(f"level={level}: give a share in (0, 1), such as 0.95.")
    pairs = pair_set(embeddings, labels, device=device)
    counts = count_pairs(pairs, block_size=block_size)
    false, missed = counts.false_matches(), counts.misses()
    targets = [smallest_index(false, target * int(false[0])) for target in fmr_at]
    classes = count_by_class(pairs, _grid(false, missed, targets), block_size=block_size)
    equal = _equal_error(false, missed)
    intervals = {} if equal is None else _curve_intervals(classes, _auc(counts), equal[0], level)
    points = tuple(
        _point(target, index, false, missed, classes, level) for target, index in zip(fmr_at, targets, strict=True)
    )
    return VerificationResult(
        auc=_auc(counts),
        eer=None if equal is None else equal[0],
        eer_threshold=None if equal is None else threshold_of(equal[1]),
        points=points,
        thresholds=np.array([threshold_of(int(one)) for one in classes.index]),
        fmr=classes.fmr,
        fnmr=classes.fnmr,
        intervals=intervals,
        level=level,
        num_pictures=len(pairs),
        num_classes=len(pairs.names),
        num_lone=int((pairs.sizes == 1).sum()),
        num_genuine=int(missed[-1]),
        num_impostor=int(false[0]),
        notes=tuple(_notes(pairs, missed, points)),
    )


def check_target(target: float, name: str) -> None:
    """Refuse an error rate that is none.

    Raises:
        EvaluationError: not in (0, 1).
    """
    if isinstance(target, bool) or not isinstance(target, int | float) or not 0 < target < 1:
        raise EvaluationError(f"{name}: {target!r} is no error rate to aim at; give a share in (0, 1), such as 0.001.")


def _grid(false: NDArray[np.int64], missed: NDArray[np.int64], targets: Sequence[int]) -> NDArray[np.int64]:
    """Thresholds of the curve: even steps in the logarithm of the FMR and in the FNMR, the targets, and both ends."""
    decades = np.log10(max(int(false[0]), 10))
    rates = 10.0 ** -np.linspace(0, decades, int(np.ceil(decades * _A_DECADE)) + 1)
    index = [smallest_index(false, float(rate) * int(false[0])) for rate in rates]
    if missed[-1]:
        lost = np.linspace(0, 1, _LEVELS + 1) * missed[-1]
        index += np.searchsorted(missed, lost, side="right").clip(max=BINS).tolist()
    return np.unique(np.array([0, *index, *targets, BINS], dtype=np.int64))


def _auc(counts: PairCounts) -> float | None:
    pairs = int(counts.genuine.sum()) * int(counts.impostor.sum())
    if pairs == 0:
        return None
    held = np.flatnonzero(counts.genuine)
    below = (np.cumsum(counts.impostor) - counts.impostor)[held]
    # The sum is taken in Python's whole numbers: it can pass 2**63.
    twice = (counts.genuine[held] * (2 * below + counts.impostor[held])).sum(dtype=object)
    return int(twice) / (2 * pairs)


def _equal_error(false: NDArray[np.int64], missed: NDArray[np.int64]) -> tuple[float, int] | None:
    """The equal error rate on the line through all points, and the first threshold past the crossing."""
    if missed[-1] == 0:
        return None
    impostor, genuine = int(false[0]), int(missed[-1])
    index = bisect_left(range(BINS + 1), True, key=lambda at: int(false[at]) * genuine <= int(missed[at]) * impostor)
    around = slice(max(index - 1, 0), index + 1)
    return float(crossing(false[None, around] / impostor, missed[None, around] / genuine)[0]), index


def crossing(fmr: NDArray[np.float64], fnmr: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return where falling FMRs meet rising FNMRs, on straight lines between the points.

    Args:
        fmr: (R, K) falling along K to 0.
        fnmr: (R, K) rising along K to 1.

    Returns:
        (R,) the common value; NaN for rows with NaN.

    Example:
        >>> crossing(np.array([[1.0, 0.2, 0.0]]), np.array([[0.0, 0.0, 1.0]])).round(4)
        array([0.1667])
    """
    gap = fmr - fnmr
    right = np.argmax(gap <= 0, axis=1)
    left, rows = np.maximum(right - 1, 0), np.arange(len(gap))
    before, after = gap[rows, left], gap[rows, right]
    span = before - after
    share = np.divide(before, span, out=np.zeros(len(gap)), where=span > 0)
    found: NDArray[np.float64] = fmr[rows, left] + share * (fmr[rows, right] - fmr[rows, left])
    found[np.isnan(gap).any(axis=1)] = np.nan
    return found


def _curve_intervals(classes: ClassCounts, auc: float | None, eer: float, level: float) -> dict[str, Interval]:
    """Intervals of AUC and EER from the curves with one class left out; their small error of the grid is common."""
    fmr, fnmr = classes.fmr_without, classes.fnmr_without
    area = ((fmr[:, :-1] - fmr[:, 1:]) * (1 - (fnmr[:, :-1] + fnmr[:, 1:]) / 2)).sum(axis=1)
    found = {
        "auc": rate_interval(auc if auc is not None else float("nan"), area, units=len(fmr), level=level),
        "eer": rate_interval(eer, crossing(fmr, fnmr), units=len(fmr), level=level),
    }
    return {name: one for name, one in found.items() if one is not None}


def _point(
    target: float,
    index: int,
    false: NDArray[np.int64],
    missed: NDArray[np.int64],
    classes: ClassCounts,
    level: float,
) -> FnmrAtFmr:
    if target * int(false[0]) < FEW:
        return FnmrAtFmr(target, None, None, None, None, 0)
    fnmr = int(missed[index]) / int(missed[-1]) if missed[-1] else None
    interval = None
    if fnmr is not None:
        without = _fnmr_at(classes.fmr_without, classes.fnmr_without, target)
        interval = rate_interval(fnmr, without, units=int((classes.genuine > 0).sum()), level=level)
    return FnmrAtFmr(target, threshold_of(index), int(false[index]) / int(false[0]), fnmr, interval, int(false[index]))


def _fnmr_at(fmr: NDArray[np.float64], fnmr: NDArray[np.float64], target: float) -> NDArray[np.float64]:
    """(R,) FNMR where each falling (R, K) FMR passes the target, on a straight line between the points."""
    right = np.argmax(fmr <= target, axis=1)
    left, rows = np.maximum(right - 1, 0), np.arange(len(fmr))
    span = fmr[rows, left] - fmr[rows, right]
    share = np.divide(fmr[rows, left] - target, span, out=np.ones(len(fmr)), where=span > 0).clip(0, 1)
    found: NDArray[np.float64] = fnmr[rows, left] + share * (fnmr[rows, right] - fnmr[rows, left])
    return found


def _notes(pairs: PairSet, missed: NDArray[np.int64], points: Sequence[FnmrAtFmr]) -> list[str]:
    notes = []
    if missed[-1] == 0:
        notes.append("No class has two pictures, so there is no pair of one class: FNMR, EER and AUC are undefined.")
    blind = [f"{one.target:g}" for one in points if one.threshold is None]
    if blind:
        notes.append(
            f"There are too few pairs of different classes to measure an FMR of {', '.join(blind)}: fewer than {FEW} "
            "false matches would be expected."
        )
    if pairs.zero_rows:
        notes.append(f"{pairs.zero_rows} embedding(s) have length 0; their similarity to everything is taken as 0.")
    return notes
