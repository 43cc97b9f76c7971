"""No value depends on how it is computed: block size, screen, threads, torch settings, chunks, order of rows."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from proxemics.core.errors import EvaluationError
from proxemics.evaluation import EvaluationResult, evaluate_embeddings, nearest_neighbours, ranking

KS = (1, 3, 20)


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("evaluation_reference", Path(__file__).with_name("reference.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


reference = _load()


def sample(seed: int, *, images: int = 120, classes: int = 20, dim: int = 16, noise: float = 1.0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, images)
    return rng.standard_normal((classes, dim))[labels] + noise * rng.standard_normal((images, dim)), labels


def agree(result: EvaluationResult, expected: dict) -> None:
    for name, values in expected.items():
        if name != "order":
            np.testing.assert_allclose(result.per_query[name], values, atol=1e-12, rtol=0, err_msg=name)


def same(one: EvaluationResult, other: EvaluationResult) -> None:
    assert dict(one) == dict(other)
    assert one.bounds == other.bounds
    assert one.intervals == other.intervals
    for name, values in one.per_query.items():
        np.testing.assert_array_equal(other.per_query[name], values, err_msg=name)


@pytest.fixture(scope="module")
def overlapping():
    """Classes that overlap enough for every path: hits, first positives beyond the horizon, lone queries."""
    points, labels = sample(2, images=700, classes=200, dim=32, noise=1.3)
    points = points.astype(np.float32)
    return points, labels, evaluate_embeddings(points, labels, recall_at=(1, 7, 70), neighbours=4)


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("block", [64, 192, 1024])
def test_block_size_and_screen_change_no_bit(overlapping, precision: str, block: int) -> None:
    points, labels, plain = overlapping
    assert 0.1 < plain["recall_at_1"] < plain["recall_at_70"] < 1
    assert plain.num_lone > 0
    other = evaluate_embeddings(
        points, labels, recall_at=(1, 7, 70), neighbours=4, precision=precision, block_size=block
    )
    same(plain, other)


def test_threads_and_reduced_precision_settings_change_no_bit(overlapping) -> None:
    """Autocast and torch's reduced-precision products would break the error bounds, so they are off inside."""
    points, labels, plain = overlapping
    code = (
        "import sys, numpy as np, torch\n"
        "from proxemics.evaluation import evaluate_embeddings\n"
        "points, labels = np.load(sys.argv[1]), np.load(sys.argv[2])\n"
        "torch.set_num_threads(2)\n"
        "exec(sys.argv[3])\n"
        "before = torch.mm(torch.ones(2, 2), torch.ones(2, 2))\n"
        "with torch.autocast('cpu', dtype=torch.bfloat16):\n"
        "    r = evaluate_embeddings(torch.from_numpy(points), labels, recall_at=(1, 7, 70), neighbours=4)\n"
        "print(repr({k: float(v) for k, v in r.items()}), r.bounds)\n"
        "exec(sys.argv[4])\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        files = [str(Path(folder) / name) for name in ("points.npy", "labels.npy")]
        np.save(files[0], points)
        np.save(files[1], labels)
        for setting, check in (
            ("torch.set_float32_matmul_precision('medium')", "assert torch.get_float32_matmul_precision() == 'medium'"),
            (
                "m = getattr(torch.backends.mkldnn, 'matmul', torch.ones(1)); m.fp32_precision = 'bf16'",
                "assert m.fp32_precision == 'bf16'",
            ),
        ):
            command = [sys.executable, "-c", code, *files, setting, check]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            assert done.stdout.strip() == f"{ {k: float(v) for k, v in plain.items()}!r} {plain.bounds}"


def test_groups_of_queries_change_no_bit(overlapping, monkeypatch) -> None:
    """Sets whose positives do not fit in memory together are ranked in groups of queries."""
    points, labels, plain = overlapping
    monkeypatch.setattr(ranking, "POSITIVES", 100)
    same(plain, evaluate_embeddings(points, labels, recall_at=(1, 7, 70), neighbours=4))


def test_a_set_as_its_own_gallery_is_the_same_as_a_gallery_with_ids(overlapping) -> None:
    points, labels, plain = overlapping
    ids = np.arange(len(labels)) + 2**40
    other = evaluate_embeddings(
        points, labels, points, labels, recall_at=(1, 7, 70), neighbours=4, ids=ids, gallery_ids=ids
    )
    same(plain, other)


def test_gradients_half_precision_and_read_only_arrays_are_taken(overlapping, tmp_path: Path) -> None:
    points, labels, plain = overlapping
    same(
        plain,
        evaluate_embeddings(torch.from_numpy(points).requires_grad_(), labels, recall_at=(1, 7, 70), neighbours=4),
    )
    np.save(tmp_path / "e.npy", points)
    mapped = np.load(tmp_path / "e.npy", mmap_mode="r")
    same(plain, evaluate_embeddings(mapped, labels, recall_at=(1, 7, 70), neighbours=4))
    half = torch.from_numpy(points).bfloat16()
    agree(evaluate_embeddings(half, labels), reference.evaluate(half.double().numpy(), labels))


@pytest.mark.parametrize("seed", range(8))
def test_ties_of_every_kind(seed: int) -> None:
    """Coarse coordinates, duplicated rows, a zero vector (user-pains 24): all three readings, with small blocks."""
    rng = np.random.default_rng(seed)
    points, labels = sample(seed, images=90, classes=12, dim=4)
    points = np.round(points)
    points[:30] = points[rng.integers(0, 90, 30)]
    points[5] = 0
    precision = ("float32", "bfloat16", "float64", "auto")[seed % 4]
    result = evaluate_embeddings(points, labels, recall_at=KS, block_size=64, precision=precision)
    readings = {r: reference.evaluate(points, labels, ks=KS, reading=r) for r in ("index", "optimistic", "pessimistic")}
    agree(result, readings["index"])
    differ = np.zeros(90, dtype=bool)
    for name, (low, high) in result.bounds.items():
        assert (low, high) == pytest.approx(
            (np.nanmean(readings["pessimistic"][name]), np.nanmean(readings["optimistic"][name])), abs=1e-12
        )
        differ |= np.nan_to_num(readings["optimistic"][name] - readings["pessimistic"][name]) > 1e-12
    assert result.num_ties == differ.sum() > 0
    assert any("order of equal similarities" in note for note in result.notes)
    assert any("length 0" in note for note in result.notes)


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float64"])
def test_near_ties_follow_float64(precision: str) -> None:
    """Similarities that differ by less than float32 can hold still rank as the numbers given say (user-pains 23)."""
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 15, 200)
    points = np.eye(24)[0] + 1e-4 * rng.standard_normal((200, 24))
    with pytest.warns(UserWarning, match="collapsed"):
        result = evaluate_embeddings(points, labels, recall_at=(1, 5, 50), precision=precision, block_size=64)
    agree(result, reference.evaluate(points, labels, ks=(1, 5, 50)))
    assert result.num_ties == 0
    assert any("collapsed" in note for note in result.notes)


def test_euclidean_distance_far_from_the_origin() -> None:
    points, labels = sample(3, images=80, classes=10, dim=3)
    near = evaluate_embeddings(points, labels, metric="euclidean", recall_at=KS)
    with pytest.warns(UserWarning, match="collapsed"):
        far = evaluate_embeddings(points + 1e6, labels, metric="euclidean", recall_at=KS)
    assert dict(far) == pytest.approx(dict(near), abs=1e-12)
    expected = np.sqrt(((points - points[near.per_query["nearest"]]) ** 2).sum(axis=1))
    np.testing.assert_allclose(-near.per_query["similarity"], expected, rtol=1e-6)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_tiny_and_huge_vectors(scale: float) -> None:
    """Products of such numbers leave the range of float32."""
    points, labels = sample(4, images=80, classes=10)
    plain = evaluate_embeddings(points.astype(np.float32), labels, recall_at=KS)
    scaled = evaluate_embeddings(points.astype(np.float32) * np.float32(scale), labels, recall_at=KS)
    assert dict(scaled) == pytest.approx(dict(plain), abs=1e-12)


def test_forbidden_pairs() -> None:
    points, labels = sample(7, images=60, classes=8)
    for pairs in ([(0, 1), (1, 0), (5, 9), (9, 5)], [(0, 1), (3, 4), (40, 2)]):
        expected = reference.evaluate(points, labels, forbidden=pairs)
        for precision in ("float32", "float64"):
            agree(evaluate_embeddings(points, labels, forbidden=pairs, precision=precision), expected)
    with pytest.raises(EvaluationError, match=r"forbidden holds the pair \(60, 0\), outside 60 queries"):
        evaluate_embeddings(points, labels, forbidden=[(60, 0)])


def test_overlapping_query_and_gallery_by_id() -> None:
    """An image does not find itself, wherever it stands in the gallery."""
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
    pairs = list(enumerate(np.argsort(order)[:20]))
    agree(result, reference.evaluate(points[:20], labels[:20], points[order], labels[order], forbidden=pairs))
    with pytest.raises(EvaluationError, match="ids and gallery_ids together"):
        evaluate_embeddings(points[:20], labels[:20], points, labels, ids=list(range(20)))


def test_duplicates_in_a_separate_gallery_are_found() -> None:
    """In-Shop: nothing is left out when query and gallery are different sets."""
    result = evaluate_embeddings(np.eye(3), [0, 1, 2], np.eye(3), [0, 1, 2], recall_at=(1,))
    assert result["recall_at_1"] == 1.0


def test_signed_and_unsigned_labels_do_not_meet_in_floats() -> None:
    """NumPy joins int64 and uint64 as float64, which would merge 2**53 and 2**53 + 1 (user-pains 54)."""
    labels = np.array([2**53, 2**53 + 1], dtype=np.int64)
    result = evaluate_embeddings(np.eye(2), labels, np.eye(2), labels.astype(np.uint64), recall_at=(1,))
    assert result["recall_at_1"] == 1.0
    with pytest.raises(EvaluationError, match="Query labels are integers and gallery labels are strings"):
        evaluate_embeddings(np.eye(2), labels, np.eye(2), ["a", "b"])


def test_classes_absent_from_the_gallery_are_listed() -> None:
    """User-pains 8: excluded, counted and named; never NaN."""
    rng = np.random.default_rng(0)
    result = evaluate_embeddings(
        rng.standard_normal((4, 3)),
        ["a", "b", "c", "d"],
        rng.standard_normal((3, 3)),
        ["a", "b", "b"],
        recall_at=(1, 3),
    )
    assert result.missing_labels == ("c", "d")
    assert (result.num_queries, result.num_lone) == (2, 2)
    assert any("no image of 2 query class(es): c, d" in note for note in result.notes)
    assert any("Recall@3 is 1 by construction" in note for note in result.notes)


def test_coinciding_metrics_are_named() -> None:
    """User-pains 57: c_recall and e_recall, precision_at_1 and recall_at_1, and classes of two."""
    points, labels = sample(1, images=40, classes=20)
    labels = np.arange(40) // 2
    result = evaluate_embeddings(points, labels, precision_at=(1,), recall_at=(1, 39))
    text = " ".join(result.notes)
    for part in (
        "c_recall and e_recall",
        "recall_at_1 and precision_at_1",
        "r_precision and map_at_r coincide",
        "Recall@39",
    ):
        assert part in text
    assert result["recall_at_1"] == result["map_at_r"] == result["r_precision"] == result["precision_at_1"]


@pytest.mark.parametrize("metric", ["cosine", "euclidean", "dot"])
@pytest.mark.parametrize("k", [1, 6, 40])
def test_nearest_neighbours_are_those_of_a_sort(metric: str, k: int) -> None:
    points, _ = sample(5, images=90, dim=3)
    points = np.round(points, 1)
    matrix = reference.similarities(points, points, metric)
    nobody = np.zeros(90, dtype=bool)
    found = nearest_neighbours(points, k=k, metric=metric, block_size=64)
    for row in range(90):
        expected = reference.order(matrix[row], np.arange(90) != row, nobody)[:k]
        np.testing.assert_array_equal(found.indices[row], expected)
    np.testing.assert_allclose(
        found.similarities, np.take_along_axis(matrix, found.indices, axis=1), atol=1e-5 if metric == "dot" else 1e-6
    )


def test_short_galleries_leave_gaps() -> None:
    found = nearest_neighbours(np.eye(3), np.eye(3)[:2], k=4)
    assert found.indices.tolist() == [[0, 1, -1, -1], [1, 0, -1, -1], [0, 1, -1, -1]]
    assert np.isnan(found.similarities[:, 2:]).all()
    with pytest.raises(EvaluationError, match="k=0; give a positive integer"):
        nearest_neighbours(np.eye(3), k=0)


def test_inputs_are_not_changed() -> None:
    points, labels = sample(6)
    for dtype in (np.float32, np.float64):
        given = points.astype(dtype)
        kept = given.copy()
        evaluate_embeddings(given, labels, metric="euclidean")
        evaluate_embeddings(given, labels)
        np.testing.assert_array_equal(given, kept)
