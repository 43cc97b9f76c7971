"""The short way through a graph gives what the long one gives, list by list."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from proxemics.search import Index, Items, ModelKey
from proxemics.search.local import plan

ROWS, DIM = 4000, 24


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("lost", [(), (7, 100)])
def test_short_and_long_way_agree(
    dtype: str, lost: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "FEW", 100)
    generator = np.random.default_rng(0)
    rows = generator.standard_normal((ROWS, DIM)).astype(np.float32)
    rows[50:60] = rows[49]  # equal rows come back in the order of their ids
    ids = [f"{number:05d}" for number in generator.permutation(ROWS)]
    items = Items.make(ids, rows)
    with Index.create(str(tmp_path / "index"), ModelKey(model="m", dim=DIM), kind="hnsw", dtype=dtype) as index:
        index.add(items)
        index.compact()
        snapshot = index.snapshot  # type: ignore[attr-defined]
        graph = snapshot.graph
        graph.facts = graph.facts.model_copy(update={"unreached": lost})
        asked = np.concatenate([items.vectors[[7, 49, 52, 100]], items.vectors[:200]]).astype(np.float32)
        asked[4:] += np.float32(0.05) * generator.standard_normal((200, DIM)).astype(np.float32)
        asked /= np.linalg.norm(asked, axis=1, keepdims=True)

        def names(slots: list[int]) -> list[str]:
            return [ids[slot] for slot in slots]

        for k in (1, 5, 10):
            fetch = 2 * k if dtype == "int8" else k
            slots, _ = graph.search(asked, fetch)
            long = plan._complete(snapshot, graph, asked, k, slots, None, names)
            calls: list[int] = []
            whole = plan._complete

            def counted(*given: object, calls: list[int] = calls, whole: object = whole) -> object:
                calls.append(len(given[2]))  # type: ignore[arg-type]
                return whole(*given)  # type: ignore[operator]

            with monkeypatch.context() as patch:
                patch.setattr(plan, "_complete", counted)
                short = plan.nearest(snapshot, asked, k, matching=None, names=names)
            assert sum(calls) < 60  # most lists need no second look
            for mine, other in zip(short, long, strict=True):
                assert list(mine[0]) == list(other[0])
                np.testing.assert_allclose(mine[1], other[1], rtol=0, atol=3e-7)
