"""What the probe reads: nothing from noise, everything from what is there, and never through the class."""

from __future__ import annotations

import math
import time

import numpy as np
import pandas as pd
import pytest
import torch

from proxemics.core.errors import EvaluationError
from proxemics.evaluation.probes import decode_category, decode_number
from proxemics.evaluation.probes.decodability import _folds

ROWS, DIM, SCENES = 600, 32, 6
RNG = np.random.default_rng(0)
CLASSES = np.repeat(np.arange(60), 10)
CAUSE = RNG.integers(0, SCENES, ROWS)
NOISE = RNG.normal(size=(ROWS, DIM))


def test_constant_embeddings_give_chance() -> None:
    lopsided = np.where(RNG.random(ROWS) < 0.5, 0, CAUSE)
    found = decode_category(np.ones((ROWS, DIM)), lopsided, CLASSES)
    assert found.accuracy == pytest.approx(found.chance)
    assert found.balanced == pytest.approx(found.balanced_chance)
    even = decode_category(np.ones((ROWS, DIM)), CAUSE, CLASSES)
    assert even.chance - 0.1 < even.accuracy <= even.chance, "the largest value may differ from fold to fold"
    assert decode_number(np.ones((ROWS, DIM)), NOISE[:, 0], CLASSES).value == pytest.approx(0, abs=1e-9)


def test_random_embeddings_give_chance() -> None:
    found = decode_category(NOISE, CAUSE, CLASSES)
    assert abs(found.accuracy - 1 / SCENES) < 0.06
    assert abs(found.balanced - found.balanced_chance) < 0.06
    assert abs(found.above_chance) < 0.06
    assert -0.05 < decode_number(NOISE, RNG.normal(size=ROWS), CLASSES).value < 0.05


def test_embeddings_that_hold_the_cause_give_one() -> None:
    hidden = NOISE + 4 * RNG.normal(size=(SCENES, DIM))[CAUSE]
    found = decode_category(hidden, CAUSE, CLASSES)
    assert found.score == "accuracy"
    assert found.accuracy > 0.98
    assert found.balanced > 0.98
    assert len(found.folds) == 5
    low, high = found.interval
    assert low <= np.mean(found.folds) <= high
    gain = RNG.uniform(-1, 1, ROWS)
    line = np.eye(DIM)[0] + 0.5 * gain[:, None] * np.eye(DIM)[1] + 0.01 * NOISE
    number = decode_number(line, gain, CLASSES)
    assert number.score == "r2"
    assert number.value > 0.9
    assert math.isnan(number.accuracy)
    assert math.isnan(number.balanced)


def test_more_of_the_cause_is_read_better() -> None:
    directions = RNG.normal(size=(SCENES, DIM))[CAUSE]
    values = [decode_category(NOISE + share * directions, CAUSE, CLASSES).accuracy for share in (0.0, 0.3, 0.6, 2.0)]
    assert values == sorted(values)
    assert values[1] > values[0] + 0.05


def test_recognising_the_class_does_not_help() -> None:
    """Each class has its own scene and its own direction: without disjoint folds this would give 1."""
    scene_of_class = RNG.integers(0, SCENES, 60)
    by_class = RNG.normal(size=(60, DIM))[CLASSES] + 0.05 * NOISE
    assert decode_category(by_class, scene_of_class[CLASSES], CLASSES).accuracy < 0.45
    as_rows = decode_category(by_class, scene_of_class[CLASSES], np.arange(ROWS))
    assert as_rows.accuracy > 0.95, "folds over rows show what is being prevented"


def test_folds_are_disjoint_in_class_balanced_and_named_by_the_seed() -> None:
    sizes = RNG.integers(1, 30, 40)
    groups = np.repeat(np.arange(40), sizes)
    parts = _folds(groups, 5, 0)
    assert all(len(set(parts[groups == group])) == 1 for group in range(40))
    counts = np.bincount(parts)
    assert len(counts) == 5
    assert counts.max() - counts.min() <= sizes.max()
    assert np.array_equal(parts, _folds(groups, 5, 0))
    assert not np.array_equal(parts, _folds(groups, 5, 1))


def test_scale_order_and_kind_of_input_do_not_matter() -> None:
    hidden = NOISE + RNG.normal(size=(SCENES, DIM))[CAUSE]
    expected = decode_category(hidden, CAUSE, CLASSES)
    names = np.array(["a", "b", "c", "d", "e", "f"])[CAUSE]
    assert decode_category(1000 * hidden, list(names), [f"c{n:02d}" for n in CLASSES]) == expected
    assert decode_category(torch.from_numpy(hidden), torch.from_numpy(CAUSE), torch.from_numpy(CLASSES)) == expected
    half = decode_category(torch.from_numpy(hidden).bfloat16(), CAUSE, CLASSES)
    assert abs(half.accuracy - expected.accuracy) < 0.03


@pytest.mark.parametrize("gap", [None, math.nan, "", pd.NA, np.float32("nan")], ids=str)
def test_missing_values_are_left_out_and_counted(gap: object) -> None:
    holed: list[object] = [str(value) for value in CAUSE]
    holed[:20] = [gap] * 20
    hidden = NOISE + 4 * RNG.normal(size=(SCENES, DIM))[CAUSE]
    found = decode_category(hidden, holed, CLASSES)
    assert (found.missing, found.rows) == (20, ROWS - 20)
    assert found == decode_category(np.r_[hidden[:20] * -1, hidden[20:]], holed, CLASSES), "their rows play no part"
    numbers: list[object] = list(NOISE[:, 0])
    numbers[:20] = [gap] * 20
    number = decode_number(hidden, numbers, CLASSES)
    assert (number.missing, number.rows) == (20, ROWS - 20)


def test_values_of_one_class_cannot_be_asked_for() -> None:
    cause = CAUSE.copy()
    cause[CLASSES == 7] = 99
    found = decode_category(NOISE, cause, CLASSES)
    assert (found.lone, found.values, found.rows) == (10, SCENES, ROWS - 10)


def test_two_classes_and_a_lopsided_cause_still_work() -> None:
    cause = np.zeros(40, dtype=int)
    cause[[0, 20]] = 1
    found = decode_category(NOISE[:40], cause, np.repeat([0, 1], 20))
    assert len(found.folds) == 2
    assert found.chance == 0.95
    every = decode_category(NOISE[:6], [0, 1, 0, 1, 0, 0], [0, 0, 1, 1, 2, 2])
    assert every.rows == 6


def test_bad_input_is_told() -> None:
    with pytest.raises(EvaluationError, match="The cause has 1 values that occur in two or more classes"):
        decode_category(NOISE, np.zeros(ROWS), CLASSES)
    with pytest.raises(EvaluationError, match=r"has 0 values .* 600 rows missing"):
        decode_category(NOISE, [None] * ROWS, CLASSES)
    with pytest.raises(EvaluationError, match="has 0 values that occur in two or more classes"):
        decode_category(NOISE, CAUSE, np.zeros(ROWS, dtype=int))
    with pytest.raises(EvaluationError, match="cause has 3 entries for 600 embeddings"):
        decode_category(NOISE, [1, 2, 3], CLASSES)
    with pytest.raises(EvaluationError, match="classes has 2 entries"):
        decode_number(NOISE, CAUSE, [1, 2])
    with pytest.raises(EvaluationError, match="folds=1; give an integer of at least 2"):
        decode_category(NOISE, CAUSE, CLASSES, folds=1)
    with pytest.raises(EvaluationError, match=r"ridge=0\.0; give a positive number"):
        decode_category(NOISE, CAUSE, CLASSES, ridge=0.0)
    with pytest.raises(EvaluationError, match="the same value in all 600 rows"):
        decode_number(NOISE, np.ones(ROWS), CLASSES)
    with pytest.raises(EvaluationError, match=r"no number .* use decode_category"):
        decode_number(NOISE, ["red"] * ROWS, CLASSES)
    with pytest.raises(EvaluationError, match="rows are of 1 class"):
        decode_number(NOISE, CAUSE, np.zeros(ROWS, dtype=int))
    with pytest.raises(EvaluationError, match="NaN or infinity in rows 0, 1"):
        decode_category(np.full((ROWS, 2), np.nan), CAUSE, CLASSES)


def test_it_is_the_model_it_says_it_is() -> None:
    """One fold beside scikit-learn with the scaling written out."""
    from sklearn.linear_model import LogisticRegression

    hidden = NOISE + RNG.normal(size=(SCENES, DIM))[CAUSE]
    unit = hidden / np.linalg.norm(hidden, axis=1, keepdims=True)
    parts = _folds(CLASSES, 5, 3)
    fitted = unit[parts != 0] - unit[parts != 0].mean(0)
    scale = np.sqrt((fitted**2).mean())
    model = LogisticRegression(C=0.5, max_iter=2000).fit(fitted / scale, CAUSE[parts != 0])
    theirs = model.score((unit[parts == 0] - unit[parts != 0].mean(0)) / scale, CAUSE[parts == 0])
    assert decode_category(hidden, CAUSE, CLASSES, ridge=2.0, seed=3).folds[0] == pytest.approx(theirs, abs=0.01)


def test_a_thousand_rows_take_a_moment() -> None:
    rng = np.random.default_rng(1)
    scenes = rng.integers(0, 20, 1000)
    rows = rng.normal(size=(1000, 512)) + 0.3 * rng.normal(size=(20, 512))[scenes]
    decode_category(rows[:40], scenes[:40] % 2, np.arange(40))  # imports
    start = time.process_time()
    decode_category(rows, scenes, np.repeat(np.arange(125), 8))
    assert time.process_time() - start < 3
