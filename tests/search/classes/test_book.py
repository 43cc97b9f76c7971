"""The class book: exact sums, whatever the order and the portions in which pictures come."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxemics.core.errors import SearchError
from proxemics.search.classes import ClassBook
from proxemics.search.manifest import ModelKey

KEY = ModelKey(model="a" * 64, preprocess="p", dim=5)


def vectors(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, 5)) + 0.5


@given(cuts=st.lists(st.integers(0, 30), max_size=4), seed=st.integers(0, 100), weighted=st.booleans())
@settings(max_examples=40, deadline=None)
def test_portions_and_order_do_not_matter(cuts: list[int], seed: int, weighted: bool) -> None:
    generator = np.random.default_rng(seed)
    rows, names = vectors(30, seed), [f"c{one}" for one in generator.integers(0, 4, 30)]
    lengths = generator.uniform(1, 9, 30)
    weighting = "length" if weighted else "equal"
    whole = ClassBook(KEY, weighting=weighting)
    whole.enrol(names, rows, lengths)
    parts, order = ClassBook(KEY, weighting=weighting), generator.permutation(30)
    for part in np.split(order, sorted(cuts)):
        parts.enrol([names[one] for one in part], rows[part], lengths[part])
    assert parts.names == whole.names == sorted(set(names))
    np.testing.assert_allclose(parts.centroids(), whole.centroids(), atol=1e-12)
    np.testing.assert_array_equal(parts.counts, whole.counts)
    for name in whole.names:
        assert parts[name].resultant_length == pytest.approx(whole[name].resultant_length, abs=1e-12)


def test_the_centroid_is_the_weighted_mean_direction() -> None:
    rows, weights = vectors(6), np.array([1.0, 2, 3, 4, 5, 6])
    units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    for weighting, used in (("equal", np.ones(6)), ("length", weights)):
        book = ClassBook(KEY, weighting=weighting)
        book.enrol(["a"] * 6, rows * 7, weights)
        mean = used @ units / used.sum()
        np.testing.assert_allclose(book["a"].centroid, mean / np.linalg.norm(mean), atol=1e-7)
        assert book["a"].resultant_length == pytest.approx(np.linalg.norm(mean), abs=1e-7)
        assert book["a"].count == 6


def test_added_and_extended_classes_are_told_apart() -> None:
    book = ClassBook(KEY)
    assert book.enrol(["b", "a", "b"], vectors(3)).added == ("b", "a")
    report = book.enrol(["b", "c"], vectors(2, 1))
    assert (report.added, report.extended) == (("c",), ("b",))
    assert (book.names, book.counts.tolist(), len(book), "a" in book) == (["a", "b", "c"], [1, 3, 1], 3, True)


def test_forgetting_equals_never_having_enrolled() -> None:
    rows, names = vectors(9), list("abcabcabc")
    book, without = ClassBook(KEY), ClassBook(KEY)
    book.enrol(names, rows)
    without.enrol([one for one in names if one != "b"], rows[[one != "b" for one in names]])
    assert book.forget(["b"]) == ["b"]
    np.testing.assert_array_equal(book.centroids(), without.centroids())
    with pytest.raises(SearchError, match="No class 'b' is enrolled"):
        book.forget(["a", "b"])
    assert book.names == ["a", "c"]  # none was removed


def test_copies_of_a_class_are_reported() -> None:
    book = ClassBook(KEY)
    report = book.enrol(["cat", "dog"], np.eye(5)[:2], threshold=0.9)
    assert report.near == ()
    report = book.enrol(["kitten"], [[1, 0.1, 0, 0, 0]], threshold=0.9)
    assert report.near[0][:2] == ("kitten", "cat")
    assert report.near[0][2] == pytest.approx(1 / np.sqrt(1.01))
    assert book.enrol(["puppy"], [[0, 1, 0, 0, 0]]).near == ()  # nothing to compare with


@pytest.mark.parametrize(
    ("names", "rows", "words"),
    [
        (["unknown"], np.ones((1, 5)), "is the answer where no class fits"),
        ([" "], np.ones((1, 5)), "cannot be the name of a class"),
        (["a\nb"], np.ones((1, 5)), "cannot be the name of a class"),
        (["\u200b \u200f"], np.ones((1, 5)), "cannot be the name of a class"),
        (["\u200funknown "], np.ones((1, 5)), "is the answer where no class fits"),
        (["a\u202eb"], np.ones((1, 5)), "cannot be the name of a class"),
        (["a\udc80"], np.ones((1, 5)), "cannot be the name of a class"),
        (["a" * 513], np.ones((1, 5)), "cannot be the name of a class"),
        (["a"], np.ones((1, 4)), r"give \(1, 5\)"),
        (["a", "b"], np.ones((1, 5)), r"give \(2, 5\)"),
        (["a"], np.zeros((1, 5)), "Vector 0 is zero"),
        (["a", "b", "b"], np.array([[1.0, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, -1, 0, 0, 0]]), "'b' cancel each other"),
    ],
)
def test_what_is_refused_leaves_the_book_as_it_was(names: list[str], rows: np.ndarray, words: str) -> None:
    book = ClassBook(KEY)
    book.enrol(["a"], [[1, 2, 3, 4, 5]])
    before = book["a"]
    with pytest.raises(SearchError, match=words):
        book.enrol(names, rows)
    assert book.names == ["a"]
    assert book["a"] is before


def test_lengths_are_needed_where_they_count() -> None:
    book = ClassBook(KEY, weighting="length")
    for lengths, words in ((None, "give lengths"), ([0.0], "give 1 positive"), ([1.0, 2.0], "give 1 positive")):
        with pytest.raises(SearchError, match=words):
            book.enrol(["a"], np.ones((1, 5)), lengths)


def test_another_model_is_refused() -> None:
    book = ClassBook(KEY)
    for change, words in (
        (
            {"model": "b" * 64},
            "The class book holds vectors of model aaaaaaaaaaaa and the pictures come from bbbbbbbbbbbb",
        ),
        ({"preprocess": "q"}, "was built with preprocessing p and the pictures were prepared with q"),
        ({"dim": 6}, "The class book holds vectors of length 5, and the pictures have 6"),
    ):
        with pytest.raises(SearchError, match=words):
            book.enrol(["a"], np.ones((1, 5)), key=KEY.model_copy(update=change))
    book.enrol(["a"], np.ones((1, 5)), key=KEY)
