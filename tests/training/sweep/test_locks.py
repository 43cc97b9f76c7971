"""Locks: one owner among many, and none that is dead."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from proxemics.training.sweep.locks import STALE_SECONDS, acquire, is_held, started_at

ACQUIRE = """
import sys, time
from pathlib import Path
from proxemics.training.sweep.locks import acquire
folder = Path(sys.argv[1])
while not (folder / "go").exists():
    time.sleep(0.001)
print(acquire(folder / "cell" / "lock", folder) is not None, flush=True)
sys.stdin.read()
"""


def change(path: Path, **values: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_a_lock_has_one_owner_until_it_is_released(tmp_path: Path) -> None:
    path = tmp_path / "cell" / "lock"
    lock = acquire(path, tmp_path)
    assert lock is not None
    assert acquire(path, tmp_path) is None
    assert lock.beat()
    lock.release()
    assert not path.exists()
    assert acquire(path, tmp_path) is not None


def test_the_lock_of_a_dead_process_is_taken_over_by_exactly_one(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    path = tmp_path / "cell" / "lock"
    assert acquire(path, tmp_path) is not None
    change(path, pid=gone.pid, started=1)
    assert not is_held(path)
    line = [sys.executable, "-c", ACQUIRE, str(tmp_path)]
    rivals = [subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    (tmp_path / "go").touch()
    with ThreadPoolExecutor() as pool:
        answers = list(pool.map(lambda one: one.stdout.readline().strip(), rivals))
    for one in rivals:
        one.communicate("")
    assert sorted(answers) == ["False", "False", "False", "True"]


@pytest.mark.skipif(started_at(os.getpid()) is None, reason="needs /proc")
def test_a_later_process_with_the_same_number_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "cell" / "lock"
    acquire(path, tmp_path)
    change(path, started=12345)
    assert not is_held(path)


def test_the_run_keeps_the_lock_of_a_dead_sweep(tmp_path: Path) -> None:
    path = tmp_path / "cell" / "lock"
    lock = acquire(path, tmp_path)
    assert lock is not None
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    lock.note_child(child.pid)
    change(path, pid=2**22 + 1)
    assert is_held(path)
    child.kill()
    deadline = time.time() + 5
    while is_held(path) and time.time() < deadline:
        time.sleep(0.02)
    assert not is_held(path)  # a zombie until it is waited for
    child.wait()


def test_another_machine_is_judged_by_its_heartbeat(tmp_path: Path) -> None:
    path = tmp_path / "cell" / "lock"
    lock = acquire(path, tmp_path)
    assert lock is not None
    change(path, place="elsewhere", pid=1)
    assert is_held(path)
    old = time.time() - STALE_SECONDS - 1
    os.utime(path, (old, old))
    assert not is_held(path)
    assert acquire(path, tmp_path) is not None
    change(path, place="elsewhere")
    assert not lock.beat()  # the first owner learns that it lost the lock
    lock.release()
    assert path.exists()
