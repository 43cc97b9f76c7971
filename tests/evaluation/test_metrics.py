"""Values: the hand-computed set of the literature, brute force in float64, pytorch-metric-learning, and invariances."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from proxemics.evaluation import EvaluationResult, evaluate_embeddings

_spec = importlib.util.spec_from_file_location("retrieval_reference", Path(__file__).with_name("reference.py"))
assert _spec is not None and _spec.loader is not None
reference = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(reference)

LINE = np.array([0, 1, 2.1, 3.3, 4.6, 6.0, 7.5, 9.1])[:, None]
LINE_LABELS = [0, 0, 1, 0, 1, 1, 2, 0]


def sample(seed, images=120, classes=20, dim=16, noise=1.0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, images)
    points = rng.standard_normal((classes, dim))[labels] + noise * rng.standard_normal((images, dim))
    return points, labels


def agree(result: EvaluationResult, expected: dict, tolerance=1e-12):
    for name, values in expected.items():
        if name != "order":
            np.testing.assert_allclose(result.per_query[name], values, atol=tolerance, rtol=0, err_msg=name)
            assert result[name] == pytest.approx(np.nanmean(values), abs=tolerance)


class TestReferenceValues:
    """One-dimensional embeddings whose metrics were computed by hand; the lone query is image 6."""

    def test_lone_query_is_left_out(self):
        """User-pains 1: the number of queries without a positive is reported, and no value is NaN."""
        result = evaluate_embeddings(LINE, LINE_LABELS, recall_at=(1, 2, 4), metric="euclidean")
        assert result["recall_at_1"] == pytest.approx(3 / 7, abs=1e-12)
        assert result["recall_at_2"] == pytest.approx(4 / 7, abs=1e-12)
        assert result["recall_at_4"] == 1.0
        assert result["r_precision"] == pytest.approx(0.380952, abs=1e-6)
        assert result["map_at_r"] == pytest.approx(0.281746, abs=1e-6)
        assert (result.num_queries, result.num_lone, result.num_ties) == (7, 1, 0)
        per_query = result.per_query
        np.testing.assert_allclose(per_query["map_at_r"], [5 / 9, 5 / 9, 0, 1 / 9, 1 / 4, 1 / 2, np.nan, 0], atol=1e-12)
        np.testing.assert_allclose(
            per_query["r_precision"], [2 / 3, 2 / 3, 0, 1 / 3, 1 / 2, 1 / 2, np.nan, 0], atol=1e-12
        )
        assert any("1 query without another image of its class" in note for note in result.notes)

    def test_lone_query_as_a_miss(self):
        result = evaluate_embeddings(
            LINE, LINE_LABELS, recall_at=(1, 2, 4), metric="euclidean", count_lone_as_miss=True
        )
        assert [result[f"recall_at_{k}"] for k in (1, 2, 4)] == [0.375, 0.5, 0.875]
        assert (result.num_queries, result.num_lone) == (8, 1)

    def test_five_of_one_class_and_one_of_another(self):
        """User-pains 1."""
        result = evaluate_embeddings(np.eye(6) + 0.1, ["a"] * 5 + ["b"], recall_at=(1,))
        assert (result.num_queries, result.num_lone) == (5, 1)
        assert np.isfinite(list(result.values())).all()

    def test_perfect_ranking_scores_one_but_for_the_metric_of_roth(self):
        """A class of five: map_c_roth counts the query in R, so that it cannot pass 4/5."""
        labels = np.repeat(np.arange(3), 5)
        result = evaluate_embeddings(np.eye(3)[labels], labels, recall_at=(1,))
        assert result["map_at_r"] == result["r_precision"] == result["recall_at_1"] == 1.0
        assert result["map_c_roth"] == pytest.approx(0.8, abs=1e-12)


class TestBruteForce:
    @pytest.mark.parametrize("metric", ["cosine", "euclidean", "dot"])
    @pytest.mark.parametrize("precision", ["float32", "bfloat16", "float64"])
    def test_every_metric_and_every_screen(self, metric, precision):
        if (metric, precision) == ("euclidean", "bfloat16"):
            pytest.skip("the bfloat16 screen has no bias")
        points, labels = sample(3)
        wanted = {"ks": (1, 2, 4, 10), "precision_at": (1, 5), "horizon": 7}
        result = evaluate_embeddings(
            points,
            labels,
            recall_at=wanted["ks"],
            precision_at=wanted["precision_at"],
            map_horizon=7,
            metric=metric,
            precision=precision,
            block_size=64,
        )
        agree(result, reference.evaluate(points, labels, metric=metric, **wanted))

    def test_class_sizes_2_5_50(self):
        """User-pains 50: MAP@R looks as deep as the largest class needs."""
        labels = np.repeat(np.arange(9), [2, 2, 2, 5, 5, 5, 50, 50, 1])
        rng = np.random.default_rng(0)
        points = rng.standard_normal((9, 12))[labels] + 1.5 * rng.standard_normal((len(labels), 12))
        agree(evaluate_embeddings(points, labels), reference.evaluate(points, labels))

    def test_query_and_gallery(self):
        points, labels = sample(5, images=150)
        parts = points[:60], labels[:60], points[60:], labels[60:]
        agree(evaluate_embeddings(*parts), reference.evaluate(*parts))

    @pytest.mark.parametrize("seed", range(12))
    def test_ties_duplicates_and_zero_vectors(self, seed):
        """All three readings of a tie, with duplicated rows, coarse coordinates and user-pains 24."""
        rng = np.random.default_rng(seed)
        points, labels = sample(seed, images=90, classes=12, dim=4)
        points = np.round(points)
        points[:30] = points[rng.integers(0, 90, 30)]
        points[5] = 0
        result = evaluate_embeddings(points, labels, recall_at=(1, 3, 20), block_size=64 if seed % 2 else None)
        readings = {
            reading: reference.evaluate(points, labels, ks=(1, 3, 20), reading=reading)
            for reading in ("index", "optimistic", "pessimistic")
        }
        agree(result, readings["index"])
        differ = np.zeros(90, dtype=bool)
        for name, (low, high) in result.bounds.items():
            assert high == pytest.approx(np.nanmean(readings["optimistic"][name]), abs=1e-12)
            assert low == pytest.approx(np.nanmean(readings["pessimistic"][name]), abs=1e-12)
            assert low <= result[name] <= high
            gap = readings["optimistic"][name] - readings["pessimistic"][name]
            differ |= np.nan_to_num(gap) > 1e-12
        assert result.num_ties == differ.sum() > 0
        assert any("order of equal similarities" in note for note in result.notes)

    def test_forbidden_pairs(self):
        points, labels = sample(7, images=60, classes=8)
        pairs = [(0, 1), (1, 0), (5, 9), (3, 4), (40, 2)]
        expected = reference.evaluate(points, labels, forbidden=pairs)
        agree(evaluate_embeddings(points, labels, forbidden=pairs), expected)
        agree(evaluate_embeddings(points, labels, forbidden=pairs, precision="float64"), expected)

    def test_equal_ids_are_not_ranked(self):
        """Overlapping query and gallery: an image does not find itself, wherever it stands in the gallery."""
        points, labels = sample(8, images=50, classes=6)
        order = np.random.default_rng(0).permutation(50)
        result = evaluate_embeddings(
            points[:20],
            labels[:20],
            points[order],
            labels[order],
            ids=[f"image {i}" for i in range(20)],
            gallery_ids=[f"image {i}" for i in order],
        )
        place = np.argsort(order)
        pairs = [(i, place[i]) for i in range(20)]
        agree(
            result, reference.evaluate(points[:20], labels[:20], points[order], labels[order], forbidden=pairs)
        )

    def test_class_of_3000(self):
        """User-pains 55: R = 2,999 is deeper than the k that other tools allow."""
        rng = np.random.default_rng(0)
        labels = np.repeat([0, 1], [3000, 300])
        points = rng.standard_normal((2, 8))[labels] + 2 * rng.standard_normal((3300, 8))
        result = evaluate_embeddings(points.astype(np.float32), labels, bootstrap=0)
        unit = points.astype(np.float32).astype(np.float64)
        unit /= np.linalg.norm(unit, axis=1, keepdims=True)
        for query in (0, 1500, 3100):
            order = np.argsort(-(unit @ unit[query]), kind="stable")
            order = order[order != query]
            rel = (labels[order] == labels[query]).astype(float)
            r = int(rel.sum())
            expected = (np.cumsum(rel)[:r] / np.arange(1, r + 1) * rel[:r]).sum() / r
            assert result.per_query["map_at_r"][query] == pytest.approx(expected, abs=1e-12)


class TestStability:
    def test_near_ties_follow_float64(self):
        """Similarities that differ by 1e-9 are equal in float32, yet the ranking is that of the numbers given."""
        rng = np.random.default_rng(1)
        labels = rng.integers(0, 15, 200)
        base = np.zeros(24)
        base[0] = 1.0
        points = base + 1e-5 * rng.standard_normal((200, 24))
        with pytest.warns(UserWarning, match="collapsed"):
            result = evaluate_embeddings(points, labels, recall_at=(1, 5, 50))
        agree(result, reference.evaluate(points, labels, ks=(1, 5, 50)))
        assert result.num_ties == 0

    @pytest.mark.parametrize("precision", ["float32", "bfloat16", "float64"])
    def test_block_size_and_precision_change_no_bit(self, precision):
        points, labels = sample(2, images=500, classes=60, dim=32, noise=2.0)
        points = points.astype(np.float32)
        plain = evaluate_embeddings(points, labels, recall_at=(1, 7, 70))
        for block in (64, 192, 512):
            other = evaluate_embeddings(points, labels, recall_at=(1, 7, 70), precision=precision, block_size=block)
            assert dict(other) == dict(plain)
            assert other.intervals == plain.intervals
            for name, values in plain.per_query.items():
                np.testing.assert_array_equal(other.per_query[name], values, err_msg=name)

    def test_threads_and_reduced_precision_settings_change_no_bit(self):
        points, labels = sample(4, images=300, classes=40, dim=64, noise=2.0)
        points = torch.from_numpy(points).float()
        plain = evaluate_embeddings(points, labels)
        threads, matmul = torch.get_num_threads(), torch.get_float32_matmul_precision()
        try:
            torch.set_num_threads(threads + 1)
            torch.set_float32_matmul_precision("medium")
            with torch.autocast("cpu", dtype=torch.bfloat16):
                other = evaluate_embeddings(points, labels)
            assert torch.get_float32_matmul_precision() == "medium"
        finally:
            torch.set_num_threads(threads)
            torch.set_float32_matmul_precision(matmul)
        assert dict(other) == dict(plain)

    def test_chunked_queries_give_the_same(self, monkeypatch):
        """Sets whose positives do not fit in memory at once are ranked in groups of queries."""
        from proxemics.evaluation import ranking

        points, labels = sample(6, images=200, classes=10)
        plain = evaluate_embeddings(points, labels)
        monkeypatch.setattr(ranking, "POSITIVES", 300)
        chunked = evaluate_embeddings(points, labels)
        assert dict(chunked) == dict(plain)
        np.testing.assert_array_equal(chunked.per_query["neighbours"], plain.per_query["neighbours"])

    @settings(max_examples=25, deadline=None)
    @given(seed=st.integers(0, 2**32 - 1), images=st.integers(6, 60), classes=st.integers(2, 6))
    def test_permutation_changes_nothing(self, seed, images, classes):
        rng = np.random.default_rng(seed)
        labels = rng.integers(0, classes, images)
        labels[:3] = 0, 0, 1
        points = rng.standard_normal((images, 5))
        order = rng.permutation(images)
        plain = evaluate_embeddings(points, labels, bootstrap=0)
        moved = evaluate_embeddings(points[order], labels[order], bootstrap=0)
        for name in plain:
            assert moved[name] == pytest.approx(plain[name], abs=1e-12)
        np.testing.assert_allclose(moved.per_query["map_at_r"], plain.per_query["map_at_r"][order], atol=1e-12)
        np.testing.assert_array_equal(order[moved.per_query["nearest"]], plain.per_query["nearest"][order])

    @settings(max_examples=15, deadline=None)
    @given(seed=st.integers(0, 2**32 - 1))
    def test_scaling_rows_changes_no_cosine_metric(self, seed):
        rng = np.random.default_rng(seed)
        points, labels = sample(seed % 1000, images=40, classes=5, dim=6)
        scaled = points * rng.uniform(1e-6, 1e6, (40, 1))
        assert dict(evaluate_embeddings(scaled, labels)) == pytest.approx(dict(evaluate_embeddings(points, labels)))


class TestDuplicates:
    def test_every_image_again_under_another_label(self):
        """User-pains 48: dropping the first neighbour instead of the own row would find Recall@1 = 0.5 here."""
        base = np.eye(4)
        points, labels = np.concatenate([base, base]), np.array([0, 0, 1, 1, 2, 2, 3, 3])
        result = evaluate_embeddings(points, labels, recall_at=(1, 2))
        assert result["recall_at_1"] == 0.0
        order = np.array([4, 0, 5, 1, 6, 2, 7, 3])
        assert evaluate_embeddings(points[order], labels[order], recall_at=(1,))["recall_at_1"] == 0.0

    def test_duplicates_in_the_gallery_are_found(self):
        points = np.eye(3)
        result = evaluate_embeddings(points, [0, 1, 2], points, [0, 1, 2], recall_at=(1,))
        assert result["recall_at_1"] == 1.0, "nothing is left out when query and gallery are different sets"

    def test_collapsed_embeddings(self):
        """User-pains 23: all equal; the pessimistic and optimistic readings are 0 and 1, and the collapse is named."""
        labels = np.repeat(np.arange(10), 8)
        with pytest.warns(UserWarning, match=r"collapsed.*1\.0000"):
            result = evaluate_embeddings(np.ones((80, 16), dtype=np.float32), labels, recall_at=(1, 10))
        assert result.bounds["recall_at_1"] == (0.0, 1.0)
        assert result.bounds["map_at_r"] == (0.0, 1.0)
        assert result.num_ties == 80
        expected = reference.evaluate(np.ones((80, 16)), labels, ks=(1, 10))
        agree(result, expected)


class TestLabels:
    @pytest.mark.parametrize("offset", [2**24, 2**31, 2**40, 2**62])
    def test_large_labels_stay_apart(self, offset):
        """User-pains 54: ids up to 2**40; other tools merge labels above 2**24 in float32."""
        points, labels = sample(0)
        plain = evaluate_embeddings(points, labels)
        assert dict(evaluate_embeddings(points, labels.astype(np.int64) + offset)) == dict(plain)
        assert dict(evaluate_embeddings(points, torch.from_numpy(labels) + offset)) == dict(plain)

    def test_signed_and_unsigned_labels_do_not_meet_in_floats(self):
        big = 2**53
        result = evaluate_embeddings(
            np.eye(2),
            np.array([big, big + 1], dtype=np.int64),
            np.eye(2),
            np.array([big, big + 1], dtype=np.uint64),
            recall_at=(1,),
        )
        assert result["recall_at_1"] == 1.0

    def test_strings(self):
        """User-pains 2 and 3: two levels of string labels."""
        points, labels = sample(1)
        species = [f"Genus {label // 4}.species {label}" for label in labels]
        genus = [name.split(".")[0] for name in species]
        assert dict(evaluate_embeddings(points, species)) == dict(evaluate_embeddings(points, labels))
        assert evaluate_embeddings(points, genus)["r_precision"] != evaluate_embeddings(points, species)["r_precision"]


def test_pytorch_metric_learning_agrees():
    """User-pains 51: what carries one definition in both libraries has one value."""
    accuracy = pytest.importorskip("pytorch_metric_learning.utils.accuracy_calculator")
    inference = pytest.importorskip("pytorch_metric_learning.utils.inference")
    distances = pytest.importorskip("pytorch_metric_learning.distances")
    points, labels = sample(9, images=400, classes=40, dim=32, noise=1.5)
    labels = np.concatenate([labels[:-2], [1000, 1001]])
    calculator = accuracy.AccuracyCalculator(
        include=("precision_at_1", "r_precision", "mean_average_precision_at_r", "mean_average_precision"),
        k=50,
        knn_func=inference.CustomKNN(distances.CosineSimilarity()),
    )
    theirs = calculator.get_accuracy(torch.from_numpy(points), torch.from_numpy(labels))
    ours = evaluate_embeddings(points, labels, precision_at=(1,), map_horizon=50)
    assert ours["recall_at_1"] == ours["precision_at_1"] == pytest.approx(theirs["precision_at_1"], abs=1e-9)
    assert ours["r_precision"] == pytest.approx(theirs["r_precision"], abs=1e-9)
    assert ours["map_at_r"] == pytest.approx(theirs["mean_average_precision_at_r"], abs=1e-9)


def test_nearest_neighbour_and_recall_at_1_tell_one_story():
    """User-pains 64: the predictions behind the metric are there, ties included."""
    points, labels = sample(11, images=100, classes=10, dim=3)
    points = np.round(points)
    result = evaluate_embeddings(points, labels, neighbours=5)
    near = result.per_query["neighbours"]
    known = ~np.isnan(result.per_query["recall_at_1"])
    hit = labels[near[:, 0]] == labels
    np.testing.assert_array_equal(hit[known], result.per_query["recall_at_1"][known] == 1)
    orders = reference.evaluate(points, labels)["order"]
    np.testing.assert_array_equal(near, [order[:5] for order in orders])
    matrix = reference.similarities(points, points)
    expected = np.take_along_axis(matrix, near, axis=1)
    np.testing.assert_allclose(result.per_query["neighbour_similarities"], expected, atol=1e-6)
