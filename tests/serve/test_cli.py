"""`proxemics serve` as people start and stop it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def proxemics(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "proxemics", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)


def test_it_starts_on_a_free_port_of_this_machine_and_stops_cleanly(
    gallery: Any, start_process: Callable[..., Any], encode: Callable[..., bytes], photo: Any
) -> None:
    command = ["-m", "proxemics", "serve", str(gallery.bundle), "--index", str(gallery.index), "--port", "0"]
    options = ["--pictures", str(gallery.pictures), "--engine", "torch", "--max-megapixels", "4"]
    running = start_process([*command, *options])
    try:
        assert running.address.startswith("http://127.0.0.1:")
        assert listening(running.process.pid, running.port) == [f"0100007F:{running.port:04X}"]  # user-pains 88
        assert running.client.post("/v1/search", content=encode(photo(1, (2500, 2000)))).status_code == 413
        data = encode(photo(1, (2000, 2000)), compress_level=1)
        statuses: list[int] = []

        def ask() -> None:
            statuses.append(running.client.post("/v1/search", content=data).status_code)

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        while "proxemics_in_flight 5.0" not in running.client.get("/metrics").text and not statuses:
            time.sleep(0.01)
        running.process.send_signal(signal.SIGINT)
        for thread in threads:
            thread.join()
        assert statuses == [200] * 4, "a request that was accepted was dropped"
    finally:
        code, errors = running.stop(None if running.process.poll() is None and statuses else signal.SIGTERM)
    assert code == 130
    assert "Traceback" not in errors


def listening(process: int, port: int) -> list[str]:
    """Return the local addresses at which anything listens on a port."""
    rows = [line.split() for line in Path(f"/proc/{process}/net/tcp").read_text().splitlines()[1:]]
    return [row[1] for row in rows if row[3] == "0A" and int(row[1].partition(":")[2], 16) == port]


def test_wrong_options_are_refused_in_one_line(gallery: Any, tmp_path: Path) -> None:
    base = ["serve", str(gallery.bundle), "--index", str(gallery.index)]
    (tmp_path / "key").write_text("short\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for arguments, text in (
            (["--host", "0.0.0.0"], "give --key-file, or say --no-key"),
            (["--key-file", str(tmp_path / "key")], "at least 16"),
            (["--port", "99999"], "--port 99999"),
            (["--max-mb", "0"], "--max-mb"),
            (["--max-mb", "nan"], "--max-mb nan: give a finite number."),
            (["--max-megapixels", "inf"], "--max-megapixels inf"),
            (["--rate", "inf"], "--rate inf"),
            (["--port", port], "--port 0 for any"),
        ):
            done = proxemics(*base, *arguments)
            assert done.returncode == 2, done.stderr
            assert text in done.stderr
            assert len(done.stderr.strip().splitlines()) == 1, done.stderr


def test_help_is_quick_and_names_the_options() -> None:
    done = proxemics("serve", "--help")
    assert done.returncode == 0
    for option in ("--index", "--host", "--port", "--pictures", "--key-file", "--rate", "--open"):
        assert option in done.stdout
    code = "from proxemics.cli.serve import serve; import sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


@pytest.mark.slow
def test_an_absent_index_is_named(gallery: Any, tmp_path: Path) -> None:
    done = proxemics(
        "serve", str(gallery.bundle), "--index", str(tmp_path / "none"), "--port", "0", "--engine", "torch"
    )
    assert done.returncode == 2
    assert "does not exist" in done.stderr
