"""The embedded index with several threads and processes, some of which are killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from proxemics.core.errors import SearchError
from proxemics.search import Condition, Index, Items, ModelKey

DIM = 16
KEY = ModelKey(model="e" * 64, dim=DIM)

WRITER = """
import sys
import numpy as np
from proxemics.search import Index, Items
address, start = sys.argv[1], int(sys.argv[2])
index = Index.open(address)
random = np.random.default_rng(start)
number = start
while True:
    size = int(random.integers(1, 40))
    ids = [f"{n:07d}" for n in range(number, number + size)]
    vectors = random.standard_normal((size, 16))
    index.upsert(Items.make(ids, vectors, [{"sum": float(np.float32(v.sum()))} for v in vectors]))
    print("+", ids[0], ids[-1], flush=True)
    if number % 5 == 0:
        print("?", ids[0], ids[0], flush=True)  # may be gone from now on
        index.remove(ids[:1])
        print("-", ids[0], ids[0], flush=True)
    number += size
    if number % 7 == 0:
        index.compact()
        print("c", 0, 0, flush=True)
"""


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def kill_and_look(address: Path, times: int, *, kind: str) -> None:
    """Let a writer write, kill it at some moment, and see that every row that it was told of is there."""
    Index.create(str(address), KEY, kind=kind).close()  # type: ignore[arg-type]  # a kind
    chance = random.Random(5)
    present: set[str] = set()
    removed: set[str] = set()
    unsure: set[str] = set()
    for turn in range(times):
        command = [sys.executable, "-c", WRITER, str(address), str(turn * 100_000)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as process:
            assert process.stdout is not None
            lines = [process.stdout.readline()]
            time.sleep(chance.uniform(0, 0.25))
            process.send_signal(signal.SIGKILL)
            lines += process.stdout.readlines()
        for line in lines:
            if not line.endswith("\n"):
                continue  # half a line: the call had returned, but this proves nothing
            sign, first, last = line.split()
            ids = {f"{n:07d}" for n in range(int(first), int(last) + 1)}
            if sign == "+":
                present |= ids
            elif sign == "-":
                removed |= ids
            elif sign == "?":
                unsure |= ids
        with Index.open(str(address)) as index:
            found = index.verify(50)
            assert found.problems == ()
            assert found.self_recall == 1.0
            sure = sorted(present - unsure)
            back = index.get(sure)
            assert back.ids == sure
            for hits, name in zip(index.search(back.vectors[-20:], 1), sure[-20:], strict=True):
                assert hits.ids == [name]
            there = {name for part in index.scan() for name in part.ids}
            first = f"{turn * 100_000:07d}"
            assert removed.isdisjoint({name for name in there if name < first})
    assert len(present) > 10 * times
    strays = [path.name for path in address.iterdir() if path.name.startswith((".", "graph", "vectors"))]
    assert len(strays) <= 2


def test_a_killed_writer_loses_no_row_that_it_was_told_of(tmp_path: Path) -> None:
    kill_and_look(tmp_path / "i", 3, kind="exact")
    kill_and_look(tmp_path / "h", 3, kind="hnsw")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_writer_killed_fifty_times_loses_no_row_that_it_was_told_of(tmp_path: Path) -> None:
    kill_and_look(tmp_path / "i", 25, kind="exact")
    kill_and_look(tmp_path / "h", 25, kind="hnsw")


def test_a_half_written_tail_is_cut(tmp_path: Path) -> None:
    items = Items.make(["a", "b"], np.eye(2, DIM))
    with Index.create(str(tmp_path / "i"), KEY, dtype="int8") as index:
        index.add(items)
    for path in (tmp_path / "i").glob("*-1.*"):
        with path.open("ab") as file:
            file.write(b"half")
    (tmp_path / "i" / "vectors-2.f32").write_bytes(b"of a compaction that was killed")
    with Index.open(str(tmp_path / "i")) as index:
        index.add(Items.make(["c"], np.eye(3, DIM)[2:]))
        assert [hits.ids[0] for hits in index.search(np.eye(3, DIM), 1)] == ["a", "b", "c"]
        assert index.verify().problems == ()
    assert not (tmp_path / "i" / "vectors-2.f32").exists()


def test_eight_threads_lose_nothing(tmp_path: Path) -> None:
    """8 x 1,600 single-row upserts, with searches in between."""
    threads, rows = 8, 1600
    points = np.random.default_rng(0).standard_normal((threads * rows, DIM)).astype(np.float32)
    errors: list[BaseException] = []
    with Index.create(str(tmp_path / "i"), KEY) as index:

        def work(number: int) -> None:
            try:
                for row in range(number * rows, (number + 1) * rows):
                    added = index.upsert(Items.make([str(row)], points[row : row + 1], [{"n": row}]))
                    if added != (1, 0):
                        raise AssertionError(f"upsert returned {added}")
                    if row % 400 == 0 and index.search(points[row : row + 1], 1)[0].ids != [str(row)]:
                        raise AssertionError("a row is not found by the thread that wrote it")
            except BaseException as error:
                errors.append(error)

        workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert errors == []
        assert index.count() == threads * rows
    with Index.open(str(tmp_path / "i"), read_only=True) as index:
        assert index.verify().problems == ()
        back = index.get([str(row) for row in range(threads * rows)])
        assert [meta["n"] for meta in back.meta] == list(range(threads * rows))
        np.testing.assert_allclose(back.vectors, points / np.linalg.norm(points, axis=1, keepdims=True), atol=1e-6)


def test_one_bad_call_does_not_fail_those_committed_with_it(tmp_path: Path) -> None:
    with Index.create(str(tmp_path / "i"), KEY) as index:
        index.add(Items.make(["taken"], np.ones((1, DIM))))
        told: list[str] = []

        def work(number: int) -> None:
            name = "taken" if number % 3 == 0 else f"row {number}"
            try:
                index.add(Items.make([name], np.ones((1, DIM))))
            except SearchError as error:
                told.append(str(error))

        workers = [threading.Thread(target=work, args=(number,)) for number in range(30)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert index.count() == 21
        assert len(told) == 10
        assert all("Id 'taken' is in the index already; nothing was added" in one for one in told)


READER = """
import sys
import numpy as np
from proxemics.search import Index
index = Index.open(sys.argv[1], read_only=True)
print("open", flush=True)
last = 0
for line in sys.stdin:
    wanted = int(line)
    count = index.count()
    assert count >= wanted >= last, (count, wanted)
    query = np.random.default_rng(wanted - 1).standard_normal((1, 16))
    (hits,) = index.search(query, 3)
    assert hits.ids[0] == f"{wanted - 1:06d}", (hits.ids, wanted)
    assert abs(hits.scores[0] - 1) < 1e-5
    last = wanted
    print("ok", flush=True)
"""


@pytest.mark.parametrize("kind", ["exact", "hnsw"])
def test_a_reader_in_another_process_sees_every_committed_state(tmp_path: Path, kind: str) -> None:
    address = tmp_path / "i"
    with Index.create(str(address), KEY, kind=kind) as index:  # type: ignore[arg-type]  # a kind
        command = [sys.executable, "-c", READER, str(address)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
        ) as reader:
            assert reader.stdin is not None
            assert reader.stdout is not None
            assert reader.stdout.readline() == "open\n"
            number = 0
            for turn in range(40):
                size = 1 + turn % 4
                points = [np.random.default_rng(n).standard_normal(DIM) for n in range(number, number + size)]
                index.add(Items.make([f"{n:06d}" for n in range(number, number + size)], np.stack(points)))
                number += size
                if turn % 7 == 3:
                    index.upsert(Items.make(["000000"], np.random.default_rng(0).standard_normal((1, DIM))))
                    index.compact()
                reader.stdin.write(f"{number}\n")
                reader.stdin.flush()
                assert reader.stdout.readline() == "ok\n"
            reader.stdin.close()
        assert reader.returncode == 0


def test_a_reader_is_never_wrong_while_rows_move(tmp_path: Path) -> None:
    """Another process replaces, removes and compacts all the time; answers stay whole."""
    address = tmp_path / "i"
    points = np.random.default_rng(0).standard_normal((300, DIM))
    with Index.create(str(address), KEY) as index:
        index.add(Items.make([f"{n:03d}" for n in range(300)], points, [{"n": n} for n in range(300)]))
    script = textwrap.dedent(
        """
        import sys
        import numpy as np
        from proxemics.search import Index, Items
        points = np.random.default_rng(0).standard_normal((300, 16))
        with Index.open(sys.argv[1]) as index:
            print("open", flush=True)
            for turn in range(60):
                rows = np.random.default_rng(turn).permutation(300)[:50]
                meta = [{"n": int(n)} for n in rows]
                index.upsert(Items.make([f"{n:03d}" for n in rows], points[rows], meta))
                index.compact()
        """
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(address)], stdout=subprocess.PIPE, text=True, env=environment()
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "open\n"
        with Index.open(str(address), read_only=True) as index:
            looks = 0
            while writer.poll() is None:
                row = looks % 300
                (hits,) = index.search(points[row : row + 1], 5)
                assert hits.ids[0] == f"{row:03d}"
                assert [f"{meta['n']:03d}" for meta in hits.meta] == hits.ids
                (hits,) = index.search(points[row : row + 1], 1, where=[Condition("n", "lt", 100)])
                assert hits.meta[0]["n"] < 100  # type: ignore[operator]  # a number
                assert index.count() == 300
                looks += 1
    assert writer.returncode == 0
    assert looks > 5


def test_user_pain_86_a_second_writer_is_told_who_writes(tmp_path: Path) -> None:
    address = str(tmp_path / "i")
    with Index.create(address, KEY) as index:
        index.add(Items.make(["a"], np.ones((1, DIM))))
        with pytest.raises(SearchError, match=rf"open for writing in process {os.getpid()}, which is this one"):
            Index.open(address)
        script = f"from proxemics.search import Index\nIndex.open({address!r})"
        told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert f"is open for writing in process {os.getpid()}, and an index has one writer" in told.stderr
        script = f"from proxemics.search import Index\nprint(Index.open({address!r}, read_only=True).count())"
        told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert told.stdout == "1\n"
    Index.open(address).close()


def test_user_pain_86_a_killed_writer_leaves_no_lock(tmp_path: Path) -> None:
    address = str(tmp_path / "i")
    Index.create(address, KEY).close()
    script = f"from proxemics.search import Index\ni = Index.open({address!r})\nprint('open', flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        with pytest.raises(SearchError, match=f"in process {process.pid}, and"):
            Index.open(address)
        process.kill()
        process.wait()
        Index.open(address).close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    address = str(tmp_path / "i")
    index = Index.create(address, KEY)
    script = textwrap.dedent(
        f"""
        import os, time
        from proxemics.search import Index
        index = Index.open({address!r})
        if os.fork() == 0:
            print(os.getpid(), flush=True)  # from here on it has let go of what it inherited
            time.sleep(60)
            os._exit(0)
        os.kill(os.getpid(), 9)
        """
    )
    index.close()
    told = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert told.stdout is not None
    child = int(told.stdout.readline())
    told.stdout.close()
    told.wait()
    try:
        Index.open(address).close()
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_full_disk_keeps_what_was_there(tmp_path: Path) -> None:
    """Files may not grow beyond a limit, as on a full disk; the call fails, the rows before it stay."""
    script = textwrap.dedent(
        """
        import resource, signal, sys
        import numpy as np
        from proxemics.core.errors import SearchError
        from proxemics.search import Index, Items, ModelKey
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        with Index.create(sys.argv[1], ModelKey(model="m", dim=1000)) as index:
            index.add(Items.make(["a"], np.ones((1, 1000))))
            resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, -1))
            many = Items.make([f"{n}" for n in range(100)], np.random.default_rng(0).standard_normal((100, 1000)))
            try:
                index.add(many)
            except SearchError as error:
                print(error)
            print(index.count(), index.search(np.ones((1, 1000)), 5)[0].ids)
            resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
            print(index.add(many), index.count(), index.verify().problems)
        """
    )
    command = [sys.executable, "-c", script, str(tmp_path / "i")]
    told = subprocess.run(command, capture_output=True, text=True, env=environment(), check=True)
    lines = told.stdout.splitlines()
    assert "cannot be written" in lines[0]
    assert "Nothing of this call was kept" in lines[0]
    assert lines[1:] == ["1 ['a']", "100 101 ()"]
