"""The answer for a picture: the nearest centroid, a density, or none."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from proxemics.core.errors import SearchError
from proxemics.evaluation.operating_point import ClassThreshold, CountThreshold, Rate, Threshold
from proxemics.methods.probabilistic import sample_vmf, vmf_log_normalizer
from proxemics.search.classes import UNKNOWN, ClassBook, decide
from proxemics.search.classes.decide import gallery_warning, log_predictive
from proxemics.search.manifest import ModelKey

KEY = ModelKey(model="a" * 64, preprocess="p", dim=16)


def book_of(classes: int = 8, each: int = 4, seed: int = 0) -> tuple[ClassBook, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), each)
    rows = generator.normal(size=(classes, 16))[labels] + 0.8 * generator.normal(size=(len(labels), 16))
    book = ClassBook(KEY)
    book.enrol([f"c{one}" for one in labels], rows)
    return book, rows, labels


def identify_at(threshold: float, **more: object) -> Threshold:
    return Threshold(
        kind="identify", target=0.01, threshold=threshold, interval=(threshold, threshold), level=0.95,
        false_match=Rate(value=0.01), miss=Rate(value=0.1), negatives=100, positives=100, pictures=100, classes=20,
        **more,
    )  # fmt: skip


def test_it_is_the_nearest_centroid() -> None:
    book, rows, _ = book_of()
    queries = np.random.default_rng(1).normal(size=(50, 16))
    units = queries / np.linalg.norm(queries, axis=1, keepdims=True)
    cosines = units @ book.centroids().T
    found = decide(book, queries, None, key=KEY)
    for row, one in zip(cosines, found, strict=True):
        order = np.argsort(-row)
        assert (one.label, one.best, one.second) == (f"c{order[0]}", f"c{order[0]}", f"c{order[1]}")
        assert one.score == pytest.approx(row[order[0]], abs=1e-6)
        assert one.margin == pytest.approx(row[order[0]] - row[order[1]], abs=1e-6)
        assert (one.known, one.threshold, one.probability) == (True, None, None)
    assert [one.label for one in decide(book, rows * 3, None)] == [one.label for one in decide(book, rows, None)]


def test_below_the_threshold_a_picture_is_unknown() -> None:
    book, _, _ = book_of()
    query = book.centroids()[2]
    score = decide(book, query[None], None)[0].score
    assert decide(book, query[None], score)[0].label == "c2"  # reaching it is enough
    low = decide(book, query[None], score + 1e-6)[0]
    assert (low.label, low.best, low.known) == (UNKNOWN, "c2", False)


def test_the_threshold_follows_the_number_of_pictures_and_the_class() -> None:
    book = ClassBook(KEY)
    book.enrol(["one"] + ["five"] * 5, np.eye(16)[[0, 1, 1, 1, 1, 1]])
    counts = [
        CountThreshold(pictures=n, threshold=t, interval=(t, t), false_match=Rate(value=0.01), miss=Rate(value=0.1))
        for n, t in ((1, 0.5), (5, 0.7))
    ]
    query = [[1, 0] + [0] * 14, [0, 1] + [0] * 14, [0.6, 0, 0.8] + [0] * 13, [0, 0.6, 0.8] + [0] * 13]
    found = decide(book, query, identify_at(0.7, by_count=tuple(counts)))
    assert [one.threshold for one in found] == [0.5, 0.7, 0.5, 0.7]
    assert [one.label for one in found] == ["one", "five", "one", UNKNOWN]
    own = {"five": ClassThreshold(threshold=0.3, own_share=1, negatives=9, false_match=0)}
    assert decide(book, query[3:], identify_at(0.7, per_class=own))[0].label == "five"


def test_a_single_class_has_no_runner_up() -> None:
    book = ClassBook(KEY)
    book.enrol(["only"], np.eye(16)[:1])
    found = decide(book, np.eye(16)[:2], 0.5)
    assert [(one.label, one.second, one.margin) for one in found] == [("only", None, None), (UNKNOWN, None, None)]


def test_the_predictive_density_is_an_integral_over_the_mean_direction() -> None:
    """Monte Carlo: draw the mean from its posterior, and average the density of the picture around it."""
    book, rows, labels = book_of()
    kappa = book.shared_concentration()
    assert kappa is not None
    units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    query = units[:3]
    found = log_predictive(book, (query @ book.centroids().T).clip(-1, 1))
    generator = torch.Generator().manual_seed(0)
    for code in (0, 1, 5):
        total = units[labels == code].sum(axis=0)
        strength = torch.tensor([kappa * np.linalg.norm(total)]).double()
        mean = torch.from_numpy(total / np.linalg.norm(total))[None]
        draws = sample_vmf(mean, strength, 50_000, generator=generator)[:, 0]
        density = vmf_log_normalizer(torch.tensor(kappa).double(), 16, centred=True)
        values = torch.logsumexp(density + kappa * draws @ torch.from_numpy(query).T, dim=0) - np.log(50_000)
        np.testing.assert_allclose(found[:, code], values.numpy(), atol=0.1)


def test_with_equal_counts_the_density_nearly_orders_like_the_cosine_and_one_picture_is_believed_less() -> None:
    book, rows, labels = book_of(each=6)
    found = decide(book, rows, None, by="vmf")
    assert np.mean([one.label == f"c{code}" for one, code in zip(found, labels, strict=True)]) > 0.9
    assert all(0 < one.probability <= 1 for one in found)
    lopsided = ClassBook(KEY)
    lopsided.enrol(["many"] * 8 + ["one"], np.concatenate([book.centroids()[:1].repeat(8, 0), np.eye(16)[:1]]))
    lopsided.enrol(["many"] * 8, rows[:8] + 5 * book.centroids()[:1])
    middle = lopsided["many"].centroid + np.eye(16)[0]  # as near to one as to the other
    answer = decide(lopsided, middle[None], None, by="vmf")[0]
    assert (answer.best, round(abs(answer.margin), 6)) == ("one", 0)  # the vague class takes what is far from both
    near = lopsided["many"].centroid + 0.5 * np.eye(16)[0]
    assert decide(lopsided, near[None], None, by="vmf")[0].best == "many"


def test_lengths_are_the_concentrations_in_a_book_that_weighs_by_them() -> None:
    book = ClassBook(KEY, weighting="length")
    book.enrol(["a", "b"], np.eye(16)[:2], [40.0, 10.0])
    query = np.eye(16)[0] + np.eye(16)[1]
    with pytest.raises(SearchError, match="lengths of the raw embeddings of the 1 pictures"):
        decide(book, query[None], None, by="vmf")
    assert decide(book, query[None], None, by="vmf", lengths=[30.0])[0].probability > 0.5


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rows": np.ones((1, 4))}, r"give \(N, 16\)"),
        ({"key": KEY.model_copy(update={"model": "b" * 64})}, "The class book holds vectors of model"),
        ({"book": ClassBook(KEY)}, "No class is enrolled; add one with `proxemics enrol`"),
        ({"by": "vmf"}, "Every class has a single picture"),
    ],
)
def test_what_cannot_be_answered(change: dict, words: str) -> None:
    book = ClassBook(KEY)
    book.enrol(["a", "b"], np.eye(16)[:2])
    arguments = {"book": book, "rows": np.ones((1, 16)), "key": KEY, "by": "centroid", **change}
    with pytest.raises(SearchError, match=words):
        decide(arguments["book"], arguments["rows"], None, key=arguments["key"], by=arguments["by"])


def test_a_book_that_outgrew_its_gallery_is_told() -> None:
    book, _, _ = book_of()
    assert gallery_warning(book, None) is gallery_warning(book, 0.5) is None
    assert gallery_warning(book, identify_at(0.5, gallery=7)) is None
    assert "calibrated for 6 enrolled classes and there are 8" in str(
        gallery_warning(book, identify_at(0.5, gallery=6))
    )
