"""Paired differences: by hand in tiny cases, and with the promised coverage on simulated data."""

from __future__ import annotations

import math

import numpy as np
import pytest

from proxemics.core.errors import EvaluationError
from proxemics.evaluation.paired import ClassSums, class_sums, holm, match_queries, paired_bootstrap


def test_sums_and_difference_by_hand() -> None:
    first, second = np.array([1.0, 0, 1, 1, math.nan]), np.array([0.0, 0, 1, 0, math.nan])
    sums = class_sums(first, second, ["b", "a", "b", "a", "c"])
    assert sums.names.tolist() == ["a", "b"]
    assert sums.total.tolist() == [1.0, 1.0]
    assert sums.count.tolist() == [2.0, 2.0]
    assert sums.difference == 0.5


def test_the_estimate_is_the_mean_over_seeds_of_the_mean_over_queries() -> None:
    """Not the mean over all queries: a seed with more queries weighs no more."""
    large = class_sums(np.ones(30), np.zeros(30), ["a"] * 10 + ["b"] * 20)
    small = class_sums(np.zeros(3), np.zeros(3), ["a", "a", "b"])
    found = paired_bootstrap([large, small])
    assert found.difference == 0.5
    # One of the two seeds is drawn: half the resamples are 1, half are 0.
    assert (found.low, found.high) == (0.0, 1.0)
    assert (found.num_seeds, found.num_classes) == (2, 2)


def test_two_classes_under_one_seed_by_hand() -> None:
    """Two class draws give totals (2, 0), (1, 1) or (0, 2) with chances 1/4, 1/2, 1/4."""
    sums = class_sums(np.array([1.0, 0, 0]), np.zeros(3), ["a", "b", "b"])
    found = paired_bootstrap([sums], resamples=4000)
    assert found.difference == pytest.approx(1 / 3)
    assert (found.low, found.high) == (0.0, 1.0)
    # k of about n / 4 resamples at or below 0.
    assert found.p == pytest.approx(0.5, abs=0.04)


def test_identical_runs_differ_by_exactly_nothing() -> None:
    values = np.random.default_rng(0).random(40)
    sums = class_sums(values, values, [f"c{i % 8}" for i in range(40)])
    for pairs in ([sums], [sums] * 3):
        found = paired_bootstrap(pairs)
        assert (found.difference, found.low, found.high, found.p) == (0.0, 0.0, 0.0, 1.0)


def test_a_sure_difference_has_the_smallest_p_value() -> None:
    sums = class_sums(np.ones(40), np.zeros(40), [f"c{i % 8}" for i in range(40)])
    assert paired_bootstrap([sums], resamples=199).p == 2 / 200


def test_the_order_of_queries_and_seeds_means_nothing() -> None:
    draw = np.random.default_rng(1)
    first, second, names = draw.random(50), draw.random(50), np.array([f"c{i % 10}" for i in range(50)])
    order = draw.permutation(50)
    one, two = class_sums(first, second, names), class_sums(first[order], second[order], names[order])
    np.testing.assert_allclose(one.total, two.total, atol=1e-12)
    again = paired_bootstrap([one]), paired_bootstrap([one])
    assert again[0] == again[1]
    swapped = paired_bootstrap([class_sums(second, first, names)])
    assert swapped.difference == -again[0].difference
    assert (swapped.low, swapped.high) == pytest.approx((-again[0].high, -again[0].low))


def test_one_class_under_one_seed_leaves_nothing_to_resample() -> None:
    found = paired_bootstrap([class_sums(np.ones(3), np.zeros(3), ["a"] * 3)])
    assert found.difference == 1
    assert math.isnan(found.low)
    assert math.isnan(found.p)


def test_what_cannot_be_paired_is_named() -> None:
    with pytest.raises(EvaluationError, match=r"2 queries are in only one of the two runs: b, c"):
        match_queries(["a", "b"], ["a", "c"])
    with pytest.raises(EvaluationError, match="more than once"):
        match_queries(["a", "a"], ["a", "a"])
    with pytest.raises(EvaluationError, match="galleries differ"):
        class_sums(np.array([1.0, math.nan]), np.array([1.0, 0.0]), ["a", "b"])
    with pytest.raises(EvaluationError, match="nothing to compare"):
        class_sums(np.array([math.nan]), np.array([math.nan]), ["a"])
    with pytest.raises(EvaluationError, match="No pair"):
        paired_bootstrap([])
    with pytest.raises(EvaluationError, match="shapes"):
        class_sums(np.ones(3), np.ones(2), ["a", "b"])


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ([], []),
        ([0.01], [0.01]),
        ([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]),
        ([0.6, 0.9], [1.0, 1.0]),
        ([0.02, 0.02], [0.04, 0.04]),
    ],
)
def test_holm_by_hand(given: list[float], wanted: list[float]) -> None:
    assert holm(given) == pytest.approx(wanted)


def test_holm_does_not_count_what_is_unknown() -> None:
    found = holm([math.nan, 0.03, 0.02])
    assert math.isnan(found[0])
    assert found[1:] == [0.04, 0.04]


def simulate(draw: np.random.Generator, *, seeds: int, shared: bool, classes: int = 40) -> list[ClassSums]:
    """Differences with effects of class, seed and query around a true mean of 0.1."""
    effect = draw.normal(0, 0.3, classes)
    pairs = []
    for number in range(seeds):
        effect = effect if shared else draw.normal(0, 0.3, classes)
        size = draw.integers(4, 9, classes)
        names = np.repeat([f"c{i}" if shared else f"s{number}c{i}" for i in range(classes)], size)
        values = 0.1 + draw.normal(0, 0.02) + np.repeat(effect, size) + draw.normal(0, 0.4, size.sum())
        pairs.append(class_sums(values, np.zeros_like(values), names))
    return pairs


@pytest.mark.parametrize(
    ("seeds", "shared", "least", "most"),
    [
        (1, True, 0.89, 0.99),
        # The same test classes for each seed: resampling them anew for each seed would cover only about 80 %.
        (3, True, 0.90, 0.995),
        # Different test classes: wider than need be, never too narrow.
        (3, False, 0.93, 1.0),
    ],
)
def test_intervals_cover_the_truth(seeds: int, shared: bool, least: float, most: float) -> None:
    draw = np.random.default_rng(7)
    trials = 300
    inside = 0
    for _ in range(trials):
        found = paired_bootstrap(
            simulate(draw, seeds=seeds, shared=shared), resamples=300, seed=int(draw.integers(1e9))
        )
        inside += found.low <= 0.1 <= found.high
    assert least <= inside / trials <= most


def test_a_constant_gain_over_tasks_of_unequal_size_is_certain() -> None:
    """A mean over tasks weighs queries; classes must then be weighed alike in sum and in count."""
    generator = np.random.default_rng(0)
    sizes = (1000, 50)
    weights = np.repeat([sum(sizes) / 2 / size for size in sizes], sizes)
    names = np.concatenate([generator.choice(20, 1000).astype(str), generator.choice(10, 50).astype(str)])
    base = generator.random(sum(sizes))
    sums = class_sums((base + 0.3) * weights, base * weights, names, weights=weights)
    found = paired_bootstrap([sums])
    assert (found.low, found.difference, found.high) == pytest.approx((0.3, 0.3, 0.3))
    for wrong in (weights[:3], np.where(np.arange(len(weights)) == 7, np.nan, weights)):
        with pytest.raises(EvaluationError, match=r"give \(Q,\) finite numbers"):
            class_sums(base, base, names, weights=wrong)
