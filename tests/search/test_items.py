"""Rows on their way in."""

from __future__ import annotations

import numpy as np
import pytest

from proxemics.core.errors import SearchError
from proxemics.search import Items
from proxemics.search.items import unit_rows


def test_vectors_of_any_length_become_unit_vectors() -> None:
    rows = np.random.default_rng(0).standard_normal((50, 7)) * np.logspace(-30, 30, 50)[:, None]
    units = unit_rows(rows)
    assert units.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(units.astype(np.float64), axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(units, rows / np.linalg.norm(rows, axis=1, keepdims=True), atol=1e-7)


def test_unit_vectors_are_kept_bit_for_bit() -> None:
    units = unit_rows(np.random.default_rng(1).standard_normal((2000, 33)))
    again = unit_rows(units)
    assert again.tobytes() == units.tobytes()
    one_off = units.copy()
    one_off[3] *= 1.01
    np.testing.assert_allclose(unit_rows(one_off), units, atol=2e-7)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_vector_that_is_no_direction_is_refused_with_its_row(bad: float) -> None:
    rows = np.ones((4, 3))
    rows[2, 1] = bad
    with pytest.raises(SearchError, match="Vector 2 is zero or not finite"):
        unit_rows(rows)
    with pytest.raises(SearchError, match="Vector 1 is zero"):
        unit_rows(np.array([[1.0, 0], [0, 0]]))


@pytest.mark.parametrize("shape", [(3,), (3, 4, 5), (2, 5), (3, 4)])
def test_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(SearchError, match=r"give \(3, 5\), one row for each picture"):
        unit_rows(np.ones(shape), count=3, dim=5)


@pytest.mark.parametrize(
    ("ids", "told"),
    [
        (["a", "a"], "stands twice"),
        (["", "b"], "is empty"),
        (["x" * 513, "b"], "longer than 512"),
        (["a\0b", "b"], "zero"),
    ],
)
def test_ids_that_name_no_row_are_refused(ids: list[str], told: str) -> None:
    with pytest.raises(SearchError, match=told):
        Items.make(ids, np.eye(2))


def test_metadata_must_be_plain_and_of_the_same_number() -> None:
    with pytest.raises(SearchError, match="list is not a plain value"):
        Items.make(["a"], [[1.0]], [{"tags": ["x"]}])  # type: ignore[dict-item]  # what is tested
    with pytest.raises(SearchError, match="nan is no number that JSON knows"):
        Items.make(["a"], [[1.0]], [{"price": float("nan")}])
    with pytest.raises(SearchError, match="2 ids came with 1 rows of metadata"):
        Items.make(["a", "b"], np.eye(2), [{}])


def test_no_rows_are_fine() -> None:
    items = Items.make([], [])
    assert (len(items), items.meta) == (0, [])
    assert unit_rows(np.empty((0, 4)), dim=4).shape == (0, 4)
