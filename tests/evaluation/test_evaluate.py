"""Counts, intervals, groups, reference values and refusals of ``evaluate_embeddings``; protocols over tables."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from proxemics.core.errors import DataError, EvaluationError
from proxemics.evaluation import (
    class_intervals,
    clustering_scores,
    cross_domain,
    evaluate_embeddings,
    leave_one_domain_out,
    nearest_neighbours,
    query_gallery,
    rho_spectrum,
    zero_shot,
)

LINE = np.array([0, 1, 2.1, 3.3, 4.6, 6.0, 7.5, 9.1])[:, None]
LINE_LABELS = [0, 0, 1, 0, 1, 1, 2, 0]


def test_reference_values_of_the_worked_case() -> None:
    result = evaluate_embeddings(LINE, LINE_LABELS, metric="euclidean", recall_at=(1, 2, 4))
    assert result["recall_at_1"] == pytest.approx(3 / 7, abs=1e-12)
    assert result["recall_at_2"] == pytest.approx(4 / 7, abs=1e-12)
    assert result["recall_at_4"] == 1.0
    assert result["r_precision"] == pytest.approx(0.380952, abs=5e-7)
    assert result["map_at_r"] == pytest.approx(0.281746, abs=5e-7)
    np.testing.assert_allclose(
        result.per_query["map_at_r"], [5 / 9, 5 / 9, 0, 1 / 9, 1 / 4, 1 / 2, np.nan, 0], atol=1e-12
    )
    np.testing.assert_allclose(
        result.per_query["r_precision"], [2 / 3, 2 / 3, 0, 1 / 3, 1 / 2, 1 / 2, np.nan, 0], atol=1e-12
    )
    missed = evaluate_embeddings(LINE, LINE_LABELS, metric="euclidean", recall_at=(1, 2, 4), count_lone_as_miss=True)
    assert [missed[f"recall_at_{k}"] for k in (1, 2, 4)] == [0.375, 0.5, 0.875]


def test_perfect_ranking_is_one_except_under_roths_definition() -> None:
    embeddings = np.repeat(np.eye(4), 5, axis=0)
    result = evaluate_embeddings(embeddings, np.arange(20) // 5, recall_at=(1,))
    assert result["map_at_r"] == 1.0
    assert result["map_c_roth"] == pytest.approx(0.8)


def test_lone_queries_are_counted_and_said() -> None:
    """User-pains 1: one picture of B among five of A."""
    generator = np.random.default_rng(0)
    result = evaluate_embeddings(generator.normal(size=(6, 3)), list("AAAAAB"), recall_at=(1,))
    assert (result.num_queries, result.num_lone) == (5, 1)
    assert not np.isnan(result["recall_at_1"])
    assert any("B" in note for note in result.notes)
    json.dumps(result.to_dict(), allow_nan=False)


def test_intervals_cover_groups_add_up_and_follow_the_seed() -> None:
    generator = np.random.default_rng(1)
    labels = np.arange(200) // 5
    domains = np.where(np.arange(200) % 2, "photo", "sketch")
    embeddings = np.eye(40)[labels] + 0.3 * generator.normal(size=(200, 40))
    result = evaluate_embeddings(embeddings, labels, recall_at=(1,), groups={"domain": domains}, seed=3)
    low, high = result.intervals["recall_at_1"]
    assert low < result["recall_at_1"] < high
    assert 0.02 < high - low < 0.4
    again = evaluate_embeddings(embeddings, labels, recall_at=(1,), seed=3)
    assert again.intervals == result.intervals
    table = result.per_group("domain")
    assert {name: row["num_queries"] for name, row in table.items()} == {"photo": 100, "sketch": 100}
    mean = sum(row["recall_at_1"] for row in table.values()) / 2
    assert mean == pytest.approx(result["recall_at_1"])
    assert len(result.per_group()) == 40
    with pytest.raises(EvaluationError, match=r"No column .domian.; .*Did you mean .domain."):
        result.per_group("domian")


def test_bootstrap_of_equal_classes_has_the_textbook_width() -> None:
    """Classes of one query each: the percentile interval of a share of one half is .5 +- 1.96 sqrt(.25/n)."""
    values = {"m": np.tile([0.0, 1.0], 200)}
    low, high = class_intervals(values, np.arange(400), resamples=4000, seed=0)["m"]
    assert (low, high) == pytest.approx((0.451, 0.549), abs=0.006)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[1.0, 0.0], [np.nan, 0.0]], ["a", "a"]), r"row 1 \(b\.jpg\)"),
        (([[1.0, 0.0], [0.0, 1.0]], [[1, 1], [0, 1]]), "multi-label"),
        (([[1.0, 0.0], [0.0, 1.0]], ["a", "a"]), "one class"),
        (([[1.0, 0.0], [0.0, 1.0]], ["a", "b"]), "None of the 2 queries"),
        (([[1.0, 0.0], [0.0, 1.0]], ["a"]), "2 rows of embeddings and 1 labels"),
        (([[1.0, 0.0], [0.0, 1.0]], [0.5, 0.5]), "floating labels"),
        ((np.zeros((0, 2)), []), "empty"),
    ],
)
def test_refusals_name_what_is_wrong(arguments, message: str) -> None:
    """User-pains 7, 22, 65."""
    paths = ["a.jpg", "b.jpg"] if len(arguments[0]) else []
    with pytest.raises(EvaluationError, match=message):
        evaluate_embeddings(*arguments, paths=paths)
    with pytest.raises(EvaluationError, match=r"recall_at holds 0"):
        evaluate_embeddings(LINE, LINE_LABELS, recall_at=(0,))


def test_neighbours_leave_out_the_own_row() -> None:
    found = nearest_neighbours(np.eye(3)[[0, 0, 1]], k=1)
    assert found.indices[:2].flatten().tolist() == [1, 0]


def test_clustering_agrees_with_known_values() -> None:
    embeddings = np.repeat(np.eye(3), 4, axis=0)
    scores = clustering_scores(embeddings, np.arange(12) // 4, seed=0)
    assert scores["nmi"] == pytest.approx(1)
    assert scores["ami"] == pytest.approx(1)
    assert rho_spectrum(np.eye(4)) == pytest.approx(0, abs=1e-9)


def test_protocols_choose_rows() -> None:
    """User-pains 8, 9, 63: classes that the gallery lacks are named, with the option to skip them."""
    table = {
        "label": ["a", "a", "b", "b", "c"],
        "domain": ["photo", "sketch", "photo", "sketch", "sketch"],
        "split": ["test"] * 4 + ["train"],
        "role": ["query", "gallery", "query", "gallery", "query"],
    }
    assert zero_shot(table).query.tolist() == [0, 1, 2, 3]
    assert cross_domain(table, "photo", "sketch").gallery.tolist() == [1, 3, 4]
    with pytest.raises(DataError, match=r"no image of 1 query class\(es\): c.*absent=\"skip\""):
        query_gallery(table, column="role")
    assert query_gallery(table, column="role", absent="skip").query.tolist() == [0, 2]
    with pytest.raises(DataError, match="Did you mean 'photo'"):
        cross_domain(table, "photos", "sketch")
    parts = leave_one_domain_out(table, absent="skip")
    assert parts["sketch"].query.tolist() == [1, 3]


def test_memory_stays_small() -> None:
    """User-pains 53: no N x N matrix; 12,000 x 64 in a process whose peak grows by less than 150 MB."""
    code = (
        "import resource, numpy as np, torch\n"
        "from proxemics.evaluation import evaluate_embeddings\n"
        "g = np.random.default_rng(0); x = g.normal(size=(12000, 64)).astype('float32'); y = np.arange(12000) // 5\n"
        "evaluate_embeddings(x[:500], y[:500], bootstrap=0)\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "evaluate_embeddings(x, y)\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 150  # the matrix of all similarities would take 576 MB
