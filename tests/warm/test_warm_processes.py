"""Warm processes are like new ones in all that tests rely on."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from warm_processes import Process, Warm

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")


@pytest.fixture(scope="module")
def quick() -> Iterator[Warm]:
    """A server that imports nothing."""
    server = Warm(())
    yield server
    server.close()


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], list[str]]:
    """Write a script and return the beginning of its command line."""

    def write(text: str) -> list[str]:
        (tmp_path / "script.py").write_text(text)
        return [str(tmp_path / "script.py")]

    return write


def test_it_has_what_a_process_has(quick: Warm, script: Callable[[str], list[str]], tmp_path: Path) -> None:
    text = """
import atexit, json, os, signal, sys
if __name__ == "__main__":
    atexit.register(print, "the end")
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    os.write(1, b"raw\\n")
    print(json.dumps([sys.argv, sys.path[0], os.getcwd(), dict(os.environ), sys.stdin.read(), usual]))
    print("words", file=sys.stderr)
    sys.exit(7)
"""
    (tmp_path / "here").mkdir()
    line = [*script(text), "é", "--b"]
    done = quick.run(line, cwd=tmp_path / "here", env={"A": "ü"})
    assert done.returncode == 7
    assert done.stderr == "words\n"
    raw, told, end = done.stdout.splitlines()
    assert (raw, end) == ("raw", "the end")
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    assert json.loads(told) == [line, str(tmp_path), str(tmp_path / "here"), {"A": "ü", **threads}, "", True]


def test_it_ends_as_a_process_ends(quick: Warm, script: Callable[[str], list[str]]) -> None:
    assert quick.run(script("pass")).returncode == 0
    done = quick.run(script("raise SystemExit('a sentence')"))
    assert (done.returncode, done.stderr) == (1, "a sentence\n")
    done = quick.run(script("1 / 0"))
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr
    assert quick.run(script("import os; os.kill(os.getpid(), 15)")).returncode == -signal.SIGTERM
    done = quick.run(script("print('x' * 10_000, flush=True)"), limit_file_bytes=5000)
    assert done.returncode == 1
    assert "File too large" in done.stderr


def test_a_module_is_run_as_python_runs_it(quick: Warm, tmp_path: Path) -> None:
    package = tmp_path / "package_of_a_test"
    package.mkdir()
    (package / "__main__.py").write_text("import sys, __main__; print(__spec__.name, __main__.__spec__.name, sys.argv)")
    done = quick.run(["-m", package.name, "-x"], cwd=tmp_path)
    assert done.stdout == f"{package.name}.__main__ {package.name}.__main__ {[str(package / '__main__.py'), '-x']}\n"


def test_no_two_draw_the_same(quick: Warm, script: Callable[[str], list[str]]) -> None:
    line = script("import random, numpy as np; print(random.random()); print(np.random.rand())")
    drawn = [quick.run(line).stdout for _ in range(2)]
    assert set(drawn[0].split()).isdisjoint(drawn[1].split())


def wait_for(path: Path) -> None:
    end = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < end
        time.sleep(0.005)


def start_sleeper(server: Warm, script: Callable[[str], list[str]], tmp_path: Path) -> Process:
    sleeper = server.start([*script("import sys, time; open(sys.argv[1], 'x'); time.sleep(600)"), str(tmp_path / "up")])
    wait_for(tmp_path / "up")
    assert sleeper.poll() is None
    return sleeper


def test_it_can_be_killed(quick: Warm, script: Callable[[str], list[str]], tmp_path: Path) -> None:
    sleeper = start_sleeper(quick, script, tmp_path)
    assert sleeper.pid not in (os.getpid(), quick.server.pid)
    sleeper.kill()
    assert sleeper.wait(10) == -signal.SIGKILL


@pytest.mark.skipif(sys.platform != "linux", reason="looks processes up in /proc")
def test_none_outlives_the_session(script: Callable[[str], list[str]], tmp_path: Path) -> None:
    server = Warm(())
    sleeper = start_sleeper(server, script, tmp_path)
    server.close()  # closes a pipe, as the kernel does for a session that is killed
    end = time.monotonic() + 10
    while Path(f"/proc/{sleeper.pid}").exists():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_two_ranks_talk_and_one_that_fails_ends_both(warm: Warm, script: Callable[[str], list[str]]) -> None:
    line = script("""
import sys
import torch.distributed as dist
dist.init_process_group("gloo")
found = [None, None]
dist.all_gather_object(found, dist.get_rank())
assert found == [0, 1]
if sys.argv[1] == str(dist.get_rank()):
    sys.exit("one gave up")
if sys.argv[1] != "none":
    dist.barrier()
""")
    warm.run_ranks([*line, "none"])
    began = time.monotonic()
    with pytest.raises(AssertionError, match="one gave up"):
        warm.run_ranks([*line, "1"])
    assert time.monotonic() - began < 60


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_what_is_imported_starts_no_thread_that_a_child_would_miss(
    warm: Warm, script: Callable[[str], list[str]]
) -> None:
    assert warm.run(script("import sys; sys.exit('torch' not in sys.modules)")).returncode == 0
    tasks = Path(f"/proc/{warm.server.pid}/task")
    others = [task for task in tasks.iterdir() if task.name != str(warm.server.pid)]
    names = {(task / "comm").read_text().strip() for task in others}
    assert names <= {"jemalloc_bg_thd"}  # of pyarrow; it starts again in a child
