"""The index on a real PostgreSQL with pgvector."""

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
from servers import PASSWORD, WRITTEN_PASSWORD, Postgres, free_port, running_postgres

from proxemics.core.errors import SearchError
from proxemics.search.checks import check_index, scan_exactly
from proxemics.search.index import Index
from proxemics.search.items import Items, unit_rows
from proxemics.search.manifest import ModelKey
from proxemics.search.pgvector import PgVectorIndex
from proxemics.search.where import Condition

KEY = ModelKey(model="a" * 64, preprocess="224", dim=32)
NO_SCANS = "&options=-c%20enable_seqscan%3Doff"
_numbers = count()


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as server:
        yield server


@pytest.fixture
def url(postgres: Postgres) -> str:
    """Address of an index that does not exist yet."""
    return postgres.url(f"index_{next(_numbers)}")


def with_password(address: str, **options: bool) -> Index:
    return Index.open(address.replace("proxemics@", f"proxemics:{WRITTEN_PASSWORD}@"), **options)


# The contract ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["exact", "hnsw"])
def test_contract(postgres: Postgres, kind: str) -> None:
    ending = NO_SCANS if kind == "hnsw" else ""  # so small a table would never be searched by its graph otherwise

    def make(key: ModelKey) -> Index:
        return Index.create(postgres.url(f"index_{next(_numbers)}") + ending, key, kind=kind)

    check_index(make, reopen=with_password, recall=1.0 if kind == "exact" else 0.95, ties=kind == "exact")


@pytest.mark.parametrize(("kind", "dim"), [("exact", 32), ("hnsw", 32), ("hnsw", 2100)])
def test_scores_are_cosines_and_ranks_are_those_of_a_plain_scan_pain_84(
    postgres: Postgres, kind: str, dim: int
) -> None:
    items, queries = items_of(250, dim), clustered(10, dim, seed=1)
    name = f"index_{next(_numbers)}"
    with Index.create(postgres.url(name) + NO_SCANS, KEY.model_copy(update={"dim": dim}), kind=kind) as index:
        index.add(items)
        index.compact()
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
    with postgres.connect() as connection:
        for _ in range(50):  # the server adds up what its processes did now and then
            used = connection.execute(
                "SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname = %s", [f"{name}_hnsw"]
            ).fetchone()
            if kind == "exact" or (used is not None and used[0] > 0):
                break
            connection.commit()
            time.sleep(0.1)
    assert (used is not None and used[0] > 0) == (kind == "hnsw")


def test_filter_on_one_percent_returns_k_rows(postgres: Postgres) -> None:
    items, queries = items_of(4000), clustered(5, 32, seed=2)
    rare, four = [Condition("rare", "eq", True)], [Condition("rank", "lt", 4)]
    name = f"index_{next(_numbers)}"
    ending = "&options=-c%20enable_seqscan%3Doff%20-c%20enable_bitmapscan%3Doff"  # leaves the graph alone
    with Index.create(postgres.url(name) + ending, KEY, kind="hnsw") as index:
        index.add(items)
        assert index.search(items.vectors[:1], 1)[0].ids == items.ids[:1]  # without a graph: a scan
        index.compact()
        assert index.count(rare) == 40
        found = index.search(queries, 10, where=rare)
        wanted = scan_exactly(items, unit_rows(queries), 10, rare)
        assert [(len(hits), hits.missing) for hits in found] == [(10, 0)] * 5
        assert all(one["rare"] for hits in found for one in hits.meta)
        shared = sum(len(set(hits.ids) & set(ids)) for hits, (ids, _) in zip(found, wanted, strict=True))
        assert shared >= 0.9 * 50
        few = index.search(queries, 10, where=four)
        assert [(len(hits), hits.missing) for hits in few] == [(4, 6)] * 5
        assert all(
            hits.ids == ids
            for hits, (ids, _) in zip(few, scan_exactly(items, unit_rows(queries), 4, four), strict=True)
        )
        assert [len(hits) for hits in index.search(queries[:1], 4000)] == [4000]
        measured = index.verify(30)
        assert (measured.count, measured.self_recall, measured.problems) == (4000, 1.0, ())
        assert measured.recall_at_10 > 0.9


# Filters --------------------------------------------------------------------------------------------------------------


def test_filters_mean_what_condition_holds_says(url: str) -> None:
    generator = random.Random(5)
    meta = [{"label": value} for value in VALUES] + [random_meta(generator) for _ in range(300)]
    ids = [f"row {n}" for n in range(len(meta) - 4)] + ["9", "9.0", "it's", " 1_0 "]
    items = Items.make(ids, np.ones((len(ids), 4)), meta)
    conditions = [[Condition("label", "eq", value)] for value in VALUES + NEVER if value not in NEVER[1:3]]
    conditions += [[Condition("id", "eq", value)] for value in ("9", 9, 9.0, 10, True, None, "it's", "\0")]
    conditions += [[random_condition(generator) for _ in range(generator.choice([1, 1, 1, 2]))] for _ in range(400)]
    with Index.create(url, ModelKey(model="m", dim=4)) as index:
        index.add(items)
        assert index.get(ids).meta == items.meta
        counts = [0, 0]
        for where in conditions:
            kept = [n for n, one in zip(ids, items.meta, strict=True) if all(c.holds({**one, "id": n}) for c in where)]
            found = [name for part in index.scan(where=where) for name in part.ids]
            assert found == sorted(kept), where
            assert index.count(where) == len(kept)
            counts[bool(kept)] += 1
        assert min(counts) > 100  # the test asks for both kinds of answer


def test_metadata_come_back_as_they_went_in(url: str) -> None:
    meta = {f"field {n}": value for n, value in enumerate(VALUES)} | {"": "empty", 'a"b\\c': 1, "1": 1.0}
    with Index.create(url, ModelKey(model="m", dim=4)) as index:
        index.add(Items.make(["a"], np.ones((1, 4)), [meta]))
        back = index.get(["a"]).meta[0]
    assert back == meta
    assert {key: type(value) for key, value in back.items()} == {key: type(value) for key, value in meta.items()}


@pytest.mark.parametrize(
    ("meta", "sentence"),
    [
        ({"a": "x\0y"}, "zero byte"),
        ({"a\0": 1}, "zero byte"),
        ({"a": "\ud800"}, "half a character"),
        ({"a": 2**63}, "beyond 64 bits"),
    ],
)
def test_values_that_cannot_be_kept_are_refused_before_anything_is_written(url: str, meta: dict, sentence: str) -> None:
    with Index.create(url, ModelKey(model="m", dim=4)) as index:
        with pytest.raises(SearchError, match=sentence):
            index.add(Items.make(["good", "bad"], np.ones((2, 4)), [{}, meta]))
        assert index.count() == 0


# Hands that should not reach further than they may --------------------------------------------------------------------


def test_ids_fields_and_values_are_never_read_as_sql(postgres: Postgres, url: str) -> None:
    with Index.create(url, ModelKey(model="m", dim=4)) as index:
        index.add(Items.make([*ATTACKS, "kept"], np.ones((len(ATTACKS) + 1, 4)), [{a: a} for a in [*ATTACKS, "k"]]))
        for attack in ATTACKS:
            assert index.get([attack]).meta == [{attack: attack}]
            assert index.count([Condition(attack, "eq", attack)]) == 1
            assert index.count([Condition(attack, "in", (attack, "x"))]) == 1
            assert index.count([Condition(attack, "lt", 3)]) == 0
            assert index.count([Condition("id", "eq", attack)]) == 1
            (hits,) = index.search(np.ones((1, 4), np.float32), 3, where=[Condition("id", "eq", attack)])
            assert hits.ids == [attack]
            assert index.upsert(Items.make([attack], np.ones((1, 4)), [{"a": attack}])) == (0, 1)
            assert index.remove([attack]) == 1
        assert index.count() == 1
    for attack in [*ATTACKS, "", "a b", "1a", "a" * 49, "é", "a-b", "a.b"]:
        with pytest.raises(SearchError, match="letters, digits or underscores"):
            Index.create(postgres.url("") + attack.replace("%", "%25").replace("&", "%26"), KEY)


def test_the_password_is_never_shown(postgres: Postgres, url: str) -> None:
    with Index.create(url, KEY) as index:
        assert index.address == url.replace(f":{WRITTEN_PASSWORD}@", "@")
        texts = [index.address, repr(index.__dict__), str(vars(index))]
    attempts = [
        url.replace("/postgres?", "/nothing?"),
        url.replace("proxemics:", "nobody:"),
        url.replace(str(postgres.port), str(free_port())),
        url.replace(f":{postgres.port}/", ":12x/"),
        url.replace(WRITTEN_PASSWORD, PASSWORD),  # not written with %XX: libpq reads a part of it as the host
        url + "&sslmode=wrong",
        url + "&nonsense=1",
        url + "_absent",
    ]
    for address in attempts:
        with pytest.raises(SearchError) as caught:
            Index.open(address)
        texts.append(str(caught.value))
        assert "\n" not in texts[-1]
    for text in [*texts, postgres.log.read_text()]:
        for secret in (PASSWORD, WRITTEN_PASSWORD, "ss:w", "w/rd", "rd #1"):
            assert secret not in text


def test_read_only_and_rights(postgres: Postgres, url: str) -> None:
    name = url.partition("index=")[2]
    with Index.create(url, KEY) as index:
        index.add(items_of(20))
    with postgres.connect() as connection:
        connection.execute("CREATE ROLE reader LOGIN PASSWORD 'r'")
        connection.execute(f"GRANT SELECT ON proxemics_indexes, {name} TO reader")
        connection.execute("CREATE DATABASE bare")
    reader = postgres.url(name, user="reader", password="r")
    with Index.open(reader, read_only=True) as index:
        assert index.count() == 20
        assert index.search(items_of(20).vectors[:1], 1)[0].ids == ["000000"]
        assert next(iter(index.scan())).ids[0] == "000000"
        for change in (lambda: index.add(items_of(1)), lambda: index.remove(["000001"]), index.compact):
            with pytest.raises(SearchError, match="read-only"):
                change()
    with Index.open(reader) as index, pytest.raises(SearchError, match=r"does not let the user .* permission denied"):
        index.remove(["000001"])
    with pytest.raises(SearchError, match=r"CREATE EXTENSION vector; in that database once"):
        Index.create(postgres.url("new", database="bare", user="reader", password="r"), KEY)
    with Index.create(postgres.url("new", database="bare"), KEY) as index:  # a superuser may add the extension
        assert index.add(items_of(3)) == 3


# Sentences ------------------------------------------------------------------------------------------------------------


def test_what_is_not_offered_or_not_there_is_said(postgres: Postgres, url: str) -> None:
    with pytest.raises(SearchError, match="no int8 vectors"):
        Index.create(url, KEY, dtype="int8")
    with pytest.raises(SearchError, match=r"up to 4,000 numbers, and these have 5,000"):
        Index.create(url, KEY.model_copy(update={"dim": 5000}), kind="hnsw")
    with pytest.raises(SearchError, match="There is no index"):
        Index.open(url)
    with Index.create(url, KEY, title="birds") as index:
        assert index.manifest.title == "birds"
        with pytest.raises(SearchError, match="already; choose another name"):
            Index.create(url, KEY)
    with pytest.raises(SearchError, match="was closed"):
        index.count()
    with postgres.connect() as connection:
        name = url.partition("index=")[2]
        connection.execute(
            "UPDATE proxemics_indexes SET manifest = manifest || '{\"format\": 99}' WHERE name = %s", [name]
        )
        with pytest.raises(SearchError, match="has format 99, and this Proxemics reads up to"):
            Index.open(url)
        connection.execute(f"DROP TABLE {name}")
    with pytest.raises(SearchError, match="There is no index"):
        Index.open(url)


def test_a_query_of_another_model_is_refused(url: str) -> None:
    with Index.create(url, KEY) as index:
        index.add(items_of(3))
        other = KEY.model_copy(update={"model": "b" * 64})
        with pytest.raises(SearchError, match=r"aaaaaaaaaaaa and the query comes from bbbbbbbbbbbb"):
            index.search(items_of(1).vectors, 1, key=other)


def test_verify_sees_damage(postgres: Postgres, url: str) -> None:
    name = url.partition("index=")[2]
    with Index.create(url, KEY, kind="hnsw") as index:
        index.add(items_of(50))
        assert "run compact() to build it" in index.verify().problems[0]
        index.compact()
        assert index.verify().problems == ()
        with postgres.connect() as connection:
            connection.execute(
                f"UPDATE {name} SET embedding = (SELECT array_agg(3.0)::vector FROM generate_series(1, 32))"
                " WHERE id IN ('000001', '000002')"
            )
        assert "2 vectors are not of unit length" in index.verify().problems[0]


# Many writers, and what they were told --------------------------------------------------------------------------------


def upsert_from_threads(url: str, threads: int, each: int) -> None:
    vectors = clustered(each, 8)
    with Index.create(url, ModelKey(model="m", dim=8)) as index:

        def work(worker: int) -> None:
            for n in range(each):
                added = index.upsert(Items.make([f"{worker}-{n}"], vectors[n : n + 1], [{"worker": worker}]))
                shared = index.upsert(Items.make([f"shared {n % 5}"], vectors[n : n + 1], [{"worker": worker}]))
                failures.extend([] if added == (1, 0) and sum(shared) == 1 else [(added, shared)])

        failures: list[object] = []
        workers = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
        for one in workers:
            one.start()
        for one in workers:
            one.join()
        assert not failures
        assert index.count() == threads * each + 5
        assert index.count([Condition("worker", "eq", 3)]) >= each
        assert sum(len(part) for part in index.scan()) == threads * each + 5


def test_threads_upsert_and_nothing_is_lost(url: str) -> None:
    upsert_from_threads(url, threads=8, each=25)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_eight_threads_upsert_1600_rows_each_and_nothing_is_lost(url: str) -> None:
    upsert_from_threads(url, threads=8, each=1600)


def run_python(program: str, **environment: str) -> subprocess.Popen[str]:
    settings = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    command = [sys.executable, "-c", textwrap.dedent(program)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=settings)


def test_another_process_opens_it_with_the_password_from_the_environment(url: str, tmp_path: Path) -> None:
    with Index.create(url, KEY) as index:
        index.add(items_of(30))
        address = index.address
    program = f"""
        from proxemics.search.index import Index
        with Index.open({address!r}) as index:
            print(index.count(), index.search(index.get(["000007"]).vectors, 1)[0].ids[0])
    """
    assert run_python(program, PGPASSWORD=PASSWORD).communicate()[0].split() == ["30", "000007"]
    word = tmp_path / "pgpass"
    word.write_text(f"*:*:*:*:{PASSWORD}".replace("p@ss:", "p@ss\\:") + "\n")
    word.chmod(0o600)
    assert run_python(program, PGPASSFILE=str(word)).communicate()[0].split() == ["30", "000007"]


@pytest.mark.parametrize("stage", ["COPY", "INSERT"])
def test_a_client_killed_in_the_middle_of_an_add_leaves_all_or_nothing(
    postgres: Postgres, url: str, stage: str
) -> None:
    rows = 15000
    name = url.partition("index=")[2]
    with Index.create(url, KEY) as index:
        index.add(items_of(10))
        child = run_python(f"""
            import numpy as np
            from proxemics.search.index import Index
            from proxemics.search.items import Items
            vectors = np.random.default_rng(0).standard_normal(({rows}, 32))
            items = Items.make([f"new {{n}}" for n in range({rows})], vectors, [{{"n": n}} for n in range({rows})])
            with Index.open({url!r}) as index:
                print("ready", flush=True)
                index.add(items)
        """)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        at = "SELECT pid FROM pg_stat_activity WHERE query LIKE %s AND state = 'active' AND pid <> pg_backend_pid()"
        with postgres.connect() as connection:
            while child.poll() is None:
                found = connection.execute(at, [f"{stage}%{name if stage == 'INSERT' else 'incoming'}%"]).fetchone()
                if found:
                    os.kill(child.pid, signal.SIGKILL)
                    break
            assert child.wait() == -signal.SIGKILL, "the client ended before it could be killed"
            while connection.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", found).fetchone():
                time.sleep(0.05)
        left = index.count()
        assert left == 10 if stage == "COPY" else left in (10, 10 + rows)
        assert index.upsert(items_of(12)) == (2, 10)


def test_a_crashed_server_keeps_every_acknowledged_row_and_the_index_connects_again(
    postgres: Postgres, url: str
) -> None:
    vectors = clustered(4000, 8)
    with Index.create(url, ModelKey(model="m", dim=8)) as index:
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
            index.count()  # a second connection, idle when the server ends
        postgres.restart(hard=True)
        writer.join()
        assert len(sentences) == 1
        assert "does not answer" in sentences[0]
        assert "\n" not in sentences[0]
        assert index.get(told).ids == told
        assert index.count() in (len(told), len(told) + 1)  # the last may have arrived before its answer was lost
        assert index.upsert(Items.make(["after"], vectors[:1])) == (1, 0)


def test_the_server_of_the_tests_is_reached_from_this_machine_only(postgres: Postgres) -> None:
    with postgres.connect() as connection:
        assert connection.execute("SHOW listen_addresses").fetchone() == ("127.0.0.1",)


def test_open_and_create_are_those_of_the_back_end(url: str) -> None:
    with PgVectorIndex.create(url, KEY) as index:
        assert isinstance(index, PgVectorIndex)
    with Index.open(url) as index:
        assert isinstance(index, PgVectorIndex)


@pytest.mark.parametrize("package", ["psycopg", "pgvector"])
def test_an_absent_package_is_named(monkeypatch: pytest.MonkeyPatch, url: str, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SearchError, match=r'pip install "proxemics\[pg\]"'):
        Index.create(url, KEY)
