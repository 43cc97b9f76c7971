"""The embedded index: the contract, exactness, filters, damage, and moving."""

from __future__ import annotations

import json
import os
import shutil
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proxemics.core.errors import SearchError
from proxemics.search import Condition, Index, Items, ModelKey
from proxemics.search.checks import CHECKS, check_index, scan_exactly
from proxemics.search.items import unit_rows
from proxemics.search.local import compact, plan
from proxemics.search.local.codes import quantise
from proxemics.search.local.graph import unreached
from proxemics.search.local.index import LocalIndex
from proxemics.search.local.layout import MANIFEST
from proxemics.search.local.screens import CodeScreen, empty_tile

DIM = 24
KEY = ModelKey(model="c" * 64, preprocess="p", dim=DIM)


@pytest.fixture(autouse=True)
def with_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scan 8-bit codes on every processor, also where that is slow."""
    monkeypatch.setattr(plan, "codes_pay", lambda: True)


KINDS = [(kind, dtype) for kind in ("exact", "hnsw") for dtype in ("float32", "int8")]


def vectors(rows: int, dim: int = DIM, *, seed: int = 0) -> np.ndarray:
    """Groups of about ten near rows, of every length."""
    random = np.random.default_rng(seed)
    centres = random.standard_normal((max(1, rows // 10), dim))
    points = centres[random.integers(0, len(centres), rows)] + 0.3 * random.standard_normal((rows, dim))
    return points * random.uniform(0.01, 100, (rows, 1))


def names(rows: int) -> list[str]:
    return [f"{row:06d}" for row in range(rows)]


def new(path: Path, kind: str = "exact", dtype: str = "float32", key: ModelKey = KEY) -> LocalIndex:
    return LocalIndex.create(str(path), key, kind=kind, dtype=dtype)  # type: ignore[arg-type]  # parametrised


@pytest.mark.parametrize(("kind", "dtype"), KINDS)
def test_the_contract_holds(tmp_path: Path, kind: str, dtype: str) -> None:
    numbers = count()
    assert check_index(lambda key: new(tmp_path / str(next(numbers)), kind, dtype, key)) == tuple(CHECKS)


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_the_contract_holds_where_small_indexes_use_their_graph(
    tmp_path: Path, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "FEW", 0)
    numbers = count()
    check_index(lambda key: new(tmp_path / str(next(numbers)), "hnsw", dtype, key), recall=0.95)


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize(("rows", "dim", "queries", "k"), [(7000, 24, 3, 10), (3000, 130, 40, 100), (2500, 7, 1, 2500)])
def test_exact_search_equals_a_plain_scan(
    tmp_path: Path, dtype: str, rows: int, dim: int, queries: int, k: int
) -> None:
    items = Items.make(names(rows), vectors(rows, dim))
    asked = vectors(queries, dim, seed=1)
    with new(tmp_path / "i", dtype=dtype, key=KEY.model_copy(update={"dim": dim})) as index:
        index.add(items)
        for hits, (ids, scores) in zip(index.search(asked, k), scan_exactly(items, unit_rows(asked), k), strict=True):
            assert hits.ids == ids
            np.testing.assert_allclose(hits.scores, scores, atol=1e-6)


@pytest.mark.parametrize(("kind", "dtype"), KINDS)
def test_equal_rows_come_in_the_order_of_their_ids_over_tiles(tmp_path: Path, kind: str, dtype: str) -> None:
    """Thousands of equal rows, whose product with a query differs by where in a tile they lie."""
    rows = 5000
    points = vectors(rows)
    points[np.arange(0, rows, 2)] = points[0]
    order = np.random.default_rng(3).permutation(rows)
    known = names(rows)
    items = Items.make([known[n] for n in order], points[order])
    with new(tmp_path / "i", kind, dtype) as index:
        index.add(items)
        for k in (1, 10, 1000):
            (hits,) = index.search(points[:1], k)
            assert hits.ids == known[::2][:k]
            assert len(set(hits.scores.tolist())) == 1


def test_a_filter_of_one_in_a_hundred_still_returns_k(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "FEW", 50)
    rows = 5000
    items = Items.make(names(rows), vectors(rows), [{"label": f"{n % 100}", "half": n % 2} for n in range(rows)])
    for kind, dtype in KINDS:
        with new(tmp_path / f"{kind}{dtype}", kind, dtype) as index:
            index.add(items)
            index.compact()
            for where, least in (
                ([Condition("label", "eq", "7")], 1.0),
                ([Condition("half", "eq", 1)], 0.9),
                ([Condition("label", "in", tuple(str(n) for n in range(0, 100, 10)))], 0.9),
            ):
                asked = unit_rows(vectors(20, seed=5))
                found = index.search(asked, 10, where=where)
                wanted = scan_exactly(items, asked, 10, where)
                assert all(len(hits) == 10 and hits.missing == 0 for hits in found)
                assert all(where[0].holds(meta) for hits in found for meta in hits.meta)
                shared = sum(len(set(hits.ids) & set(ids)) for hits, (ids, _) in zip(found, wanted, strict=True))
                assert shared / 200 >= (1.0 if kind == "exact" else least)


def test_user_pain_83_the_graph_finds_what_a_scan_finds_and_every_row_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "FEW", 100)
    items = Items.make(names(6000), vectors(6000))
    for dtype in ("float32", "int8"):
        with new(tmp_path / dtype, "hnsw", dtype) as index:
            index.add(items)
            index.compact()
            assert index.snapshot.graph is not None
            found = index.verify(300)
            assert (found.self_recall, found.problems) == (1.0, ())
            assert found.recall_at_10 >= 0.99
            asked = items.vectors[:100] + 0.02 * np.random.default_rng(9).standard_normal((100, DIM))
            exact, quick = index.search_exactly(asked), index.search(asked)
            shared = sum(len(set(a.ids) & set(b.ids)) for a, b in zip(exact, quick, strict=True))
            assert shared / 1000 >= 0.95


def test_rows_that_the_graph_never_comes_to_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "FEW", 100)
    items = Items.make(names(6000), vectors(6000), [{"even": row % 2 == 0} for row in range(6000)])
    for dtype in ("float32", "int8"):
        with new(tmp_path / dtype, "hnsw", dtype) as index:
            index.add(items)
            index.compact()
            graph = index.snapshot.graph
            assert graph is not None
            # Some rows are hidden more: they are only in the list of those that no search comes to.
            lost = sorted({*graph.facts.unreached, 10, 11, 5000})
            graph.facts = graph.facts.model_copy(update={"unreached": tuple(lost)})
            search = graph.search

            def blind(
                queries: np.ndarray, k: int, *, expansion: int | None = None, search: Any = search, lost: Any = lost
            ) -> tuple[np.ndarray, np.ndarray]:
                slots, scores = search(queries, k + 3, expansion=expansion)
                for row, seen in enumerate(slots):
                    order = np.argsort(np.isin(seen, lost), kind="stable")
                    slots[row], scores[row] = seen[order], scores[row][order]
                return slots[:, :k], scores[:, :k]

            for shown in (search, blind):  # a search may come to such a row on its way to another
                monkeypatch.setattr(graph, "search", shown)
                for where in ([], [Condition("even", "eq", True)]):
                    asked = items.vectors[:40]
                    exact, quick = index.search_exactly(asked, where=where), index.search(asked, where=where)
                    assert all(len(set(hits.ids)) == len(hits.ids) == 10 for hits in quick)
                    assert [hits.ids[0] for hits in quick] == [hits.ids[0] for hits in exact]
                if dtype == "float32":
                    ids = index.search(items.vectors[[10, 11, 5000]], 1)
                    assert [hits.ids[0] for hits in ids] == ["000010", "000011", "005000"]
            index.remove(["000010"])
            assert "000010" not in index.search(items.vectors[10:11])[0].ids
            index.add(Items.make(["late"], items.vectors[10:11], [{"even": True}]))
            assert index.search(items.vectors[10:11], where=[Condition("even", "eq", True)])[0].ids[0] == "late"


def test_user_pain_84_scores_are_cosines_and_rank_as_a_flat_scan_does(tmp_path: Path) -> None:
    points = vectors(500)
    for kind, dtype in KINDS:
        with new(tmp_path / f"{kind}{dtype}", kind, dtype) as index:
            index.add(Items.make(names(500), points))
            index.compact()
            for row, hits in enumerate(index.search(points[:50] * 1e4, 5)):
                assert hits.ids[0] == names(500)[row]
                assert hits.scores[0] == pytest.approx(1, abs=1e-6)
                unit = unit_rows(points).astype(np.float64)
                assert hits.ids == [names(500)[n] for n in np.argsort(-(unit @ unit[row]), kind="stable")[:5]]


def test_rows_added_after_the_graph_was_built_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "FEW", 100)
    early, late = Items.make(names(3000), vectors(3000)), vectors(200, seed=2)
    with new(tmp_path / "i", "hnsw") as index:
        index.add(early)
        index.compact()
        index.add(Items.make([f"late {n:03d}" for n in range(200)], late))
        index.remove(names(3000)[:500])
        assert index.facts()["rows_after_graph"] == 200
        for n, hits in enumerate(index.search(late, 5)):
            assert hits.ids[0] == f"late {n:03d}"
        assert all(hits.missing == 0 for hits in index.search(early.vectors[:500], 10))
        assert not {name for hits in index.search(early.vectors[:500], 10) for name in hits.ids} & set(names(500))
        index.compact()
        assert index.facts()["rows_after_graph"] == 0
        assert index.search(late[:1], 1)[0].ids == ["late 000"]


def test_compacting_gives_room_back_and_changes_nothing_else(tmp_path: Path) -> None:
    items = Items.make(names(4000), vectors(4000), [{"n": n} for n in range(4000)])
    for kind, dtype in KINDS:
        with new(tmp_path / f"{kind}{dtype}", kind, dtype) as index:
            index.add(items)
            index.compact()
            index.remove(items.ids[::2])
            before = index.facts()["bytes"]
            index.compact()
            assert index.facts()["bytes"] < 0.7 * before
            kept = index.get(items.ids)
            assert kept.ids == items.ids[1::2]
            assert kept.vectors.tobytes() == items.vectors[1::2].tobytes()
            assert kept.meta == items.meta[1::2]
            assert index.verify().problems == ()
        files = {path.name for path in (tmp_path / f"{kind}{dtype}").iterdir()}
        assert not any("-1." in name or "-wal" in name for name in files if name.startswith(("vectors", "codes")))


def test_user_pain_89_queries_of_another_model_are_refused_with_both_fingerprints(tmp_path: Path) -> None:
    with new(tmp_path / "i") as index:
        index.add(Items.make(["a"], np.ones((1, DIM))))
        with pytest.raises(SearchError, match="model cccccccccccc and the query comes from dddddddddddd"):
            index.search(np.ones((1, DIM)), key=KEY.model_copy(update={"model": "d" * 64}))


def test_user_pain_88_a_newer_format_is_refused(tmp_path: Path) -> None:
    new(tmp_path / "i").close()
    path = tmp_path / "i" / MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 2}))
    with pytest.raises(SearchError, match="has format 2, and this version of Proxemics reads up to 1"):
        Index.open(str(tmp_path / "i"))


def test_user_pain_91_the_folder_can_be_moved_and_read_where_it_cannot_be_written(tmp_path: Path) -> None:
    items = Items.make(names(300), vectors(300), [{"label": str(n % 3)} for n in range(300)])
    with new(tmp_path / "here", "hnsw") as index:
        index.add(items)
        index.compact()
        wanted = index.search(items.vectors[:5], 5)
    place = tmp_path / "there"
    shutil.move(tmp_path / "here", place)
    with Index.open(str(place)) as moved:
        found = moved.search(items.vectors[:5], 5)
        assert [h.ids for h in found] == [h.ids for h in wanted]
    place.chmod(0o555)
    try:
        with Index.open(str(place), read_only=True) as moved:
            assert [h.ids for h in moved.search(items.vectors[:5], 5)] == [h.ids for h in wanted]
            assert moved.verify().problems == ()
        if os.geteuid() != 0:  # root may write everywhere
            with pytest.raises(SearchError, match="cannot be written; open the index with read_only=True"):
                Index.open(str(place))
    finally:
        place.chmod(0o755)


def test_creating_over_something_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    new(tmp_path / "i").close()
    for taken in (tmp_path / "i", tmp_path / "file"):
        if taken.name == "file":
            taken.write_text("x")
        with pytest.raises(SearchError, match="exists already; choose another place"):
            new(taken)
    assert {path.name for path in tmp_path.iterdir()} == {"i", "file"}
    with pytest.raises(SearchError, match="does not exist; make one with: proxemics index build"):
        Index.open(str(tmp_path / "none"))
    with pytest.raises(SearchError, match="holds no index"):
        Index.open(str(tmp_path))


def test_damage_is_found_and_named(tmp_path: Path) -> None:
    items = Items.make(names(3000), vectors(3000))
    with new(tmp_path / "i", "hnsw") as index:
        index.add(items)
        index.compact()
    (graph,) = (tmp_path / "i").glob("graph-*")
    for path, told in (
        (tmp_path / "i" / "vectors-1.f32", "1 vectors differ from what was written, first that of '000010'"),
        (graph, "is damaged; delete it"),
        (tmp_path / "i" / MANIFEST, "manifest.json was changed after the index was made"),
    ):
        good = path.read_bytes()
        bad = bytearray(good)
        place = 10 * DIM * 4 + 5 if path.suffix == ".f32" else good.find(b"cccc") if path.suffix == ".json" else -9
        bad[place] = ord("d") if path.suffix == ".json" else bad[place] ^ 1
        path.write_bytes(bad)
        with Index.open(str(tmp_path / "i"), read_only=True) as index:
            assert any(told in problem for problem in index.verify().problems), (told, index.verify().problems)
        path.write_bytes(good)
    with Index.open(str(tmp_path / "i"), read_only=True) as index:
        assert index.verify().problems == ()
    graph.unlink()
    with LocalIndex.open(str(tmp_path / "i")) as index:
        assert index.search(items.vectors[7:8], 1)[0].ids == ["000007"]
        assert "is absent, so searches scan every row" in index.verify().problems[0]
        index.compact()
        assert index.verify().problems == ()


def test_a_cut_file_of_vectors_is_refused(tmp_path: Path) -> None:
    with new(tmp_path / "i") as index:
        index.add(Items.make(names(10), vectors(10)))
    path = tmp_path / "i" / "vectors-1.f32"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(SearchError, match="10 rows of 24 numbers are committed; it was cut from outside"):
        Index.open(str(tmp_path / "i"))


def test_odd_rows_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    with new(tmp_path / "i") as index:
        with pytest.raises(SearchError, match="a zero byte or half a character"):
            index.upsert(Items.make(["half \ud800"], np.ones((1, DIM))))
        with pytest.raises(SearchError, match=r"k=1\.5; give a whole number from 1 to 10,000"):
            index.search(np.ones((1, DIM)), 1.5)  # type: ignore[arg-type]  # what is tested
        with pytest.raises(SearchError, match="Filter operator 'like' is unknown"):
            index.count([Condition("a", "like", "b")])
        with pytest.raises(SearchError, match="in takes several values"):
            index.count([Condition("a", "in", "b")])
        assert index.count() == 0


def test_what_a_caller_does_to_metadata_stays_with_the_caller(tmp_path: Path) -> None:
    with new(tmp_path / "i") as index:
        index.add(Items.make(["a"], np.ones((1, DIM)), [{"label": "cat"}]))
        index.search(np.ones((1, DIM)))[0].meta[0]["label"] = "changed"
        assert index.search(np.ones((1, DIM)))[0].meta == [{"label": "cat"}]


def test_a_filter_by_true_and_one_by_1_are_not_mixed_up(tmp_path: Path) -> None:
    with new(tmp_path / "i") as index:
        index.add(Items.make(["a", "b"], np.ones((2, DIM)), [{"x": True}, {"x": 1}]))
        asked = np.ones((1, DIM))
        assert index.search(asked, where=[Condition("x", "eq", True)])[0].ids == ["a"]
        assert index.search(asked, where=[Condition("x", "eq", 1)])[0].ids == ["b"]


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("queries", [1, 3, 40])
@pytest.mark.parametrize("removed", [False, True])
def test_a_tile_with_fewer_than_k_rows_that_may_come_back_shows_none_of_the_others(
    tmp_path: Path, dtype: str, queries: int, removed: bool
) -> None:
    """The scan begins with a tile of 1,024 rows; of these all but three are hidden, and they are the nearest ones."""
    rows, hidden = 5000, set(range(1100)) - {5, 500, 1000}
    points = vectors(rows)
    asked = points[list(hidden)[:queries]]
    items = Items.make(names(rows), points, [{"shown": row not in hidden} for row in range(rows)])
    where = [] if removed else [Condition("shown", "eq", True)]
    with new(tmp_path / "i", dtype=dtype) as index:
        index.add(items)
        if removed:
            index.remove([items.ids[row] for row in hidden])
        for k in (4, 10, 500):
            wanted = scan_exactly(items, unit_rows(asked), k, [Condition("shown", "eq", True)])
            for hits, (ids, _) in zip(index.search(asked, k, where=where), wanted, strict=True):
                assert (hits.ids, hits.missing) == (ids, 0)


def test_conditions_that_no_row_can_meet_are_no_accident(tmp_path: Path) -> None:
    with new(tmp_path / "i") as index:
        meta: list[Any] = [{"n": 7, 'o"d': 7, "text": "a"}, {"n": 10**30, "text": "b"}]
        index.add(Items.make(["7", "b"], vectors(2), meta))
        for field in ("n", 'o"d', "id", "text", "half \udcff", "zero \0"):
            for value in (10**400, -(10**5000), float("nan"), "\udcff", "a\0"):
                for condition in (Condition(field, "eq", value), Condition(field, "in", (value, value))):
                    assert index.count([condition]) == 0, condition
        assert index.count([Condition("n", "lt", 10**5000)]) == index.count([Condition("n", "gt", -(10**5000))]) == 2
        assert index.count([Condition("n", "eq", 10**30)]) == index.count([Condition("n", "in", (7, 10**400))]) == 1
        assert index.count([Condition("half \udcff", "lt", 3)]) == 0
        with pytest.raises(SearchError, match="101 conditions stand in one filter; give at most 100"):
            index.search(vectors(1), where=[Condition("n", "lt", 9)] * 101)
        for text in ("zero \0", "half \ud800"):
            for bad in ({text: 1}, {"text": text}):
                with pytest.raises(SearchError, match="Row 'c' has a text with a zero byte or half a character"):
                    index.add(Items.make(["c"], vectors(1), [bad]))
        with pytest.raises(SearchError, match="batch=0; give the number of rows to read at a time"):
            list(index.scan(0))
    with pytest.raises(SearchError, match="was closed; open it again"):
        index.count()


def test_a_manifest_that_is_no_text_is_refused(tmp_path: Path) -> None:
    new(tmp_path / "i").close()
    for content in (b"\xff\xfe", b'{"format": 1e999}'):
        (tmp_path / "i" / MANIFEST).write_bytes(content)
        with pytest.raises(SearchError, match=r"The manifest of the index .* is not usable"):
            Index.open(str(tmp_path / "i"))


@pytest.mark.parametrize(("name", "place", "value"), [("codes-1.i8", 5 * DIM, 3), ("scales-1.f32", 5 * 8 + 3, 0xFF)])
def test_damaged_codes_are_found(tmp_path: Path, name: str, place: int, value: int) -> None:
    with new(tmp_path / "i", dtype="int8") as index:
        index.add(Items.make(names(300), vectors(300)))
        index.remove(["000001"])
        assert index.verify().problems == ()
    content = bytearray((tmp_path / "i" / name).read_bytes())
    content[place] ^= value
    (tmp_path / "i" / name).write_bytes(content)
    with Index.open(str(tmp_path / "i")) as index:
        (told, *_) = index.verify().problems
        assert told.startswith("1 rows in 8 bits differ from their vectors, first that of '000005'")
        index.upsert(index.get(["000005"]))
        assert index.verify().problems == ()


def test_a_lost_row_is_listed_although_an_equal_one_is_found(tmp_path: Path) -> None:
    """The equal row may be removed, or hidden by a filter."""
    points = vectors(2000)
    points[1500] = points[3]
    with new(tmp_path / "i", "hnsw") as index:
        index.add(Items.make(names(2000), points))
        index.compact()
        graph, rows = index.snapshot.graph, index.snapshot.vectors
    assert graph is not None
    search = graph.search

    class Blind:
        def search(self, queries: np.ndarray, k: int, *, expansion: int | None = None) -> Any:
            slots, scores = search(queries, k + 1, expansion=expansion)
            for row, seen in enumerate(slots):
                order = np.argsort(seen == 1500, kind="stable")
                slots[row], scores[row] = seen[order], scores[row][order]
            return slots[:, :k], scores[:, :k]

    assert 1500 in unreached(Blind(), rows)  # type: ignore[arg-type]  # as a graph with a lost row
    assert 1500 not in graph.facts.unreached


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks up which file a number stands for")
def test_graph_and_names_are_on_disk_before_the_index_counts_on_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        synced.append(Path(f"/proc/self/fd/{handle}").readlink().name)
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    commit = compact.commit
    monkeypatch.setattr(compact, "commit", lambda *given: (synced.append("commit"), commit(*given))[1])
    with new(tmp_path / "i", "hnsw") as index:
        assert synced[-1] == tmp_path.name
        index.add(Items.make(names(50), vectors(50)))
        index.compact()
    assert ".graph-1-1.usearch" in synced[: synced.index("commit")]
    assert synced[synced.index("commit") + 1] == "i"


@pytest.mark.parametrize("dim", [1, 2, 3, 17])
@pytest.mark.parametrize("queries", [2, 10])
def test_the_8_bit_screen_is_within_its_bound(dim: int, queries: int) -> None:
    """Also of vectors with one number, which the 8-bit product of torch gets wrong."""
    draw = np.random.default_rng(dim)
    rows, asked = (unit_rows(draw.standard_normal((count, dim)).astype(np.float32)) for count in (1023, queries))
    codes, scales = quantise(rows)
    screen = CodeScreen(codes, scales, asked)
    tile = empty_tile(np.empty(queries * 1023, np.float32), queries, 1023)
    screen.tile(0, 1023, slice(0, queries), tile)
    step = quantise(asked)[1][:, :1]
    assert np.abs(tile * step - asked @ rows.T).max() <= (screen.eps * step[:, 0]).max() + 1e-6
