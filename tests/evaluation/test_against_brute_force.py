"""Every metric equals a float64 brute force with the definitions written out, under every kind of trouble."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxemics.evaluation import evaluate_embeddings

KS = (1, 2, 5, 10)


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("evaluation_reference", Path(__file__).with_name("reference.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


reference = _load()


def random_set(seed: int, classes: int = 30, largest: int = 12, dim: int = 8) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    sizes = generator.integers(1, largest + 1, classes)
    labels = generator.permutation(np.repeat(np.arange(classes), sizes))
    centres = generator.normal(size=(classes, dim))
    return (centres[labels] + generator.normal(size=(len(labels), dim))).astype(np.float32), labels


def compare(result, expected) -> None:
    for name, values in expected.items():
        if name != "order":
            np.testing.assert_allclose(result.per_query[name], values, atol=1e-12, err_msg=name)
            assert result[name] == pytest.approx(np.nanmean(values), abs=1e-12)


@pytest.mark.parametrize("metric", ["cosine", "euclidean", "dot"])
@pytest.mark.parametrize("precision", ["bfloat16", "float32", "float64"])
def test_random_sets(metric: str, precision: str) -> None:
    """User-pains 50: class sizes of one set from 1 to 50."""
    embeddings, labels = random_set(0, classes=40, largest=50)
    wanted = {"precision_at": (1, 7), "map_horizon": 20} if precision != "float64" else {}
    result = evaluate_embeddings(
        embeddings, labels, recall_at=KS, metric=metric, precision=precision, block_size=96, bootstrap=0, **wanted
    )
    expected = reference.evaluate(
        embeddings,
        labels,
        ks=KS,
        metric=metric,
        precision_at=wanted.get("precision_at", ()),
        horizon=wanted.get("map_horizon"),
    )
    compare(result, expected)
    assert result.num_lone == int(np.isnan(expected["map_at_r"]).sum()) > 0


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_separate_gallery(metric: str) -> None:
    """User-pains 63: another set, such as another domain, is the gallery by one argument."""
    query, labels = random_set(1)
    gallery, gallery_labels = random_set(2)
    result = evaluate_embeddings(query, labels, gallery, gallery_labels, recall_at=KS, metric=metric, bootstrap=0)
    compare(result, reference.evaluate(query, labels, gallery, gallery_labels, ks=KS, metric=metric))


def test_ties_and_bounds() -> None:
    """Rounded embeddings tie often: values follow the stated rule, bounds the best and the worst order."""
    embeddings, labels = random_set(3, dim=3)
    embeddings = np.round(embeddings / 3)
    embeddings[np.abs(embeddings).sum(axis=1) == 0, 0] = 1
    result = evaluate_embeddings(embeddings, labels, recall_at=KS, bootstrap=0)
    compare(result, reference.evaluate(embeddings, labels, ks=KS))
    assert result.num_ties > 10
    for side, reading in enumerate(("pessimistic", "optimistic")):
        means = reference.means(reference.evaluate(embeddings, labels, ks=KS, reading=reading))
        for name in ("recall_at_1", "map_at_r", "r_precision"):
            assert result.bounds[name][side] == pytest.approx(means[name], abs=1e-12)


def test_duplicates_under_another_label() -> None:
    """User-pains 48: the own row is left out, not the first neighbour; permuting rows changes nothing but ties."""
    generator = np.random.default_rng(4)
    half = generator.normal(size=(20, 6)).astype(np.float32)
    embeddings = np.concatenate([half, half])
    labels = np.concatenate([np.arange(20) // 2, 100 + np.arange(20) // 2])
    result = evaluate_embeddings(embeddings, labels, recall_at=(1,), bootstrap=0)
    assert result["recall_at_1"] == 0.0
    order = generator.permutation(40)
    again = evaluate_embeddings(embeddings[order], labels[order], recall_at=(1,), bootstrap=0)
    assert dict(again) == pytest.approx(dict(result))


def test_collapsed_embeddings_have_bounds_of_nothing_and_everything() -> None:
    labels = np.arange(60) // 6
    with pytest.warns(UserWarning, match="collapsed"):
        result = evaluate_embeddings(np.ones((60, 4), dtype=np.float32), labels, recall_at=(1,), bootstrap=0)
    assert result.bounds["recall_at_1"] == (0.0, 1.0)
    assert result.num_ties == 60


@pytest.mark.parametrize("offset", [2**24, 2**40])
def test_large_labels_and_text_labels(offset: int) -> None:
    """User-pains 2 and 54: labels of any size or kind, never through floating point."""
    embeddings, labels = random_set(5)
    expected = dict(evaluate_embeddings(embeddings, labels, recall_at=KS, bootstrap=0))
    assert dict(evaluate_embeddings(embeddings, labels + offset, recall_at=KS, bootstrap=0)) == expected
    names = [f"class {label:03d}" for label in labels]
    assert dict(evaluate_embeddings(torch.from_numpy(embeddings), names, recall_at=KS, bootstrap=0)) == expected


def test_class_of_three_thousand() -> None:
    """User-pains 55: R = 2,999 needs no special path."""
    generator = np.random.default_rng(6)
    labels = np.concatenate([np.zeros(3000, dtype=int), generator.integers(1, 20, 500)])
    embeddings = generator.normal(size=(3500, 4)).astype(np.float32)
    result = evaluate_embeddings(embeddings, labels, recall_at=(1, 1000), bootstrap=0)
    some = generator.choice(3500, 60, replace=False)
    similarity = reference.similarities(embeddings[some], embeddings)
    for i, row in enumerate(some):
        allowed = np.arange(3500) != row
        items = reference.order(similarity[i], allowed, labels == labels[row])
        rel = (labels[items] == labels[row]).astype(float)
        r = int(rel.sum())
        assert result.per_query["r_precision"][row] == pytest.approx(rel[:r].mean(), abs=1e-12)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 10_000), scale=st.floats(0.01, 100))
def test_order_of_rows_and_length_of_vectors_do_not_matter(seed: int, scale: float) -> None:
    embeddings, labels = random_set(seed, classes=10)
    order = np.random.default_rng(seed).permutation(len(labels))
    first = evaluate_embeddings(embeddings, labels, recall_at=KS, bootstrap=0)
    second = evaluate_embeddings(embeddings[order] * np.float32(scale), labels[order], recall_at=KS, bootstrap=0)
    assert dict(second) == pytest.approx(dict(first), abs=1e-9)


def test_neighbour_lists_are_the_ranking() -> None:
    """User-pains 64: the neighbours behind a metric can be dumped."""
    embeddings, labels = random_set(7)
    result = evaluate_embeddings(embeddings, labels, recall_at=KS, neighbours=8, bootstrap=0)
    expected = reference.evaluate(embeddings, labels, ks=KS)["order"]
    np.testing.assert_array_equal(result.per_query["neighbours"], [items[:8] for items in expected])
    unit = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    similarity = (unit * unit[result.per_query["nearest"]]).sum(axis=1)
    np.testing.assert_allclose(result.per_query["similarity"], similarity, atol=1e-6)


def test_agrees_with_pytorch_metric_learning() -> None:
    calculator = pytest.importorskip("pytorch_metric_learning.utils.accuracy_calculator").AccuracyCalculator
    from pytorch_metric_learning.distances import CosineSimilarity
    from pytorch_metric_learning.utils.inference import CustomKNN

    embeddings, labels = random_set(8, classes=25, largest=9)
    knn = CustomKNN(CosineSimilarity())
    names = ("precision_at_1", "mean_average_precision_at_r", "r_precision")
    found = calculator(include=names, k=len(labels) - 1, knn_func=knn, device=torch.device("cpu")).get_accuracy(
        torch.from_numpy(embeddings), torch.from_numpy(labels)
    )
    ours = evaluate_embeddings(embeddings, labels, recall_at=(1,), bootstrap=0)
    assert ours["recall_at_1"] == pytest.approx(found["precision_at_1"], abs=1e-6)
    assert ours["map_at_r"] == pytest.approx(found["mean_average_precision_at_r"], abs=1e-6)
    assert ours["r_precision"] == pytest.approx(found["r_precision"], abs=1e-6)
