"""Two ways to the mean over tasks agree: whole results, and the class sums that the study on real pictures keeps."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from proxemics.core.config import EvaluationConfig
from proxemics.evaluation.assess import assess
from proxemics.evaluation.paired import class_sums, paired_bootstrap

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from _real_protocols import mean, measure_sums, pair_sums, subtract, within


@pytest.fixture
def table() -> pd.DataFrame:
    generator = np.random.default_rng(0)
    labels = np.repeat([f"k{number:02}" for number in range(12)], 15)
    domains = generator.choice(["photo", "sketch", "art"], len(labels), p=[0.2, 0.6, 0.2])
    return pd.DataFrame({"path": [f"{n}.jpg" for n in range(len(labels))], "label": labels, "domain": domains})


def vectors(table: pd.DataFrame, seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    centres = np.random.default_rng(9).normal(size=(12, 6))
    return (centres[table["label"].factorize()[0]] + generator.normal(size=(len(table), 6))).astype(np.float32)


@pytest.mark.parametrize("metric", ["recall_at_1", "map_at_r"])
def test_class_sums_and_whole_results_give_one_mean_and_one_difference(table: pd.DataFrame, metric: str) -> None:
    """Single-domain generalisation from photographs is "within art and sketch" there, each domain counting once."""
    evaluation = EvaluationConfig(protocol="single_domain", source_domain="photo", bootstrap=0, recall_at=(1, 2, 4, 8))
    targets = within(["art", "sketch"])
    whole, sums = [], []
    for seed in (1, 2):
        points = vectors(table, seed)
        whole.append(assess(points, table, evaluation).result)
        sums.append(pair_sums(points, table, targets))
        assert mean(sums[-1], targets, metric) == pytest.approx(whole[-1][metric], abs=1e-12)
    own = [one.per_query[metric] * one.per_query["weight"] for one in whole]
    by_query = class_sums(own[0], own[1], whole[0].groups["class"])
    by_class = subtract(*(measure_sums(one, targets, metric) for one in sums))
    assert by_query.names.tolist() == by_class.names.tolist()
    assert by_query.difference == pytest.approx(by_class.difference, abs=1e-12)
    assert by_class.difference == pytest.approx(whole[0][metric] - whole[1][metric], abs=1e-12)
    # Both give a class the same weight in the mean.
    share = by_class.count / by_class.count.sum()
    known = ~np.isnan(own[0])
    classes = whole[0].groups["class"][known]
    weight = np.array([whole[0].per_query["weight"][known][classes == name].sum() for name in by_class.names])
    np.testing.assert_allclose(share, weight / weight.sum(), atol=1e-12)
    assert paired_bootstrap([by_class]).num_classes == 12
