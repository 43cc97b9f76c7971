"""Intervals over classes: exact pieces, and how often they hold the truth."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from proxemics.evaluation.class_spread import (
    effective_trials,
    jackknife_variance,
    rate_interval,
    student_cdf,
    student_quantile,
)


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 9, 30, 999])
def test_students_distribution(freedom: int) -> None:
    for value in (0.0, 0.3, 1.7, 12.0):
        assert student_cdf(value, freedom) == pytest.approx(stats.t.cdf(value, freedom), abs=1e-12)
    for probability in (0.6, 0.95, 0.975, 0.9995):
        assert student_quantile(probability, freedom) == pytest.approx(stats.t.ppf(probability, freedom), rel=1e-9)


def test_the_jackknife_of_a_mean_is_its_squared_standard_error() -> None:
    values = np.random.default_rng(0).normal(size=30)
    without = (values.sum() - values) / 29
    assert jackknife_variance(without) == pytest.approx(values.var(ddof=1) / 30)
    assert np.isnan(jackknife_variance(np.array([1.0])))
    assert effective_trials(0.5, np.full(5, 0.5)) is None


def test_rates_at_the_ends_rest_on_independent_units() -> None:
    assert rate_interval(0.0, np.zeros(40), units=40) == pytest.approx((0, 1 - 0.025 ** (1 / 40)))
    assert rate_interval(1.0, np.ones(40), units=40) == pytest.approx((0.025 ** (1 / 40), 1))
    low, high = rate_interval(0.3, np.full(40, 0.3), units=40)
    assert 0.15 < low < 0.3 < high < 0.5
    assert rate_interval(0.3, np.array([0.3]), units=1) is None
    assert rate_interval(float("nan"), np.array([0.3, 0.4]), units=1) is None


def test_intervals_hold_the_truth_where_binomial_ones_do_not() -> None:
    """Directions in three dimensions, pictures near their class: FMR(t) = (1 - t) / 2 exactly, pairs far from free."""
    generator = np.random.default_rng(5)
    classes, each, target, rounds = 20, 10, 0.05, 150
    held = {"classes": 0, "binomial": 0}
    for _ in range(rounds):
        points = generator.normal(size=(classes, 1, 3)) + 0.4 * generator.normal(size=(classes, each, 3))
        points /= np.linalg.norm(points, axis=2, keepdims=True)
        flat = points.reshape(-1, 3)
        hits = (flat @ flat.T >= 1 - 2 * target).reshape(classes, each, classes, each).sum((1, 3)).astype(float)
        np.fill_diagonal(hits, 0)
        pairs, all_hits = classes * (classes - 1) * each**2 / 2, hits.sum() / 2
        rate = all_hits / pairs
        without = (all_hits - hits.sum(1)) / (pairs - each**2 * (classes - 1))
        low, high = rate_interval(rate, without, units=classes // 2)
        held["classes"] += low <= target <= high
        half = 1.96 * np.sqrt(rate * (1 - rate) / pairs)
        held["binomial"] += rate - half <= target <= rate + half
    assert held["classes"] / rounds >= 0.92
    assert held["binomial"] / rounds < 0.7
