"""Intervals of error rates whose trials share pictures and classes: leave out one class at a time.

A picture is in as many pairs as there are other pictures, and what confuses one picture of a class confuses others of
it. Two pairs of the same classes are therefore far from two independent trials, and the binomial interval is far too
narrow. The jackknife leaves out each class in turn, with every pair that it is in, and takes the variance from how much
the rate changes. For a statistic of pairs of classes this is the variance of a U-statistic (Arvesen 1969); that it can
be put into an ordinary interval for rates, and that resampling the scores of one side only ("subsets bootstrap", Bolle
et al. 2004) is too narrow for false matches, is shown by Fogliato, Patil and Perona (IJCV 2024, arXiv 2306.01198).

Ends are taken on the scale of log-odds, where rates near 0 are less skewed, with Student's quantile for C - 1 degrees
of freedom. ``benchmarks/threshold_intervals.py`` measures how often such intervals hold the truth.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Interval = tuple[float, float]
LEVEL = 0.95
"""Coverage of an interval."""


def jackknife_variance(without: NDArray[np.float64]) -> float:
    """Return the variance of a statistic from its values with each class left out.

    Args:
        without: (C,) values; NaN where nothing is left.

    Returns:
        (C - 1) / C times the sum of squared deviations; NaN with fewer than two.

    Example:
        >>> jackknife_variance(np.array([1.0, 2.0, 3.0])) # of a mean: the squared standard error
        1.3333333333333333
    """
    known = without[~np.isnan(without)]
    if len(known) < 2:
        return float("nan")
    return float((len(known) - 1) / len(known) * np.square(known - known.mean()).sum())


def rate_interval(value: float, without: NDArray[np.float64], *, units: float, level: float = LEVEL) -> Interval | None:
    """Return an interval for a rate.

    Args:
        value: the rate, in [0, 1].
        without: (C,) the rate with each class left out.
        units: how many independent trials there are at the least, such as disjoint pairs of classes; used where the
            rate is 0 or 1 and nothing varies: then its far end is that of so many trials (for 0 and level 0.9, the rule
            of three: 3 / units).
        level: coverage.

    Returns:
        (low, high) in [0, 1]; None with fewer than two classes or no rate.

    Example:
        >>> low, high = rate_interval(0.0, np.zeros(100), units=100, level=0.9)
        >>> low, round(high, 3)
        (0.0, 0.03)
        >>> tuple(round(x, 3) for x in rate_interval(0.5, np.array([0.4, 0.5, 0.6]), units=3))
        (0.121, 0.879)
    """
    variance = jackknife_variance(without)
    if math.isnan(value) or math.isnan(variance):
        return None
    if value in (0.0, 1.0) or variance == 0:
        return _of_trials(value, units, level)
    classes = int((~np.isnan(without)).sum())
    reach = student_quantile((1 + level) / 2, classes - 1) * math.sqrt(variance) / (value * (1 - value))
    middle = math.log(value / (1 - value))
    return _expit(middle - reach), _expit(middle + reach)


def _of_trials(value: float, units: float, level: float) -> Interval:
    """Clopper-Pearson at 0 or 1, Wilson between."""
    trials, tail = max(units, 1.0), (1 - level) / 2
    if value == 0:
        return 0.0, 1 - tail ** (1 / trials)
    if value == 1:
        return tail ** (1 / trials), 1.0
    z = student_quantile(1 - tail, 10**6)
    centre = (value + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * math.sqrt(value * (1 - value) / trials + z * z / (4 * trials * trials))
    return centre - half, centre + half


def effective_trials(value: float, without: NDArray[np.float64]) -> float | None:
    """Return how many independent trials would have the variance of a rate; None where nothing varies.

    Example:
        >>> round(effective_trials(0.5, np.array([0.4, 0.5, 0.6])), 3)
        18.75
    """
    variance = jackknife_variance(without)
    return value * (1 - value) / variance if variance > 0 and 0 < value < 1 else None


def student_quantile(probability: float, freedom: int) -> float:
    """Return the quantile of Student's t by bisection of its exact distribution function.

    Args:
        probability: in (0.5, 1).
        freedom: degrees, >= 1; above 1000 they make no difference of note and 1000 is taken.

    Example:
        >>> round(student_quantile(0.975, 9), 4), round(student_quantile(0.975, 10**6), 2)
        (2.2622, 1.96)
    """
    low, high = 0.0, 1.0
    while student_cdf(high, freedom) < probability:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if student_cdf(middle, freedom) < probability else (low, middle)
    return (low + high) / 2


def student_cdf(value: float, freedom: int) -> float:
    """Return P(T <= value) of Student's t for whole degrees of freedom, a finite sum (Abramowitz and Stegun 26.7.3-4).

    Args:
        value: >= 0.
        freedom: >= 1.

    Example:
        >>> student_cdf(1.0, 1), round(student_cdf(2.5706, 5), 4)
        (0.75, 0.975)
    """
    degrees = min(freedom, 1000)
    angle = math.atan(value / math.sqrt(degrees))
    cosine, total = math.cos(angle), 0.0
    if degrees % 2:
        term = cosine
        for step in range(1, (degrees - 1) // 2 + 1):
            total += term
            term *= cosine * cosine * (2 * step) / (2 * step + 1)
        return 0.5 + (angle + math.sin(angle) * total) / math.pi
    term = 1.0
    for step in range(1, degrees // 2 + 1):
        total += term
        term *= cosine * cosine * (2 * step - 1) / (2 * step)
    return 0.5 + math.sin(angle) * total / 2


def _expit(value: float) -> float:
    return 1 / (1 + math.exp(-value)) if value > -700 else 0.0
