"""AUROC and risk–coverage against brute force: all pairs, and all orders of equal certainties."""

from __future__ import annotations

import itertools
import json
from fractions import Fraction
from typing import get_args

import numpy as np
import pandas as pd
import pytest
import torch

from proxemics.core.config import EvaluationConfig
from proxemics.core.errors import EvaluationError
from proxemics.evaluation.assess import assess
from proxemics.evaluation.certainty import POINTS, certainty_auroc, risk_coverage, score_certainty
from proxemics.evaluation.lengths import LENGTH_AWARE, length_is_trained
from proxemics.methods.probabilistic import ProbabilisticProxies
from proxemics.methods.probabilistic.criterion import Distance


def auroc_of_pairs(certainty, errors):
    right = [value for value, wrong in zip(certainty, errors, strict=True) if not wrong]
    wrong = [value for value, wrong in zip(certainty, errors, strict=True) if wrong]
    wins = sum(Fraction(int(a > b) * 2 + int(a == b), 2) for a in right for b in wrong)
    return wins / (len(right) * len(wrong))


def area_of_order(errors):
    """Mean error rate over the first k, for k = 1 to N."""
    risks = [Fraction(int(sum(errors[:k])), k) for k in range(1, len(errors) + 1)]
    return sum(risks) / len(risks)


def area_of_orders(certainty, errors):
    """Mean over all orders that respect the certainties."""
    areas = [
        area_of_order([errors[i] for i in order])
        for order in itertools.permutations(range(len(certainty)))
        if all(certainty[a] >= certainty[b] for a, b in itertools.pairwise(order))
    ]
    return sum(areas) / len(areas)


def draw(seed, size, levels):
    generator = np.random.default_rng(seed)
    certainty = generator.integers(0, levels, size).astype(np.float64) if levels else generator.normal(size=size)
    return certainty, generator.random(size) < 0.4


@pytest.mark.parametrize("levels", [0, 1, 2, 5])
@pytest.mark.parametrize("seed", range(8))
def test_small_cases_are_exact(seed: int, levels: int) -> None:
    certainty, errors = draw(seed, 2 + seed % 6, levels)
    curve = risk_coverage(certainty, errors)
    assert curve.aurc == pytest.approx(float(area_of_orders(certainty, errors.tolist())), abs=1e-15)
    assert curve.oracle == pytest.approx(float(area_of_order(sorted(errors.tolist()))), abs=1e-15)
    assert curve.random == errors.mean()
    if 0 < errors.sum() < len(errors):
        assert certainty_auroc(certainty, errors) == float(auroc_of_pairs(certainty, errors))


@pytest.mark.parametrize("levels", [0, 7])
def test_large_cases_agree_with_all_pairs_and_thresholds(levels: int) -> None:
    certainty, errors = draw(3, 400, levels)
    assert certainty_auroc(certainty, errors) == float(auroc_of_pairs(certainty, errors))
    curve = risk_coverage(certainty, errors)
    thresholds = np.unique(certainty)[::-1]
    np.testing.assert_allclose(curve.coverage, [(certainty >= one).mean() for one in thresholds])
    np.testing.assert_allclose(curve.risk, [errors[certainty >= one].mean() for one in thresholds])
    if not levels:
        order = np.argsort(-certainty)
        assert curve.aurc == pytest.approx(float(area_of_order(errors[order].tolist())), abs=1e-14)


def test_the_random_area_is_that_of_an_average_order() -> None:
    errors = [True, False, False, True, False]
    areas = [area_of_order(order) for order in itertools.permutations(errors)]
    assert risk_coverage(np.arange(5.0), np.array(errors)).random == pytest.approx(float(sum(areas) / len(areas)))


def test_a_perfect_order_and_its_reverse() -> None:
    errors = np.arange(50) >= 30
    best = risk_coverage(-np.arange(50.0), errors)
    assert certainty_auroc(-np.arange(50.0), errors) == 1.0
    assert best.aurc == best.oracle
    assert best.e_aurc == 0
    worst = risk_coverage(np.arange(50.0), errors)
    assert certainty_auroc(np.arange(50.0), errors) == 0.0
    assert worst.aurc > worst.random > best.aurc


@pytest.mark.parametrize(("wrong", "area"), [(False, 0.0), (True, 1.0)])
@pytest.mark.parametrize("size", [1, 9])
def test_all_right_or_all_wrong(wrong: bool, area: float, size: int) -> None:
    certainty, errors = np.arange(float(size)), np.full(size, wrong)
    assert certainty_auroc(certainty, errors) is None
    curve = risk_coverage(certainty, errors)
    assert (curve.aurc, curve.oracle, curve.random, curve.e_aurc) == (area, area, area, 0.0)
    score = score_certainty(certainty, errors)
    assert (score["auroc"], score["num_queries"], score["num_errors"]) == (None, size, size * wrong)


def test_equal_certainties_say_nothing() -> None:
    errors = np.arange(20) % 3 == 0
    assert certainty_auroc(np.ones(20), errors) == 0.5
    curve = risk_coverage(np.ones(20), errors)
    assert curve.coverage.tolist() == [1.0]
    assert curve.aurc == pytest.approx(curve.random, abs=1e-15)


def test_repeated_queries_do_not_change_the_auroc_and_the_order_of_rows_changes_nothing() -> None:
    certainty, errors = draw(5, 60, 9)
    twice = certainty_auroc(np.tile(certainty, 2), np.tile(errors, 2))
    assert twice == certainty_auroc(certainty, errors)
    shuffled = np.random.default_rng(0).permutation(60)
    a, b = risk_coverage(certainty, errors), risk_coverage(certainty[shuffled], errors[shuffled])
    assert (a.aurc, a.risk.tolist()) == (b.aurc, b.risk.tolist())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.int64])
def test_tensors_of_any_type_and_with_gradients(dtype: torch.dtype) -> None:
    certainty = torch.tensor([3, 2, 2, 1]).to(dtype)
    if dtype.is_floating_point:
        certainty.requires_grad_()
    errors = torch.tensor([False, True, False, True])
    assert certainty_auroc(certainty, errors) == 0.875
    assert risk_coverage(certainty, errors).aurc == risk_coverage([3.0, 2.0, 2.0, 1.0], errors.numpy()).aurc


def test_infinity_and_both_zeros_are_numbers() -> None:
    errors = np.array([False, False, True, True])
    assert certainty_auroc([np.inf, 0.0, -0.0, -np.inf], errors) == 0.875


@pytest.mark.parametrize(
    ("certainty", "errors", "told"),
    [
        (np.array([1.0, np.nan]), np.array([True, False]), "certainty is NaN at row 1"),
        (np.array([]), np.array([], dtype=bool), "There is no query"),
        (np.ones(3), np.zeros(2, dtype=bool), r"shape \(3,\) and errors \(2,\)"),
        (np.ones((2, 1)), np.zeros((2, 1), dtype=bool), r"give two of shape \(N,\)"),
        (np.ones(2), np.zeros(2), "errors have dtype float64; give bool"),
        (np.array(["a", "b"]), np.zeros(2, dtype=bool), "certainty has dtype"),
    ],
)
def test_what_is_no_certainty_is_refused(certainty: np.ndarray, errors: np.ndarray, told: str) -> None:
    for function in (certainty_auroc, risk_coverage, score_certainty):
        with pytest.raises(EvaluationError, match=told):
            function(certainty, errors)


@pytest.mark.parametrize("size", [1, POINTS, POINTS + 1, 1234, 5000])
def test_curves_are_thinned_for_json(size: int) -> None:
    certainty, errors = draw(1, size, 0)
    curve = risk_coverage(certainty, errors)
    score = score_certainty(certainty, errors)
    json.dumps(score, allow_nan=False)
    assert len(score["coverage"]) == len(score["risk"]) <= POINTS
    assert score["coverage"][-1] == 1.0
    assert score["risk"][-1] == pytest.approx(errors.mean(), abs=1e-6)
    whole = dict(zip(curve.coverage.round(6).tolist(), curve.risk.round(6).tolist(), strict=True))
    assert all(whole[x] == y for x, y in zip(score["coverage"], score["risk"], strict=True))
    if size > POINTS:
        assert max(np.diff([0.0, *score["coverage"]])) <= 1 / POINTS + 1 / size
        few, _ = curve.thinned(1)
        assert few.tolist() == [1.0]


def test_assess_judges_the_lengths_by_the_nearest_picture() -> None:
    generator = np.random.default_rng(0)
    labels = [*(name for name in "abcd" for _ in range(6)), "lone"]
    vectors = generator.normal(size=(25, 4)).astype(np.float32)
    kappa = np.linalg.norm(vectors, axis=1).astype(np.float32)
    unit = vectors / kappa[:, None]
    frame = pd.DataFrame({"path": [f"{i}.png" for i in range(25)], "label": labels, "domain": ""})
    found = assess(unit, frame, EvaluationConfig(bootstrap=0, recall_at=(10,)), kappa=kappa)
    similarity = unit.astype(np.float64) @ unit.T
    np.fill_diagonal(similarity, -np.inf)
    wrong = np.array(labels)[similarity.argmax(1)] != labels
    assert found.certainty == score_certainty(kappa[:-1], wrong[:-1])  # the lone query does not count
    assert found.certainty["num_queries"] == 24
    assert assess(unit, frame, EvaluationConfig(bootstrap=0)).certainty is None
    with pytest.raises(EvaluationError, match="24 lengths were given for 25 rows"):
        assess(unit, frame, EvaluationConfig(bootstrap=0), kappa=kappa[:-1])


def test_assess_takes_the_neighbours_from_another_gallery() -> None:
    frame = pd.DataFrame(
        {
            "path": list("123456"),
            "label": ["a", "b", "a", "a", "b", "b"],
            "domain": ["photo"] * 3 + ["sketch"] * 3,
        }
    )
    angle = np.array([0.0, 1.5, 0.7, 0.1, 0.8, 1.6])
    unit = np.stack([np.cos(angle), np.sin(angle)], 1).astype(np.float32)
    kappa = np.array([9, 8, 1, 5, 5, 5], dtype=np.float32)
    evaluation = EvaluationConfig(
        protocol="cross_domain", query_domain="photo", gallery_domain="sketch", bootstrap=0, recall_at=(1,)
    )
    found = assess(unit, frame, evaluation, kappa=kappa)
    assert found.certainty is not None
    assert (found.certainty["num_errors"], found.certainty["auroc"]) == (1, 1.0)


@pytest.mark.parametrize("distance", get_args(Distance))
def test_the_length_is_trained_where_it_changes_the_logits(distance: str) -> None:
    method = ProbabilisticProxies(5, 8, distance=distance)
    generator = torch.Generator().manual_seed(0)
    raw, directions = torch.randn(6, 8, generator=generator), torch.randn(5, 8, generator=generator)
    with torch.no_grad():
        once, twice = (
            method.logits(scale * raw, directions, torch.Generator().manual_seed(1)).log_softmax(-1) for scale in (1, 4)
        )
    sees_length = not torch.allclose(once, twice, rtol=1e-3, atol=1e-3)
    assert sees_length == (distance in LENGTH_AWARE)
    assert length_is_trained({"probabilistic": {"distance": distance}}) == sees_length
    assert not length_is_trained({"probabilistic": {"distance": distance, "weight": 0.0}})


def test_the_rule_knows_the_name_and_the_defaults_of_the_method() -> None:
    from proxemics.methods.build import METHODS, method_options

    assert METHODS["probabilistic"] is ProbabilisticProxies
    options = method_options("probabilistic")
    assert length_is_trained({"probabilistic": options}) == length_is_trained({"probabilistic": None}) is True
