"""Processes that begin with torch, timm and the package already imported, which takes a new one ten seconds.

They are forked from a server that has imported all of it and done nothing else, and are otherwise like new ones: with
a number, folder, environment, files and exit code of their own. Only what is settled when Python starts or torch is
imported is that of the server: the seed of ``hash``, the number of threads (one). The ``forkserver`` of multiprocessing
does not do: its children end without their exit functions and outlive a session that is killed, and code under test
might use it itself.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HEAVY = (
    "proxemics.cli.main", "proxemics.cli.run", "proxemics.training.pipeline", "proxemics.serve.run",
    "proxemics.serve.app", "timm.data", "sklearn.metrics",
)  # fmt: skip
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
POLL_SECONDS = 0.005


class Process:
    """A forked process, used like one of subprocess."""

    def __init__(self, warm: Warm, pid: int) -> None:
        self.warm, self.pid = warm, pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self.warm.ask({"wait": self.pid})
        return self.returncode

    def wait(self, timeout: float = 240) -> int:
        end = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise TimeoutError(f"process {self.pid} still runs after {timeout} s")
            time.sleep(POLL_SECONDS)
        return code

    def send_signal(self, number: int) -> None:
        """Do nothing when it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Warm:
    """The server. Command lines are those of Python: a script or -m and a module, then what they are given."""

    def __init__(self, modules: Sequence[str] = HEAVY) -> None:
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the server
        self.server = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("_server.py")), *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env={**os.environ, **ONE_THREAD},
        )

    def ask(self, request: dict[str, Any]) -> Any:
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        try:
            self.server.stdin.write(f"{json.dumps(request)}\n")
            self.server.stdin.flush()
            return json.loads(self.server.stdout.readline())
        except (BrokenPipeError, json.JSONDecodeError) as error:
            self.log.seek(0)
            raise RuntimeError(f"the warm server died: {self.log.read()}") from error

    def start(
        self,
        line: list[str],
        *,
        out: Path | str = os.devnull,
        err: Path | str = os.devnull,
        cwd: Path | None = None,
        env: Mapping[str, str] = os.environ,
        limit_file_bytes: int | None = None,
    ) -> Process:
        request = {"line": line, "out": str(out), "err": str(err), "cwd": str(cwd or Path.cwd())}
        return Process(self, self.ask({**request, "env": {**env, **ONE_THREAD}, "limit_file_bytes": limit_file_bytes}))

    def run(self, line: list[str], *, timeout: float = 240, **options: Any) -> subprocess.CompletedProcess[str]:
        """Wait for the end and return code, standard output and standard error."""
        with tempfile.TemporaryDirectory() as folder:
            out, err = Path(folder, "out"), Path(folder, "err")
            process = self.start(line, out=out, err=err, **options)
            try:
                code = process.wait(timeout)
            finally:
                process.kill()
            return subprocess.CompletedProcess(line, code, out.read_text(), err.read_text())

    def run_ranks(self, line: list[str], *, count: int = 2, timeout: float = 240) -> None:
        """Run the processes of one group, in the environment that torchrun gives them; all must end well."""
        from torch.distributed import TCPStore

        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # on a port that is free
        same = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
        same |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"), str(count))
        same |= {"GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1", "ROLE_NAME": "default"}
        same |= {"TORCHELASTIC_RUN_ID": "warm", "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0"}
        with tempfile.TemporaryDirectory() as folder:
            logs = [Path(folder, str(rank)) for rank in range(count)]
            processes = []
            for rank, log in enumerate(logs):
                own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "ROLE_RANK": str(rank)}
                processes.append(self.start(line, out=log, err=log, env={**os.environ, **same, **own}))
            end = time.monotonic() + timeout
            try:
                while None in (codes := [one.poll() for one in processes]) and not any(codes):
                    assert time.monotonic() < end, "the processes wait for something"
                    time.sleep(POLL_SECONDS)
            finally:
                for one in processes:
                    one.kill()
            assert codes == [0] * count, "\n".join(log.read_text()[-2000:] for log in logs)

    def close(self) -> None:
        """End the server, which ends what it has started."""
        assert self.server.stdin is not None
        self.server.stdin.close()
        self.server.wait(60)
        self.log.close()
