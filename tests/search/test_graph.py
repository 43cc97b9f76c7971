"""Graphs of an index folder: how much room 8-bit rows save, and graphs with another number of links."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from proxemics.search import Index, Items, ModelKey
from proxemics.search.local import graph

ROWS = 4000


def points(dim: int) -> np.ndarray:
    """Groups of about ten near rows on a surface of 16 dimensions."""
    random = np.random.default_rng(dim)
    centres = random.standard_normal((ROWS // 10, 16))
    latent = centres[random.integers(0, len(centres), ROWS)] + 0.3 * random.standard_normal((ROWS, 16))
    return np.tanh(latent @ random.standard_normal((16, dim)) / 4)


def build(path: Path, rows: np.ndarray, dtype: str) -> int:
    """Build an index with a graph, and return the bytes of the graph."""
    key = ModelKey(model="c" * 64, preprocess="p", dim=rows.shape[1])
    with Index.create(str(path), key, kind="hnsw", dtype=dtype) as index:  # type: ignore[arg-type]  # a parameter
        index.add(Items.make([f"{row:05d}" for row in range(len(rows))], rows))
        index.compact()
    return next(path.glob("graph-*")).stat().st_size


def recall(path: Path, queries: np.ndarray) -> float:
    with Index.open(str(path), read_only=True) as index:
        found = index.search(queries, 10)
        exact = index.search_exactly(queries, 10)  # type: ignore[attr-defined]  # of the embedded index
        return float(np.mean([len(set(one.ids) & set(two.ids)) / 10 for one, two in zip(found, exact, strict=True)]))


@pytest.mark.parametrize("dim", [128, 512])
def test_a_graph_of_8_bits_takes_a_third_of_the_room_and_finds_the_neighbours(tmp_path: Path, dim: int) -> None:
    rows = points(dim)
    sizes = {dtype: build(tmp_path / dtype, rows, dtype) for dtype in ("float32", "int8")}
    assert sizes["int8"] <= 0.35 * sizes["float32"]
    queries = rows[:200] + 0.05 * np.random.default_rng(1).standard_normal((200, dim))
    assert recall(tmp_path / "int8", queries) >= 0.95


def test_a_graph_with_other_numbers_of_links_goes_on_working(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = points(128)
    with monkeypatch.context() as earlier:
        earlier.setattr(graph, "connectivity", lambda dim, *, is_int8: 16)
        large = build(tmp_path / "index", rows, "int8")
    assert recall(tmp_path / "index", rows[:200]) >= 0.95
    with Index.open(str(tmp_path / "index")) as index:
        assert index.verify().problems == ()
        index.remove(["00007"])
        index.compact()
    assert next((tmp_path / "index").glob("graph-*")).stat().st_size < 0.9 * large
