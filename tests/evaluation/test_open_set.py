"""Looking pictures up among enrolled classes: against every gallery there is, and against enrolling anew."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from proxemics.core.errors import EvaluationError
from proxemics.evaluation.open_set import calibrate_identification
from proxemics.evaluation.pair_scan import STEP, pair_set, smallest_index, threshold_of
from proxemics.evaluation.trials import Trials, alarms_at, best_of, count_trials, rates_at, trial_blocks


def clusters(classes: int = 12, each: int = 6, dim: int = 6, noise: float = 0.7, seed: int = 0):
    generator = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), each)
    return generator.normal(size=(classes, dim))[labels] + noise * generator.normal(size=(len(labels), dim)), labels


def test_the_best_of_a_random_gallery() -> None:
    for others, gallery in ((5, 1), (5, 2), (6, 4), (4, 4)):
        chance = best_of(gallery, others)
        galleries = list(combinations(range(others), gallery))
        for highest in range(others + 1):
            share = np.mean([any(one < highest for one in chosen) for chosen in galleries])
            assert chance[highest] == pytest.approx(share)
    assert best_of(0, 3).tolist() == [0, 0, 0, 0]
    assert (np.diff(best_of(700, 900)) >= 0).all()


@pytest.mark.parametrize("gallery", [1, 3, 5])
def test_rates_are_means_over_all_galleries(gallery: int) -> None:
    """Every gallery of the other classes is written out for every picture; templates are those of the draw."""
    points, labels = clusters(classes=6, each=4, noise=1.2)
    pairs = pair_set(points, labels)
    trials = Trials(gallery, 2, "centroid", None, draws=2, seed=3)
    index = 2**20 + 600_000
    alarms, losses, right = [], [], []
    for block in trial_blocks(pairs, trials):
        steps, codes, probe = (one.numpy() for one in (block.steps, block.codes, block.probe))
        for row, own in enumerate(codes):
            others = [one for one in range(6) if one != own]
            for chosen in combinations(others, gallery):
                alarms.append(steps[row, list(chosen)].max() >= index)
            if probe[row]:
                for chosen in combinations(others, gallery - 1):
                    first = all(steps[row, own] > steps[row, one] for one in chosen)
                    right.append(first)
                    losses.append(not (first and steps[row, own] >= index))
    found = rates_at(pairs, trials, index)
    assert found.fpir == pytest.approx(np.mean(alarms))
    assert found.fnir == pytest.approx(np.mean(losses))
    assert found.rank_one == pytest.approx(np.mean(right))
    assert found.known == 12
    assert count_trials(pairs, trials).false_alarms()[index] == pytest.approx(np.mean(alarms))


def test_many_thresholds_at_once_equal_one_at_a_time() -> None:
    pairs, trials = pair_set(*clusters(noise=1.0)), Trials(4, 2, "centroid", None, draws=2, seed=1)
    index = 2**20 + np.array([0, 300_000, 600_000, 900_000, 2**20 + 1])
    rates, without = alarms_at(pairs, trials, index)
    for place, one in enumerate(index):
        alone = rates_at(pairs, trials, int(one))
        assert rates[place] == pytest.approx(alone.fpir)
        np.testing.assert_allclose(without[:, place], alone.fpir_without)
    assert rates[-1] == 0


@pytest.mark.parametrize("gallery", [1, 2, 7])
def test_leaving_out_a_class_equals_measuring_without_it(gallery: int) -> None:
    """All pictures of a class are one point here, so it does not matter which of them are enrolled."""
    generator = np.random.default_rng(1)
    labels = np.repeat(np.arange(9), 3)
    points = generator.normal(size=(9, 4))[labels]
    trials = Trials(gallery, 1, "centroid", None, draws=1, seed=0)
    index = 2**20 + 500_000
    found = rates_at(pair_set(points, labels), trials, index)
    for number in range(9):
        kept = labels != number
        alone = rates_at(pair_set(points[kept], labels[kept]), trials, index)
        assert found.fpir_without[number] == pytest.approx(alone.fpir)
        assert found.fnir_without[number] == pytest.approx(alone.fnir)


def test_nearest_is_the_best_enrolled_picture() -> None:
    points, labels = clusters(classes=5)
    pairs = pair_set(points, labels)
    near = next(trial_blocks(pairs, Trials(4, 3, "nearest", None, draws=1, seed=0)))
    probe = near.probe.numpy()
    units = points / np.linalg.norm(points, axis=1, keepdims=True)
    cosines = units @ units.T
    for code in range(5):
        enrolled = np.flatnonzero((labels == code) & ~probe)
        assert len(enrolled) == 3
        best = np.floor((cosines[:, enrolled].max(axis=1) + 1 + 2.0**-30) / STEP)
        np.testing.assert_array_equal(near.steps[:, code].numpy(), best)


def test_with_one_picture_centroid_and_nearest_agree() -> None:
    points, labels = clusters(each=8)
    found = [
        calibrate_identification(points, labels, target_fpir=0.4, pictures=[1], template=one)
        for one in ("centroid", "nearest")
    ]  # fmt: skip
    assert found[0].threshold == pytest.approx(found[1].threshold, abs=2 * STEP)
    assert found[0].miss == found[1].miss


def test_it_is_the_smallest_threshold_that_keeps_the_target() -> None:
    points, labels = clusters(classes=30, each=8)
    found = calibrate_identification(points, labels, target_fpir=0.2, gallery=10, pictures=[1, 4], draws=3)
    pairs = pair_set(points, labels)
    for one in found.by_count:
        rates = count_trials(pairs, Trials(10, one.pictures, "centroid", None, 3, 0)).false_alarms()
        index = smallest_index(rates, 0.2)
        assert threshold_of(index) == one.threshold
        assert rates[index] == pytest.approx(one.false_match.value)
        assert rates[index] <= 0.2 < rates[index - 1]
        assert one.interval[0] <= one.threshold <= one.interval[1]
    assert found.threshold == found.by_count[-1].threshold
    assert found.by_count[0].threshold < found.by_count[1].threshold  # centroids of more pictures are nearer to all
    assert found.by_count[1].miss.value < found.by_count[0].miss.value


def test_a_larger_gallery_needs_a_higher_threshold() -> None:
    points, labels = clusters(classes=30, each=8)
    found = [
        calibrate_identification(points, labels, target_fpir=0.2, gallery=one, pictures=[3], min_errors=20)
        for one in (1, 5, 29, 58)
    ]  # fmt: skip
    limits = [one.threshold for one in found]
    assert limits == sorted(limits)
    assert len(set(limits)) == 4
    assert [one.extrapolated for one in found] == [False, False, False, True]
    assert "A gallery of 58 classes is more than the 29 that could be measured" in found[3].notes[0]
    assert calibrate_identification(points, labels, target_fpir=0.2, pictures=[3]).gallery == 29
    half = calibrate_identification(points, labels, target_fpir=0.1, pictures=[3], min_errors=20)
    assert (half.threshold, half.interval) == (found[3].threshold, found[3].interval)  # 0.2 of 58 is 0.1 of 29
    assert found[3].false_match.value == pytest.approx(2 * half.false_match.value)
    assert found[3].false_match.value <= 0.2
    with pytest.raises(EvaluationError, match=r"0\.2 needs 1,035 pictures"):
        calibrate_identification(points, labels, target_fpir=0.2, gallery=200)


def test_certain_pictures_weigh_more() -> None:
    """Half of the pictures of a class are noise; with weights that say so the class is found more often."""
    generator = np.random.default_rng(0)
    labels = np.repeat(np.arange(20), 10)
    noisy = np.tile(np.arange(10) % 2 == 1, 20)
    points = generator.normal(size=(20, 8))[labels]
    points = points + np.where(noisy, 2.5, 0.3)[:, None] * generator.normal(size=points.shape)
    weights = np.where(noisy, 0.05, 1.0)
    plain, weighted = (
        calibrate_identification(points, labels, target_fpir=0.2, pictures=[6], weights=one) for one in (None, weights)
    )
    assert weighted.by_count[0].rank_one > plain.by_count[0].rank_one + 0.01
    same = calibrate_identification(points, labels, target_fpir=0.2, pictures=[6], weights=np.full(200, 3.0))
    assert same == plain


def test_lone_classes_stand_in_the_gallery_only() -> None:
    points, labels = clusters(classes=20, each=3)
    lone = (labels > 4) | (np.arange(60) % 3 == 0)  # classes 0 to 4 keep one picture
    found = calibrate_identification(points[lone], labels[lone], target_fpir=0.5, pictures=[2], min_errors=20)
    assert found.positives == 15  # one picture of each of the fifteen others is not enrolled
    assert "5 of 20 classes have no more than 2 pictures" in found.notes[0]
    alone = calibrate_identification(points[::3], labels[::3], target_fpir=0.5, pictures=[1], min_errors=10)
    assert (alone.miss.value, alone.by_count[0].rank_one, alone.positives) == (None, None, 0)


def test_nothing_depends_on_order_but_the_draw() -> None:
    points, labels = clusters(each=2, classes=40)
    order = np.random.default_rng(1).permutation(80)
    both = [
        calibrate_identification(*one, target_fpir=0.4, pictures=[1], draws=20)
        for one in ((points, labels), (points[order], [f"c{one:02d}" for one in labels[order]]))
    ]  # fmt: skip
    assert both[0].threshold == pytest.approx(both[1].threshold, abs=0.04)
    again = calibrate_identification(points, labels, target_fpir=0.4, pictures=[1], draws=20)
    assert again == both[0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"target_fpir": 0.001}, "needs 30,000 pictures, so that 30 false alarms are expected"),
        ({"target_fpir": 2}, "target_fpir: 2 is no error rate"),
        ({"gallery": 0}, "gallery=0"),
        ({"pictures": []}, "give how many pictures"),
        ({"pictures": [0]}, "give how many pictures"),
        ({"draws": 0}, "draws=0"),
        ({"template": "mean"}, "give 'centroid' or 'nearest'"),
        ({"weights": [1.0]}, "give 72 positive numbers"),
        ({"weights": np.zeros(72)}, "give 72 positive numbers"),
        ({"min_errors": 1}, "rule of three"),
    ],
)
def test_wrong_arguments(arguments: dict, words: str) -> None:
    with pytest.raises(EvaluationError, match=words):
        calibrate_identification(*clusters(), **{"target_fpir": 0.5, **arguments})


def test_few_classes_and_identical_pictures_are_refused() -> None:
    with pytest.raises(EvaluationError, match="of 9 classes; at least 10"):
        calibrate_identification(*clusters(classes=9), target_fpir=0.6)
    with pytest.raises(EvaluationError, match="identical"):
        calibrate_identification(np.ones((40, 3)), np.arange(40) // 2, target_fpir=0.8)
