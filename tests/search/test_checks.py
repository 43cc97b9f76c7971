"""The contract check finds what is wrong with a back-end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from proxemics.core.errors import SearchError
from proxemics.search import Condition, Hits, Index, Items, ModelKey
from proxemics.search.checks import check_index
from proxemics.search.local.index import LocalIndex

Search = Callable[..., list[Hits]]


def broken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, method: str, change: Callable[..., object]) -> str:
    """Break one method of the embedded index and return what the check says."""
    original = getattr(LocalIndex, method)
    monkeypatch.setattr(LocalIndex, method, lambda self, *a, **k: change(original, self, *a, **k))
    numbers = count()
    with pytest.raises(SearchError) as told:
        check_index(lambda key: Index.create(str(tmp_path / str(next(numbers))), key))
    return str(told.value)


def distances(search: Search, self: Index, *arguments: object, **options: object) -> list[Hits]:
    return [Hits(h.ids, 1 - h.scores, h.meta, h.missing) for h in search(self, *arguments, **options)]


def unfiltered(search: Search, self: Index, vectors: NDArray[np.float32], k: int = 10, **options: object) -> list[Hits]:
    """Filter after the search: fewer rows come back."""
    where: Sequence[Condition] = options.pop("where", ())  # type: ignore[assignment]  # what search was given
    answers = []
    for hits in search(self, vectors, k, **options):
        kept = [n for n, name in enumerate(hits.ids) if all(c.holds({**hits.meta[n], "id": name}) for c in where)]
        answers.append(
            Hits([hits.ids[n] for n in kept], hits.scores[kept], [hits.meta[n] for n in kept], k - len(kept))
        )
    return answers


def forgetful(add: Callable[..., int], self: Index, items: Items) -> int:
    add(self, Items(items.ids[:-1], items.vectors[:-1], items.meta[:-1]))
    return len(items)


def careless(add: Callable[..., int], self: Index, items: Items) -> int:
    return sum(self.upsert(items))


def keyless(search: Search, self: Index, *arguments: object, **options: object) -> list[Hits]:
    options.pop("key", None)
    return search(self, *arguments, **options)


def test_a_distance_instead_of_a_score_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "Contract 'score': score(x, x) is" in broken(monkeypatch, tmp_path, "search", distances)


def test_filtering_afterwards_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "Contract 'filter': fewer rows came back" in broken(monkeypatch, tmp_path, "search", unfiltered)


def test_lost_rows_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "Contract '" in broken(monkeypatch, tmp_path, "add", forgetful)


def test_overwriting_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "an id that is taken was accepted" in broken(monkeypatch, tmp_path, "add", careless)


def test_answering_another_model_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "a query of another model was accepted" in broken(monkeypatch, tmp_path, "search", keyless)


def test_a_crash_is_told_with_its_kind(tmp_path: Path) -> None:
    def make(key: ModelKey) -> Index:
        raise RuntimeError("no such server")

    with pytest.raises(SearchError, match="Contract 'empty': raised RuntimeError: no such server"):
        check_index(make)
