"""Verification metrics against scikit-learn, closed forms and their own invariants."""

from __future__ import annotations

import math
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score, roc_curve

from proxemics.core.errors import EvaluationError
from proxemics.evaluation.pair_scan import BINS, STEP, count_by_class, count_pairs, pair_set, threshold_of
from proxemics.evaluation.verification import crossing, verify_embeddings


def clusters(classes: int = 12, each: int = 5, dim: int = 6, noise: float = 0.6, seed: int = 0):
    generator = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), each)
    points = generator.normal(size=(classes, dim))[labels] + noise * generator.normal(size=(len(labels), dim))
    return points, labels


def stepped_pairs(points: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scores of all pairs, rounded down to thresholds, and whether they are of one class."""
    units = np.asarray(points, np.float64)
    units = units / np.linalg.norm(units, axis=1, keepdims=True)
    first, second = np.triu_indices(len(units), 1)
    scores = (units[first] * units[second]).sum(axis=1)
    return np.floor((scores + 2.0**-30) / STEP) * STEP, labels[first] == labels[second]


def test_auc_and_curve_agree_with_scikit_learn() -> None:
    points, labels = clusters()
    scores, same = stepped_pairs(points, labels)
    result = verify_embeddings(points, labels)
    assert result.auc == pytest.approx(roc_auc_score(same, scores), abs=1e-12)
    fmr, tpr, thresholds = roc_curve(same, scores, drop_intermediate=False)
    for value, fm, fn in zip(result.thresholds, result.fmr, result.fnmr, strict=True):
        reached = np.flatnonzero(thresholds >= value)
        expected = (fmr[reached[-1]], 1 - tpr[reached[-1]]) if len(reached) else (0.0, 1.0)
        assert (fm, fn) == pytest.approx(expected, abs=1e-12)
    assert (result.num_genuine, result.num_impostor) == (int(same.sum()), int((~same).sum()))


def test_fnmr_at_fmr_is_at_the_smallest_threshold_that_keeps_the_target() -> None:
    points, labels = clusters(noise=1.0)
    scores, same = stepped_pairs(points, labels)
    for point in verify_embeddings(points, labels, fmr_at=(0.3, 0.05, 0.01)).points:
        rate = (scores[~same] >= point.threshold).mean()
        assert rate == point.fmr <= point.target
        assert (scores[~same] >= point.threshold - STEP).mean() > point.target
        assert (scores[same] < point.threshold).mean() == pytest.approx(point.fnmr)
        assert point.interval[0] <= point.fnmr <= point.interval[1]


def test_equal_error_rate_is_where_the_line_through_the_curve_meets_the_diagonal() -> None:
    points, labels = clusters(noise=1.2)
    scores, same = stepped_pairs(points, labels)
    fmr, tpr, _ = roc_curve(same, scores, drop_intermediate=False)
    fnmr = 1 - tpr
    right = int(np.argmax(fmr >= fnmr))
    gap = (fnmr - fmr)[right - 1], (fnmr - fmr)[right]
    share = gap[0] / (gap[0] - gap[1])
    expected = fmr[right - 1] + share * (fmr[right] - fmr[right - 1])
    result = verify_embeddings(points, labels)
    assert result.eer == pytest.approx(expected, abs=1e-12)
    assert (scores[~same] >= result.eer_threshold).mean() <= (scores[same] < result.eer_threshold).mean()


@given(
    rows=st.lists(st.tuples(st.integers(-2, 2), st.integers(-2, 2), st.integers(0, 3)), min_size=6, max_size=16),
    block=st.integers(1, 7),
)
@settings(max_examples=12, deadline=None)
def test_ties_and_blocks(rows: list[tuple[int, int, int]], block: int) -> None:
    """Few different directions, so that most scores are tied; zero vectors among them score 0 with everything."""
    points, labels = np.array([row[:2] for row in rows], float), np.array([row[2] for row in rows])
    if len(set(labels)) < 2:
        return
    length = np.linalg.norm(points, axis=1, keepdims=True)
    units = np.divide(points, length, out=np.zeros_like(points), where=length > 0)
    first, second = np.triu_indices(len(units), 1)
    scores, same = (units[first] * units[second]).sum(axis=1), labels[first] == labels[second]
    result = verify_embeddings(points, labels, block_size=block, fmr_at=(0.5,))
    if same.any():
        assert result.auc == pytest.approx(roc_auc_score(same, scores.round(9)), abs=1e-12)
        assert 0 <= result.eer <= 1
    else:
        assert (result.auc, result.eer) == (None, None)
    point = result.points[0]
    if point.threshold is not None and point.threshold <= 1:
        assert point.fmr == (scores[~same] >= point.threshold - 1e-9).mean()


def test_directions_on_the_sphere_have_uniform_cosines() -> None:
    """In three dimensions the cosine of random directions is uniform on [-1, 1]: FMR(t) = (1 - t) / 2."""
    generator = np.random.default_rng(1)
    points, labels = generator.normal(size=(1500, 3)), generator.integers(0, 300, 1500)
    result = verify_embeddings(points, labels, fmr_at=(0.1, 0.01))
    for point in result.points:
        assert point.threshold == pytest.approx(1 - 2 * point.target, abs=0.004)
        assert point.fnmr == pytest.approx(1 - point.target, abs=0.02)
        assert point.interval[0] < 1 - point.target < point.interval[1]
    for name, value in (("auc", result.auc), ("eer", result.eer)):
        assert value == pytest.approx(0.5, abs=0.02)
        assert result.intervals[name][0] < 0.5 < result.intervals[name][1]


def test_nothing_depends_on_order_scale_or_names() -> None:
    points, labels = clusters()
    order = np.random.default_rng(3).permutation(len(labels))
    base = verify_embeddings(points, labels).to_dict()
    scale = np.random.default_rng(4).uniform(0.5, 2, (len(labels), 1))
    assert verify_embeddings(points[order], labels[order]).to_dict() == base
    assert verify_embeddings(torch.from_numpy(points * scale), [f"c{one}" for one in labels]).to_dict() == base
    assert verify_embeddings(points, labels.astype(np.int64) + 2**40, block_size=7).to_dict() == base


def test_labels_above_2_24_stay_apart() -> None:
    points = np.eye(4)[[0, 0, 1, 1]]
    result = verify_embeddings(points, [2**24, 2**24, 2**24 + 1, 2**24 + 1])
    assert (result.auc, result.num_classes) == (1.0, 2)


def test_the_curve_is_monotone_and_has_both_ends() -> None:
    result = verify_embeddings(*clusters(noise=2.0))
    assert (np.diff(result.thresholds) > 0).all()
    assert (np.diff(result.fmr) <= 0).all()
    assert (np.diff(result.fnmr) >= 0).all()
    assert (result.fmr[0], result.fmr[-1], result.fnmr[0], result.fnmr[-1]) == (1, 0, 0, 1)
    assert len(result.thresholds) < 400


def test_one_class_is_refused_and_lone_classes_are_told() -> None:
    with pytest.raises(EvaluationError, match=r"All 3 pictures are of one class \(a\), so there is no pair"):
        verify_embeddings(np.eye(3), ["a", "a", "a"])
    lone = verify_embeddings(np.random.default_rng(0).normal(size=(20, 4)), np.arange(20))
    assert (lone.auc, lone.eer, lone.fnmr_at(0.1), lone.num_lone, lone.num_genuine) == (None, None, None, 20, 0)
    assert "FNMR, EER and AUC are undefined" in lone.notes[0]
    assert np.isnan(lone.fnmr).all()
    assert all(one["fnmr"] is None for one in lone.to_dict()["fnmr_at_fmr"])


def test_targets_that_cannot_be_measured_are_none() -> None:
    result = verify_embeddings(*clusters(), fmr_at=(0.1, 1e-6))
    assert result.points[1].threshold is None
    assert result.fnmr_at(1e-6) is None
    assert "too few pairs of different classes to measure an FMR of 1e-06" in " ".join(result.notes)
    with pytest.raises(EvaluationError, match=r"there are 0\.1, 1e-06"):
        result.fnmr_at(0.2)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"fmr_at": (0.0,)}, "fmr_at: 0.0 is no error rate"),
        ({"level": 1.0}, "level=1.0"),
        ({"labels": [0, 1]}, "2 labels were given for 60 embeddings"),
        ({"points": np.full((60, 2), np.nan)}, "NaN or infinity"),
    ],
)
def test_wrong_input(arguments: dict, words: str) -> None:
    points, labels = clusters()
    arguments = {"points": points, "labels": labels, **arguments}
    with pytest.raises(EvaluationError, match=words):
        verify_embeddings(arguments.pop("points"), arguments.pop("labels"), **arguments)


def test_leaving_out_a_class_equals_measuring_without_it() -> None:
    points, labels = clusters(classes=6, noise=1.0)
    index = np.array([0, 2**20, 2**20 + 600_000, BINS])
    counts = count_by_class(pair_set(points, labels), index, block_size=4)
    for number in range(6):
        kept = labels != number
        alone = count_by_class(pair_set(points[kept], labels[kept]), index)
        np.testing.assert_allclose(counts.fmr_without[number], alone.fmr)
        np.testing.assert_allclose(counts.fnmr_without[number], alone.fnmr)


def test_counts_hold_every_pair_once() -> None:
    points, labels = clusters(each=3)
    counts = count_pairs(pair_set(points, labels), block_size=5)
    assert counts.genuine.sum() == 12 * 3
    assert counts.impostor.sum() == math.comb(36, 2) - 36
    assert (counts.false_matches()[0], counts.false_matches()[-1]) == (counts.impostor.sum(), 0)
    assert threshold_of(BINS - 1) == 1


def test_crossing_of_equal_lines() -> None:
    assert crossing(np.array([[1.0, 0.5, 0.0]]), np.array([[0.0, 0.5, 1.0]])).tolist() == [0.5]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_twenty_thousand_pictures_fit_into_a_gigabyte() -> None:
    """The matrix of all scores alone would take 3.2 GB."""
    code = """
        import resource, numpy as np
        from proxemics.evaluation.verification import verify_embeddings
        from proxemics.evaluation.thresholds import calibrate_pairs
        generator = np.random.default_rng(0)
        labels = generator.integers(0, 1000, 20000)
        points = generator.normal(size=(1000, 64))[labels] + 0.8 * generator.normal(size=(20000, 64))
        points = points.astype(np.float32)
        assert verify_embeddings(points, labels).num_impostor > 190_000_000
        assert calibrate_pairs(points, labels, target_fmr=1e-4, per_class=True).false_match.value <= 1e-4
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True, timeout=850
    )
    assert int(done.stdout) < 1_000_000  # kB
