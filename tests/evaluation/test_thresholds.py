"""The threshold for a false-match rate: exact, refused when it cannot be known, and by class."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxemics.core.errors import EvaluationError
from proxemics.evaluation.class_spread import rate_interval
from proxemics.evaluation.pair_scan import STEP, count_by_class, count_pairs, pair_set, smallest_index
from proxemics.evaluation.thresholds import calibrate_pairs


def clusters(classes: int = 30, each: int = 6, dim: int = 8, noise: float = 0.8, seed: int = 0):
    generator = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), each)
    return generator.normal(size=(classes, dim))[labels] + noise * generator.normal(size=(len(labels), dim)), labels


def impostor_scores(points: np.ndarray, labels: np.ndarray) -> np.ndarray:
    units = points / np.linalg.norm(points, axis=1, keepdims=True)
    first, second = np.triu_indices(len(units), 1)
    return (units[first] * units[second]).sum(axis=1)[labels[first] != labels[second]]


@given(target=st.floats(0.003, 0.4), seed=st.integers(0, 5))
@settings(max_examples=8, deadline=None)
def test_it_is_the_smallest_that_keeps_the_target(target: float, seed: int) -> None:
    points, labels = clusters(seed=seed)
    found = calibrate_pairs(points, labels, target_fmr=target, block_size=50)
    scores = impostor_scores(points, labels)
    assert (scores >= found.threshold - 2.0**-30).mean() == pytest.approx(found.false_match.value, abs=1e-12)
    assert found.false_match.value <= target + 1e-12  # 0.4 of 450 pairs is as good as 0.39999999999999997
    assert target < (scores >= found.threshold - STEP - 2.0**-30).mean()
    assert found.interval[0] <= found.threshold <= found.interval[1]
    assert found.negatives == len(scores)


def test_a_stricter_target_gives_a_higher_threshold() -> None:
    points, labels = clusters()
    limits = [calibrate_pairs(points, labels, target_fmr=one).threshold for one in (0.3, 0.1, 0.03, 0.01)]
    assert limits == sorted(limits)
    assert len(set(limits)) == 4


def test_random_directions_have_a_known_threshold() -> None:
    """In three dimensions FMR(t) = (1 - t) / 2, so the threshold of a target p is 1 - 2 p."""
    generator = np.random.default_rng(2)
    found = calibrate_pairs(generator.normal(size=(1200, 3)), np.arange(1200) // 2, target_fmr=0.01)
    assert found.interval[0] < 0.98 < found.interval[1]
    assert found.threshold == pytest.approx(0.98, abs=0.002)
    assert found.miss.low < 0.99 < found.miss.high


def test_the_cautious_threshold_is_the_upper_end() -> None:
    points, labels = clusters()
    plain = calibrate_pairs(points, labels, target_fmr=0.05)
    careful = calibrate_pairs(points, labels, target_fmr=0.05, cautious=True)
    assert careful.threshold == plain.interval[1] == careful.interval[1]
    assert careful.false_match.value < plain.false_match.value
    assert careful.false_match.high == pytest.approx(0.05, rel=0.35)  # the target lies about where its interval ends
    assert careful.miss.value > plain.miss.value


def test_where_nothing_proves_high_enough_the_interval_is_open_above() -> None:
    """Three expected false matches in 15,660 pairs: the true threshold may lie above all that was seen."""
    points, labels = clusters()
    found = calibrate_pairs(points, labels, target_fmr=2e-4, min_errors=3)
    assert found.threshold < found.interval[1] == 1.0
    careful = calibrate_pairs(points, labels, target_fmr=2e-4, min_errors=3, cautious=True)
    assert (careful.threshold, careful.false_match.value, careful.miss.value) == (1.0, 0.0, 1.0)


def test_the_ends_of_an_interval_are_where_the_target_leaves_that_of_the_rate() -> None:
    points, labels = clusters(classes=60)
    found = calibrate_pairs(points, labels, target_fmr=0.02)
    pairs = pair_set(points, labels)
    for end in (0, 1):
        index = np.array([round(found.interval[end] / STEP) + 2**20])
        counts = count_by_class(pairs, index)
        low, high = rate_interval(float(counts.fmr[0]), counts.fmr_without[:, 0], units=30)
        assert not low <= 0.02 <= high  # just outside
        assert low <= 0.02 * 1.08
        assert high >= 0.02 / 1.08
    assert found.interval[0] < found.threshold < found.interval[1]


def test_too_few_pairs_are_refused_with_the_number_needed() -> None:
    points, labels = clusters()
    have = len(impostor_scores(points, labels))
    with pytest.raises(EvaluationError) as error:
        calibrate_pairs(points, labels, target_fmr=1e-3)
    assert "A false-match rate of 0.001 needs 30,000 pairs of different classes" in str(error.value)
    assert f"the 180 pictures of 30 classes make {have:,}" in str(error.value)
    assert f"Give about {int(np.ceil(180 * np.sqrt(30_000 / have)))} pictures" in str(error.value)
    assert calibrate_pairs(points, labels, target_fmr=1e-3, min_errors=5).false_match.value <= 1e-3
    with pytest.raises(EvaluationError, match="rule of three"):
        calibrate_pairs(points, labels, target_fmr=1e-3, min_errors=2)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"target_fmr": 0.0}, "target_fmr: 0.0 is no error rate"),
        ({"target_fmr": 1.0}, "give a share in"),
        ({"target_fmr": True}, "target_fmr: True"),
        ({"level": 0.2}, "level=0.2"),
    ],
)
def test_wrong_arguments(arguments: dict, words: str) -> None:
    with pytest.raises(EvaluationError, match=words):
        calibrate_pairs(*clusters(), **arguments)


def test_few_classes_are_refused() -> None:
    with pytest.raises(EvaluationError, match="of 9 classes; at least 10 are needed"):
        calibrate_pairs(*clusters(classes=9, each=40), target_fmr=0.1)


def test_one_picture_in_many_classes_has_no_threshold() -> None:
    points = np.ones((120, 4))
    with pytest.raises(EvaluationError, match=r"pairs of different classes are identical \(similarity 1\)"):
        calibrate_pairs(points, np.arange(120) // 2, target_fmr=0.05)


def test_without_pairs_of_one_class_misses_are_unknown() -> None:
    found = calibrate_pairs(np.random.default_rng(0).normal(size=(100, 5)), np.arange(100), target_fmr=0.05)
    assert found.miss.value is None
    assert found.positives == 0
    assert "No class has two pictures" in found.notes[0]


def wolves(seed: int = 0, each: int = 40):
    """Thirty classes, ten of which lie in one corner and look alike."""
    generator = np.random.default_rng(seed)
    centres = generator.normal(size=(30, 16))
    centres[:10] = 0.5 * centres[:10] + 1.4 * generator.normal(size=16)
    labels = np.repeat(np.arange(30), each)
    return centres[labels] + 0.8 * generator.normal(size=(len(labels), 16)), labels


def test_classes_that_look_alike_get_higher_thresholds() -> None:
    points, labels = wolves()
    found = calibrate_pairs(points, labels, target_fmr=0.02, per_class=True)
    limits = np.array([found.per_class[str(one)].threshold for one in range(30)])
    assert limits[:10].min() > found.threshold > limits[10:].max()
    rates = np.array([found.per_class[str(one)].false_match for one in range(30)])
    pairs = pair_set(points, labels)
    at_common = (
        np.array([(impostor_of(points, labels, one) >= found.threshold).mean() for one in range(30)])
    )  # fmt: skip
    assert abs(rates - found.false_match.value).mean() < 0.5 * abs(at_common - found.false_match.value).mean()
    assert len(pairs) == len(points)


def impostor_of(points: np.ndarray, labels: np.ndarray, name: int) -> np.ndarray:
    units = points / np.linalg.norm(points, axis=1, keepdims=True)
    return (units[labels == name] @ units[labels != name].T).ravel()


def test_a_class_with_little_to_tell_keeps_the_common_threshold() -> None:
    points, labels = wolves()
    kept = (labels > 0) | (np.arange(len(labels)) < 1)  # one picture of class 0
    found = calibrate_pairs(points[kept], labels[kept], target_fmr=0.02, per_class=True)
    few, many = found.per_class["0"], found.per_class["1"]
    assert few.own_share < many.own_share
    assert few.own_share < 0.5 < many.own_share
    assert abs(few.threshold - found.threshold) < abs(many.threshold - found.threshold)


def test_alike_classes_differ_by_chance_only() -> None:
    """Every class is drawn in the same way, one picture each: nothing is a class's own."""
    generator = np.random.default_rng(0)
    found = calibrate_pairs(generator.normal(size=(400, 8)), np.arange(400), target_fmr=0.02, per_class=True)
    shares = np.array([one.own_share for one in found.per_class.values()])
    assert shares.mean() < 0.5
    assert all(0 <= one <= 1 for one in shares)


def test_smallest_index_of_ties() -> None:
    assert smallest_index(np.array([5, 5, 2, 2, 0]), 5) == 0
    assert smallest_index(np.array([5, 5, 2, 2, 0]), 4.999) == 2
    assert smallest_index(np.array([0.5, 0.2, 0.0]), 0.2) == 1
    counts = count_pairs(pair_set(*clusters()))
    assert smallest_index(counts.false_matches(), 0) == int(np.flatnonzero(counts.impostor)[-1]) + 1


def test_one_limit_for_all_but_classes_of_their_own() -> None:
    found = calibrate_pairs(*wolves(), target_fmr=0.02, per_class=True)
    assert found.limit() == found.limit("no such class") == found.threshold
    assert found.limit("3") == found.per_class["3"].threshold
