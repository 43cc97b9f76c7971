"""The index on Milvus: Milvus Lite in a file, and its own gRPC server as a program of its own."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from oddities import ATTACKS, NEVER, VALUES, clustered, items_of, random_condition, random_meta
from servers import MilvusServer, free_port, running_milvus

from proxemics.core.errors import SearchError
from proxemics.search.checks import check_index, scan_exactly
from proxemics.search.index import Index
from proxemics.search.items import Items, unit_rows
from proxemics.search.manifest import FORMAT, ModelKey
from proxemics.search.milvus import MilvusIndex, collection
from proxemics.search.where import Condition

pytest.importorskip("pymilvus", reason="pymilvus is not installed")
pytest.importorskip("milvus_lite", reason="milvus-lite is not installed (there is none for Windows)")

KEY = ModelKey(model="a" * 64, preprocess="224", dim=32)
_numbers = count()


@pytest.fixture(scope="module")
def server() -> Iterator[MilvusServer]:
    with running_milvus() as one:
        yield one


@pytest.fixture
def file(tmp_path: Path) -> str:
    """Address of an index in a file that does not exist yet."""
    return f"milvus:{tmp_path / 'é a.db'}?index=birds"


@pytest.fixture(params=["file", "server"])
def address(request: pytest.FixtureRequest, file: str) -> str:
    """Address of an index that does not exist yet, in a file and on a server."""
    if request.param == "file":
        return file
    return request.getfixturevalue("server").url(f"index_{next(_numbers)}")


# The contract -------------------------------------------------------------------------------------


def run_contract(folder: Path, server: MilvusServer | None, kind: str) -> None:
    def make(key: ModelKey) -> Index:
        name = f"index_{next(_numbers)}"
        address = f"milvus:{folder}/{name}.db?index={name}" if server is None else server.url(name)
        return Index.create(address, key, kind=kind)

    check_index(make, recall=1.0 if kind == "exact" else 0.95, ties=False)


def test_contract(tmp_path: Path) -> None:
    run_contract(tmp_path, None, "exact")


@pytest.mark.slow
@pytest.mark.parametrize(("place", "kind"), [("file", "hnsw"), ("server", "exact"), ("server", "hnsw")])
def test_contract_elsewhere(tmp_path: Path, server: MilvusServer, place: str, kind: str) -> None:
    run_contract(tmp_path, server if place == "server" else None, kind)


@pytest.mark.parametrize("kind", ["exact", "hnsw"])
def test_scores_are_cosines_and_ranks_are_those_of_a_plain_scan_pain_84(address: str, kind: str) -> None:
    items, queries = items_of(250), clustered(10, 32, seed=1)
    with Index.create(address, KEY, kind=kind) as index:
        index.add(items)
        for _ in range(2):  # from the log, and from a segment
            for factor in (1e-3, 1.0, 1e4):
                hits = index.search(items.vectors[:5] * np.float32(factor), 1)
                assert [one.ids[0] for one in hits] == items.ids[:5]
                np.testing.assert_allclose([one.scores[0] for one in hits], 1, atol=1e-6)
            (opposite,) = index.search(-items.vectors[:1], 250)
            assert opposite.ids[-1] == items.ids[0]
            assert opposite.scores[-1] == pytest.approx(-1, abs=1e-6)
            found = index.search(queries, 10)
            for hits, (ids, scores) in zip(found, scan_exactly(items, unit_rows(queries), 10), strict=True):
                assert hits.ids == ids
                np.testing.assert_allclose(hits.scores, scores, atol=1e-6)
            index.compact()


@pytest.mark.parametrize("kind", [pytest.param("exact", marks=pytest.mark.slow), "hnsw"])
def test_filter_on_one_percent_returns_k_rows(file: str, kind: str) -> None:
    items, queries = items_of(2000), clustered(5, 32, seed=2)
    rare, four = [Condition("rare", "eq", True)], [Condition("rank", "lt", 4)]
    with Index.create(file, KEY, kind=kind) as index:
        index.add(items)
        index.compact()
        index.upsert(Items(items.ids[:100], items.vectors[:100], items.meta[:100]))  # newer ones, in the log
        assert index.count() == 2000
        assert index.count(rare) == 20
        found = index.search(queries, 10, where=rare)
        wanted = scan_exactly(items, unit_rows(queries), 10, rare)
        assert [(len(hits), hits.missing) for hits in found] == [(10, 0)] * 5
        assert all(one["rare"] for hits in found for one in hits.meta)
        shared = sum(len(set(hits.ids) & set(ids)) for hits, (ids, _) in zip(found, wanted, strict=True))
        assert shared >= (0.9 if kind == "hnsw" else 1) * 50
        few = index.search(queries, 10, where=four)
        assert [(len(hits), hits.missing) for hits in few] == [(4, 6)] * 5
        assert [len(hits) for hits in index.search(queries[:1], 2000)] == [2000]
        measured = index.verify(20)
        assert (measured.count, measured.self_recall, measured.problems) == (2000, 1.0, ())
        assert measured.recall_at_10 > 0.9


# Filters and what rows keep -----------------------------------------------------------------------

# Milvus compares numbers as 64-bit floats, so whole numbers that no float holds are left out here.
FLOATS = [one for one in VALUES if isinstance(one, str) or one is None or float(one) == one] + ["١٢", "１２", 12]


def test_filters_mean_what_condition_holds_says(file: str) -> None:
    generator = random.Random(5)
    meta = [{"label": value} for value in FLOATS]
    meta += [{k: v for k, v in random_meta(generator).items() if v in FLOATS} for _ in range(300)]
    ids = [f"row {n}" for n in range(len(meta) - 4)] + ["9", "9.0", "it's", " 1_0 "]
    items = Items.make(ids, np.ones((len(ids), 4)), meta)
    conditions = [[Condition("label", "eq", value)] for value in FLOATS + NEVER if value not in NEVER[1:3]]
    conditions += [[Condition("id", "eq", value)] for value in ("9", 9, 9.0, 10, True, None, "it's", "\0")]
    conditions += [[random_condition(generator) for _ in range(generator.choice([1, 1, 1, 2]))] for _ in range(150)]
    conditions = [where for where in conditions if all(one.value not in (2**53 + 1, 2**62 + 1) for one in where)]
    with Index.create(file, ModelKey(model="m", dim=4)) as index:
        index.add(items)
        assert index.get(ids).meta == items.meta
        counts = [0, 0]
        for number, where in enumerate(conditions):
            kept = [n for n, one in zip(ids, items.meta, strict=True) if all(c.holds({**one, "id": n}) for c in where)]
            assert sorted(name for part in index.scan(where=where) for name in part.ids) == sorted(kept), where
            assert index.count(where) == len(kept)
            counts[bool(kept)] += 1
            if number == len(conditions) // 2:
                index.compact()
        assert min(counts) > 60  # the test asks for both kinds of answer


def test_metadata_come_back_as_they_went_in(address: str) -> None:
    meta = {f"field {n}": value for n, value in enumerate(VALUES)} | {"": "empty", 'a"b\\c': 1, "1": 1.0, "$meta": "x"}
    with Index.create(address, ModelKey(model="m", dim=4)) as index:
        index.add(Items.make(["a"], np.ones((1, 4)), [meta]))
        for _ in range(2):
            back = index.get(["a"]).meta[0]
            assert back == meta
            assert {key: type(value) for key, value in back.items()} == {k: type(value) for k, value in meta.items()}
            index.compact()


def test_an_upsert_leaves_nothing_of_the_old_row(address: str) -> None:
    one = np.ones((1, 4))
    with Index.create(address, ModelKey(model="m", dim=4)) as index:
        index.add(Items.make(["a"], one, [{"label": "old", "price": 3, "only": "before"}]))
        assert index.upsert(Items.make(["a"], -one, [{"label": "new"}])) == (0, 1)
        assert index.get(["a"]).meta == [{"label": "new"}]
        for gone in (("label", "old"), ("price", 3), ("only", "before")):
            assert index.count([Condition(gone[0], "eq", gone[1])]) == 0
        assert index.count([Condition("label", "eq", "new")]) == 1
        assert index.count() == 1


def test_what_cannot_be_kept_is_refused_before_anything_is_written(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Index.create(file, ModelKey(model="m", dim=4)) as index:
        for meta, sentence in (
            ({"a": "x\0y"}, "zero byte"),
            ({"a": "\ud800"}, "half a character"),
            ({"a": 2**63}, "beyond 64 bits"),
            ({"a": "é" * 40_000}, r"80,0.. bytes of metadata; Milvus keeps 65,000"),
        ):
            with pytest.raises(SearchError, match=sentence):
                index.add(Items.make(["good", "bad"], np.ones((2, 4)), [{}, meta]))
        monkeypatch.setattr(collection, "LARGEST_MESSAGE", 2 << 20)
        with pytest.raises(SearchError, match=r"20,000 rows are more than fit the one message of 2 MB .* about \d,\d"):
            index.add(items_of(20_000, 4))
        assert index.count() == 0


def test_ids_fields_and_values_are_never_read_as_expressions(address: str) -> None:
    attacks = [
        *ATTACKS,
        '" or id != "',
        '"] or id not in ["',
        'x" || "1" == "1',
        "\\",
        '\\"',
        "a\nb\r\tc",
        "\x07\x0b",
        "é'",
    ]
    with Index.create(address, ModelKey(model="m", dim=4)) as index:
        index.add(Items.make([*attacks, "kept"], np.ones((len(attacks) + 1, 4)), [{a: a} for a in [*attacks, "k"]]))
        for attack in attacks:
            assert index.get([attack]).meta == [{attack: attack}]
            for where in ([Condition(attack, "eq", attack)], [Condition("id", "in", (attack, "x"))]):
                assert index.count(where) == 1
            assert index.count([Condition(attack, "lt", 3)]) == 0
            (hits,) = index.search(np.ones((1, 4), np.float32), 3, where=[Condition(attack, "eq", attack)])
            assert hits.ids == [attack]
            assert index.upsert(Items.make([attack], np.ones((1, 4)), [{"a": attack}])) == (0, 1)
        assert [name for part in index.scan(2) for name in part.ids] == sorted([*attacks, "kept"])
        for attack in attacks:
            assert index.remove([attack]) == 1
        assert index.count() == 1
    for attack in [*ATTACKS, "", "a b", "1a", "a" * 49, "é", "a-b"]:
        with pytest.raises(SearchError, match="letters, digits or underscores"):
            Index.create(
                address.partition("index=")[0] + "index=" + attack.replace("%", "%25").replace("&", "%26"), KEY
            )


# Sentences ----------------------------------------------------------------------------------------


def test_old_files_and_newer_formats_are_told_apart_pain_88(tmp_path: Path, file: str) -> None:
    old = tmp_path / "old.db"
    old.write_bytes(b"SQLite format 3\0" + bytes(4096))  # what Milvus Lite 2 wrote
    for call in (Index.open, lambda address: Index.create(address, KEY)):
        with pytest.raises(SearchError, match=r"was written by Milvus Lite 2 or older, .* cannot read such a file"):
            call(f"milvus:{old}?index=birds")
    assert old.stat().st_size == 4112
    with Index.create(file, KEY) as index:
        assert index.manifest.format == FORMAT
    from pymilvus import MilvusClient

    from proxemics.search.milvus.lite import servers as lite_servers

    path = Path(file.removeprefix("milvus:").partition("?")[0])
    uri = lite_servers().hold(path, create=False)
    newer = index.manifest.model_dump_json().replace('"format":1', '"format":99')
    client = MilvusClient(uri)
    client.alter_collection_properties("birds", {"proxemics.manifest": newer})
    client.close()
    lite_servers().release(path)
    with pytest.raises(SearchError, match="has format 99, and this Proxemics reads up to"):
        Index.open(file)


def test_the_server_inside_listens_on_loopback_only_pain_88(file: str) -> None:
    with MilvusIndex.create(file, KEY):
        own = {link.readlink().name for link in Path("/proc/self/fd").iterdir() if link.is_symlink()}
        places = []
        for table in ("/proc/net/tcp", "/proc/net/tcp6"):
            for line in Path(table).read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == "0A" and f"socket:[{words[9]}]" in own:
                    places.append(words[1].partition(":")[0])
        assert places
        assert {one[-8:] for one in places} == {"0100007F"}  # 127.0.0.1, and what stands for it among long addresses


def test_what_is_not_offered_or_not_there_is_said(tmp_path: Path, file: str, server: MilvusServer) -> None:
    with pytest.raises(SearchError, match="no int8 vectors"):
        Index.create(file, KEY, dtype="int8")
    with pytest.raises(SearchError, match="There is no Milvus Lite file"):
        Index.open(file)
    assert not list(tmp_path.iterdir())
    with pytest.raises(SearchError, match="There is no folder"):
        Index.create(f"milvus:{tmp_path}/absent/a.db?index=a", KEY)
    with pytest.raises(SearchError, match=r"must end in \.db"):
        Index.open(f"milvus:{tmp_path}/a?index=a")
    with pytest.raises(SearchError, match="parameter 'tokn'"):
        Index.open("milvus+http://localhost:19530?index=a&tokn=x")
    (tmp_path / "pictures.db").mkdir()
    (tmp_path / "pictures.db" / "a.jpg").write_text("x")
    with pytest.raises(SearchError, match="is a folder, but not one of Milvus Lite"):
        Index.create(f"milvus:{tmp_path}/pictures.db?index=a", KEY)
    with Index.create(file, KEY, title="birds") as index:
        assert Index.open(file).manifest.title == "birds"
        with pytest.raises(SearchError, match="already; choose another name"):
            Index.create(file, KEY)
        with pytest.raises(SearchError, match="There is no index other"):
            Index.open(file.replace("=birds", "=other"))
        index.add(items_of(3))
        with pytest.raises(SearchError, match=r"aaaaaaaaaaaa and the query comes from bbbbbbbbbbbb"):
            index.search(items_of(1).vectors, 1, key=KEY.model_copy(update={"model": "b" * 64}))
    with pytest.raises(SearchError, match="was closed"):
        index.count()
    with pytest.raises(SearchError, match="There is no index"):
        Index.open(server.url("never"))


def test_a_collection_of_somebody_else_is_left_alone(server: MilvusServer) -> None:
    from pymilvus import MilvusClient

    client = MilvusClient(f"http://127.0.0.1:{server.port}")
    client.create_collection("theirs", dimension=4)
    with pytest.raises(SearchError, match="was not made by Proxemics"):
        Index.open(server.url("theirs"))
    with pytest.raises(SearchError, match="already; choose another name"):
        Index.create(server.url("theirs"), KEY)
    client.drop_collection("theirs")
    client.close()


def test_the_token_is_never_shown(server: MilvusServer, capfd: pytest.CaptureFixture[str]) -> None:
    url = server.url("with_token") + "&token=root:s3cret"
    with Index.create(url, KEY) as index:
        assert index.address == server.url("with_token")
        texts = [index.address, repr(index.__dict__), repr(vars(index)["_link"].address)]
    for bad in (url.replace(str(server.port), str(free_port())), url.replace("with_token", "absent"), url + "&x=1"):
        with pytest.raises(SearchError) as caught:
            Index.open(bad)
        texts.append(str(caught.value))
        assert "\n" not in texts[-1]
    assert all("s3cret" not in text for text in texts)
    assert capfd.readouterr() == ("", "")  # pymilvus would print a traceback


def test_read_only(address: str) -> None:
    with Index.create(address, KEY) as index:
        index.add(items_of(20))
    with Index.open(address, read_only=True) as index:
        assert index.search(items_of(20).vectors[:1], 1)[0].ids == ["000000"]
        for change in (lambda: index.add(items_of(1)), lambda: index.remove(["000001"]), index.compact):
            with pytest.raises(SearchError, match="read-only"):
                change()


def test_verify_sees_rows_that_somebody_else_wrote(server: MilvusServer) -> None:
    from pymilvus import MilvusClient

    with Index.create(server.url("damaged"), KEY) as index:
        index.add(items_of(20))
        assert index.verify().problems == ()
        client = MilvusClient(f"http://127.0.0.1:{server.port}")
        client.upsert("damaged", [{"id": "000001", "embedding": [2.0] * 32, "metadata": {"label": "theirs"}}])
        client.close()
        problems = index.verify().problems
        assert "1 vectors are not of unit length" in problems[0]
        assert "1 of 20 rows were changed by another program" in problems[1]


# Many writers, and what they were told ------------------------------------------------------------


def upsert_from_threads(address: str, threads: int, each: int) -> None:
    vectors = clustered(each, 8)
    failures: list[object] = []
    with Index.create(address, ModelKey(model="m", dim=8)) as index:

        def work(worker: int) -> None:
            for n in range(each):
                added = index.upsert(Items.make([f"{worker}-{n}"], vectors[n : n + 1], [{"worker": worker}]))
                failures.extend([] if added == (1, 0) else [added])
                if n % (each // 4) == 0:
                    (hits,) = index.search(
                        vectors[n : n + 1].astype(np.float32), 3, where=[Condition("worker", "eq", worker)]
                    )
                    failures.extend([] if f"{worker}-{n}" in hits.ids else [hits.ids])

        workers = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
        for one in workers:
            one.start()
        for one in workers:
            one.join()
        assert not failures
        assert index.count() == threads * each
        assert index.count([Condition("worker", "eq", 3)]) == each
    with Index.open(address) as index:
        assert sum(len(part) for part in index.scan()) == threads * each


def test_threads_upsert_and_nothing_is_lost(address: str) -> None:
    upsert_from_threads(address, threads=8, each=20)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_eight_threads_upsert_1600_rows_each_and_nothing_is_lost(file: str) -> None:
    upsert_from_threads(file, threads=8, each=1600)


def test_two_indexes_of_one_file_share_it(file: str) -> None:
    other = file.replace("=birds", "=fish")
    with Index.create(file, KEY) as birds, Index.create(other, KEY) as fish, Index.open(file) as again:
        birds.add(items_of(3))
        fish.add(items_of(5))
        again.upsert(items_of(4))
        assert (birds.count(), fish.count()) == (4, 5)
        birds.close()
        assert (again.count(), fish.count()) == (4, 5)
    with Index.open(other) as fish:
        assert fish.count() == 5


def run_python(program: str) -> subprocess.Popen[str]:
    settings = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", textwrap.dedent(program)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=settings)


def test_one_process_at_a_time_has_the_file_and_a_killed_one_leaves_it_whole(file: str) -> None:
    rows = 20_000
    with Index.create(file, KEY) as index:
        index.add(items_of(10))
    child = run_python(f"""
        import numpy as np
        from proxemics.search.index import Index
        from proxemics.search.items import Items
        vectors = np.random.default_rng(0).standard_normal(({rows}, 32))
        items = Items.make([f"new {{n}}" for n in range({rows})], vectors, [{{"n": n}} for n in range({rows})])
        with Index.open({file!r}) as index:
            print(index.count(), index.search(index.get(["000007"]).vectors, 1)[0].ids[0], flush=True)
            input()
            index.add(items)
    """)
    assert child.stdout is not None
    assert child.stdin is not None
    assert child.stdout.readline().split() == ["10", "000007"]
    with pytest.raises(SearchError, match=r"is open in another process, and Milvus Lite lets one in at a time"):
        Index.open(file)
    log = Path(file.removeprefix("milvus:").partition("?")[0]) / "collections" / "birds" / "wal"
    child.stdin.write("\n")
    child.stdin.flush()
    while not any(one.stat().st_size > 100_000 for one in log.glob("wal_data_*")):
        assert child.poll() is None, "the process ended before it could be killed"
        time.sleep(0.0005)
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    with Index.open(file) as index:
        assert index.count() in (10, 10 + rows)
        assert sum(len(part) for part in index.scan(10_000)) == index.count()
        assert index.upsert(items_of(12)) == (2, 10)
    with Index.open(file) as index:
        assert index.get(["000011"]).ids == ["000011"]


def test_a_killed_server_keeps_every_acknowledged_row_and_the_index_connects_again(server: MilvusServer) -> None:
    vectors = clustered(4000, 8)
    with Index.create(server.url("survivor"), ModelKey(model="m", dim=8)) as index:
        told: list[str] = []
        sentences: list[str] = []

        def work() -> None:
            for n in range(4000):
                try:
                    index.add(Items.make([f"{n}"], vectors[n : n + 1]))
                except SearchError as error:
                    sentences.append(str(error))
                    return
                told.append(f"{n}")

        writer = threading.Thread(target=work)
        writer.start()
        while len(told) < 30:
            time.sleep(0.01)
        server.stop()
        writer.join()
        assert len(sentences) == 1
        assert "does not answer" in sentences[0]
        assert "\n" not in sentences[0]
        with pytest.raises(SearchError, match="does not answer"):
            index.count()
        server.start()
        assert index.get(told).ids == told
        assert index.count() in (len(told), len(told) + 1)  # the last may have arrived before its answer was lost
        assert index.upsert(Items.make(["after"], vectors[:1])) == (1, 0)


def test_an_absent_package_is_named(monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    monkeypatch.setitem(sys.modules, "pymilvus", None)
    with pytest.raises(SearchError, match=r'pip install "proxemics\[milvus\]"'):
        Index.create(file, KEY)
