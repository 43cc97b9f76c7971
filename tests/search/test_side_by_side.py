"""The back-ends beside each other: one moved into the next, and the same changes to all (user pains, scenario 9)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from servers import Postgres, running_postgres

from proxemics.search import Index, Items, ModelKey
from proxemics.search.checks import sample_items
from proxemics.search.migrate import compare_indexes, copy_rows
from proxemics.search.where import Condition

pytest.importorskip("pymilvus", reason="pymilvus is not installed")
pytest.importorskip("milvus_lite", reason="milvus-lite is not installed (there is none for Windows)")


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as server:
        yield server


def test_an_index_comes_back_as_it_went_through_all_back_ends(postgres: Postgres, tmp_path: Path) -> None:
    key = ModelKey(model="a" * 64, preprocess="224", dim=16)
    addresses = [
        str(tmp_path / "first"), postgres.url("moved"), f"milvus:{tmp_path / 'moved.db'}?index=moved",
        str(tmp_path / "last"),
    ]  # fmt: skip
    indexes = [Index.create(address, key) for address in addresses]
    indexes[0].add(sample_items(400))
    for source, target in pairwise(indexes):
        assert copy_rows(source, target) == 400
        parity = compare_indexes(source, target)
        assert (parity.copied, parity.agreement, parity.problems) == (400, 1.0, ())
    assert compare_indexes(indexes[0], indexes[-1]).problems == ()

    # The same changes, then the same answers, also after opening again.
    other = sample_items(60, seed=1)
    for index in indexes:
        gone = [f"{row:05d}" for row in range(400) if row % 10 == 1]
        assert index.remove(gone) == len(gone)
        index.upsert(Items.make(other.ids, other.vectors, other.meta))
        index.close()
    queries = sample_items(20, seed=2).vectors
    answers = []
    for number, address in enumerate(addresses):
        with Index.open(address, read_only=True) as index:
            assert index.count() == 366, number
            rare = index.search(queries, 4, where=[Condition("label", "eq", "class 3"), Condition("rank", "lt", 100)])
            answers.append([(hits.ids, np.round(hits.scores, 4).tolist()) for hits in index.search(queries, 10) + rare])
    assert answers[0] == answers[3]
    for found in answers[1:3]:
        for (ids, scores), (its_ids, its_scores) in zip(answers[0], found, strict=True):
            assert set(ids) == set(its_ids)
            np.testing.assert_allclose(scores, its_scores, atol=2e-4)


@pytest.mark.slow
def test_long_vectors_are_moved_in_parts_that_fit_a_message(tmp_path: Path) -> None:
    key = ModelKey(model="a" * 64, preprocess="224", dim=3000)
    with (
        Index.create(str(tmp_path / "long"), key) as source,
        Index.create(f"milvus:{tmp_path / 'long.db'}?index=long", key) as target,
    ):
        vectors = np.random.default_rng(0).standard_normal((5000, 3000), dtype=np.float32)
        source.add(Items.make([f"{row:05d}" for row in range(5000)], vectors))
        assert copy_rows(source, target) == 5000
        assert target.count() == 5000
