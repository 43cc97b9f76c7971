"""Comparing two indexes finds what differs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from proxemics.core.errors import SearchError
from proxemics.search import Index, Items, ModelKey
from proxemics.search.checks import sample_items
from proxemics.search.migrate import compare_indexes, copy_rows

KEY = ModelKey(model="f" * 64, dim=16)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Index, Index]:
    """An index and its copy of another kind."""
    one = Index.create(str(tmp_path / "one"), KEY)
    other = Index.create(str(tmp_path / "other"), KEY, kind="hnsw", dtype="int8")
    one.add(sample_items(200))
    assert copy_rows(one, other) == 200
    return one, other


def test_a_copy_is_the_same(pair: tuple[Index, Index]) -> None:
    parity = compare_indexes(*pair)
    assert (parity.count, parity.copied, parity.sampled, parity.agreement, parity.problems) == (200, 200, 100, 1.0, ())


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda index, row: index.remove(row.ids), "has 200 rows and"),
        (lambda index, row: index.upsert(Items.make(row.ids, row.vectors, [{}])), "The metadata of '00007' differ"),
        (lambda index, row: index.upsert(Items.make(row.ids, -row.vectors, row.meta)), "The vectors of '00007' differ"),
        (lambda index, row: (index.remove(row.ids), index.add(Items.make(["x"], row.vectors))), "stands against"),
    ],
)
def test_a_difference_is_told(pair: tuple[Index, Index], change: object, told: str) -> None:
    one, other = pair
    change(other, other.get(["00007"]))  # type: ignore[operator]  # a function
    assert told in " ".join(compare_indexes(one, other).problems)


def test_only_what_is_missing_or_differs_is_written(pair: tuple[Index, Index], monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = pair
    row = other.get(["00001", "00002", "00003"])
    other.remove(["00001"])
    other.upsert(Items.make(["00002"], row.vectors[1:2], [{"label": "other"}]))
    other.upsert(Items.make(["00003"], -row.vectors[2:], [row.meta[2]]))
    written: list[str] = []
    real = type(other).upsert
    monkeypatch.setattr(type(other), "upsert", lambda self, items: written.extend(items.ids) or real(self, items))
    assert copy_rows(one, other) == 200
    assert written == ["00001", "00002", "00003"]
    assert compare_indexes(one, other).problems == ()


def test_rows_of_another_model_are_not_copied(tmp_path: Path, pair: tuple[Index, Index]) -> None:
    with Index.create(str(tmp_path / "x"), KEY.model_copy(update={"model": "0" * 64})) as index:
        with pytest.raises(SearchError, match="model 000000000000 and the query comes from ffffffffffff"):
            copy_rows(pair[0], index)
        assert index.count() == 0


def test_empty_indexes_are_the_same(tmp_path: Path) -> None:
    with Index.create(str(tmp_path / "a"), KEY) as one, Index.create(str(tmp_path / "b"), KEY) as other:
        assert compare_indexes(one, other).problems == ()
        other.add(Items.make(["a"], np.ones((1, 16))))
        assert "has 0 rows and" in compare_indexes(one, other).problems[0]
