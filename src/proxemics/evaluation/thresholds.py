"""Which similarity says "the same class"? The threshold for a false-match rate, over all pairs of different classes.

The threshold is the smallest multiple of about one millionth at which the share of pairs of different classes that
match is at most the target; it is exact over all pairs (:mod:`proxemics.evaluation.pair_scan`). Its interval holds the
thresholds at which the true rate may be the target: those at which the interval of the rate, which comes from leaving
out classes (:mod:`proxemics.evaluation.class_spread`), holds the target (Woodruff 1952).

How many pairs are needed follows Doddington et al. (2000): with 30 errors seen the true rate is within 30 % of the
measured one with 90 % confidence, if trials are independent. Pairs are not, so this is the least to ask for, and the
interval says what they are worth.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from proxemics.core.errors import EvaluationError
from proxemics.evaluation.class_spread import LEVEL, Interval, effective_trials, rate_interval
from proxemics.evaluation.class_thresholds import class_thresholds
from proxemics.evaluation.inputs import Embeddings
from proxemics.evaluation.labels import Labels
from proxemics.evaluation.operating_point import Rate, Threshold
from proxemics.evaluation.pair_scan import (
    BINS,
    ClassCounts,
    PairSet,
    count_by_class,
    count_pairs,
    pair_set,
    smallest_index,
    threshold_of,
)
from proxemics.evaluation.verification import check_target

MIN_ERRORS = 30
"""False matches to be expected at the target (rule of 30)."""
LEAST_ERRORS = 3
"""The lowest that may be asked for (rule of three)."""
_NEAR, _FAR = 32, 12  # thresholds in half a factor of ten near the target, and in a factor of ten further away
MIN_CLASSES = 10
"""Classes below which no interval over classes can be trusted."""


def calibrate_pairs(
    embeddings: Embeddings,
    labels: Labels,
    *,
    target_fmr: float = 1e-3,
    per_class: bool = False,
    cautious: bool = False,
    level: float = LEVEL,
    min_errors: int = MIN_ERRORS,
    device: torch.device | str | None = None,
    block_size: int | None = None,
) -> Threshold:
    """Find the threshold on the cosine of two pictures for a false-match rate.

    Args:
        embeddings: (N, D) numbers of any length, of classes that training never saw.
        labels: (N,) integers or strings.
        target_fmr: share of pairs of different classes that may match, in (0, 1).
        per_class: also give each class a threshold of its own, drawn to the common one where the class has told
            little; see :mod:`proxemics.evaluation.class_thresholds`.
        cautious: take the upper end of the interval, so that the true rate is above the target only if the interval
            misses it on that side (1 in 40 at level 0.95).
        level: confidence of the intervals.
        min_errors: false matches that must be expected at the target, 3 or more.
        device: where to compute.
        block_size: changes speed and memory only.

    Returns:
        The operating point, of the kind ``verify``.

    Raises:
        EvaluationError: too few pairs or classes for the target (the message says how many are needed), more identical
            pictures of different classes than the target allows, or embeddings that cannot be scored.

    Example:
        >>> points = np.random.default_rng(0).normal(size=(60, 8))
        >>> found = calibrate_pairs(points, np.arange(60) // 3, target_fmr=0.05)
        >>> 0.04 < found.false_match.value <= 0.05, found.negatives
        (True, 1710)
    """
    check_target(target_fmr, "target_fmr")
    check_level(level, min_errors)
    pairs = pair_set(embeddings, labels, device=device)
    _check_numbers(pairs, target_fmr, min_errors)
    counts = count_pairs(pairs, block_size=block_size)
    false, missed = counts.false_matches(), counts.misses()
    index = smallest_index(false, target_fmr * int(false[0]))
    if index == BINS:
        raise EvaluationError(
            f"{int(counts.impostor[-1])} pairs of different classes are identical (similarity 1), more than the target "
            f"{target_fmr:g} of {int(false[0])} pairs allows, so no threshold keeps it; look for one picture in two "
            "classes with `proxemics doctor`."
        )
    around = count_by_class(pairs, ladder(false, target_fmr, index), block_size=block_size)
    place = int(np.searchsorted(around.index, index))
    ends = threshold_ends(around.fmr, around.fmr_without, place, target_fmr, level)
    chosen = around.at(ends[1] if cautious else place)
    low, high = (threshold_of(int(around.index[one])) for one in ends)
    return Threshold(
        kind="verify",
        target=target_fmr,
        threshold=high if cautious else threshold_of(index),
        interval=(low, high),
        level=level,
        cautious=cautious,
        false_match=_false_match(chosen, level),
        miss=_miss(chosen, level),
        negatives=int(false[0]),
        effective=effective_trials(float(around.fmr[place]), around.fmr_without[:, place]),
        positives=int(missed[-1]),
        pictures=len(pairs),
        classes=len(pairs.names),
        per_class=class_thresholds(pairs, int(chosen.index[0]), false, block_size=block_size) if per_class else {},
        notes=tuple(_notes(pairs, missed)),
    )


def ladder(falling: NDArray[np.int64] | NDArray[np.float64], target: float, index: int) -> NDArray[np.int64]:
    """Return thresholds around an estimate at which intervals are taken.

    Args:
        falling: (BINS + 1,) errors at every threshold, the first is all.
        target: the rate aimed at.
        index: the estimated threshold.

    Returns:
        (K,) rising; from 30 times the target down to a thousandth of it, in steps of 4 % near the target and of 20 %
        further away. The last is a score of 1 or the first threshold without an error.
    """
    near, far = np.arange(-_NEAR, _NEAR + 1) / (2 * _NEAR), np.arange(-3 * _FAR, 1.5 * _FAR + 1) / _FAR
    rates = np.minimum(target * 10.0 ** np.concatenate([near, far]), 1.0)
    found = [smallest_index(falling, float(rate) * float(falling[0])) for rate in rates]
    last = max(smallest_index(falling, 0.0), BINS - 1)
    return np.unique(np.array([*found, index, smallest_index(falling, 0.0), last], dtype=np.int64))


def threshold_ends(
    rates: NDArray[np.float64], without: NDArray[np.float64], place: int, target: float, level: float
) -> tuple[int, int]:
    """Return the lowest and the highest threshold of a ladder at which the true rate may be the target.

    Up and down from the estimate, the ends are the first thresholds of the ladder at which the target has left the
    interval of the rate.

    Args:
        rates: (K,) measured rates, falling.
        without: (C, K) rates with each class left out.
        place: of the estimate.
        target: the rate aimed at.
        level: of the interval.

    Returns:
        Two places on the ladder, the first and last of it where the target never leaves. At the last nothing proves to
        be high enough: the true threshold may lie above everything that was measured.
    """
    units = effective_trials(float(rates[place]), without[:, place]) or len(without) // 2

    def ends(at: int) -> Interval:
        found = rate_interval(float(rates[at]), without[:, at], units=units, level=level)
        return (0.0, 1.0) if found is None else found

    low = place
    while low > 0 and ends(low)[0] <= target:
        low -= 1
    high = place
    while high < len(rates) - 1 and ends(high)[1] >= target:
        high += 1
    return low, high


def check_level(level: float, min_errors: int) -> None:
    """Refuse a confidence or a number of errors that makes no sense.

    Raises:
        EvaluationError: level outside (0.5, 1), or fewer than 3 errors.
    """
    if not 0.5 < level < 1:
        raise EvaluationError(f"level={level}: give a confidence in (0.5, 1), such as 0.95.")
    if min_errors < LEAST_ERRORS:
        raise EvaluationError(
            f"min_errors={min_errors}: with fewer than {LEAST_ERRORS} expected errors none may be seen, and a rate of "
            f"0 proves nothing (rule of three); give {LEAST_ERRORS} or more, {MIN_ERRORS} by default."
        )


def check_classes(classes: int) -> None:
    """Refuse too few classes for an interval over classes.

    Raises:
        EvaluationError: names the number that is needed.
    """
    if classes < MIN_CLASSES:
        raise EvaluationError(
            f"The pictures are of {classes} classes; at least {MIN_CLASSES} are needed, because how a threshold "
            "carries over to other classes can only be seen from several. Give more classes with --data."
        )


def _check_numbers(pairs: PairSet, target: float, min_errors: int) -> None:
    check_classes(len(pairs.names))
    sizes = pairs.sizes
    have, needed = (len(pairs) ** 2 - int(np.square(sizes).sum())) // 2, math.ceil(min_errors / target)
    if have < needed:
        pictures = math.ceil(len(pairs) * math.sqrt(needed / have))
        raise EvaluationError(
            f"A false-match rate of {target:g} needs {needed:,} pairs of different classes, so that {min_errors} false "
            f"matches are expected (rule of {min_errors}); the {len(pairs):,} pictures of {len(sizes)} classes make "
            f"{have:,}. Give about {pictures:,} pictures, or a target of {min_errors / have:.2g} or more."
        )


def _false_match(counts: ClassCounts, level: float) -> Rate:
    value = float(counts.fmr[0])
    return _rate(value, rate_interval(value, counts.fmr_without[:, 0], units=len(counts.impostors) // 2, level=level))


def _miss(counts: ClassCounts, level: float) -> Rate:
    value = float(counts.fnmr[0])
    if math.isnan(value):
        return Rate(value=None)
    units = int((counts.genuine > 0).sum())
    return _rate(value, rate_interval(value, counts.fnmr_without[:, 0], units=units, level=level))


def _rate(value: float, interval: Interval | None) -> Rate:
    low, high = interval or (None, None)
    return Rate(value=value, low=low, high=high)


def _notes(pairs: PairSet, missed: NDArray[np.int64]) -> list[str]:
    notes = []
    if missed[-1] == 0:
        notes.append("No class has two pictures, so how many pairs of one class are missed is unknown.")
    if pairs.zero_rows:
        notes.append(f"{pairs.zero_rows} embedding(s) have length 0; their similarity to everything is taken as 0.")
    return notes
