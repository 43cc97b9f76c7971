"""Vector search beside faiss, usearch and hnswlib used directly, at one thread.

Data: classes of about 12 rows on a 24-dimensional manifold, bent into D dimensions; 1,000 queries that are not in the
index. Rows, for each size:

* ``exact_batch_B``: CPU seconds of one exact search of B queries, k = 10; faiss is ``IndexFlatIP`` with the better of
  its two settings of ``distance_compute_blas_threshold`` (128,000 and 0) for that batch;
* ``exact_int8_batch_B``: the same, ours screening with 8 bits; the answer is still exact;
* ``hnsw_float32`` and ``hnsw_int8``: CPU seconds of 500 queries in one call, with recall@10, CPU seconds of the build
  and bytes on disk; usearch is used directly with the same M, efConstruction and ef; hnswlib has the smallest ef of a
  list that reaches a recall of 0.95. Our memory grows by the files that are mapped; a peer's was loaded before;
* ``hnsw_float32_single``: the same, one query a call;
* ``pgvector_*``, ``milvus_*``: servers, see ``_search_servers.py``.

Every row is written as soon as it is measured, and a finished row is not measured again unless ``--again`` is given;
each says which machine it is from.
Usage: ``python benchmarks/search.py [--size 100000x512 --size 500000x128] [--only NAME] [--rounds 3]``.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from _measure import RESULTS, Task, _status_mb, compare, describe, machine, one_thread, row, write_results
from _search_servers import NEEDS, SERVERS
from _search_servers import measure as measure_server

from proxemics.search.local.graph import connectivity

K = 10
BATCHES = (1, 8, 64, 200, 300, 1000)
QUERIES = 500
TARGET = 0.95
EXPANSIONS = (16, 24, 32, 48, 64, 96, 128, 192, 256)
EXPANSION_ADD = 128
PACKAGES = ("torch", "numpy", "faiss-cpu", "usearch", "hnswlib", "pgvector", "pymilvus", "milvus-lite")
Array = np.ndarray


class Place:
    """Data and indexes of one size on disk, made once."""

    def __init__(self, work: Path, size: str) -> None:
        self.rows, self.dim = (int(part) for part in size.split("x"))
        self.folder = work / size
        self.folder.mkdir(parents=True, exist_ok=True)

    def vectors(self) -> Array:
        """The rows, in memory."""
        return np.array(np.load(self.folder / "vectors.npy", mmap_mode="r"))

    def queries(self, count: int) -> Array:
        """The first queries."""
        return np.load(self.folder / "queries.npy")[:count]

    def truth(self) -> Array:
        """The ten nearest rows of the first 500 queries, by a scan."""
        return np.load(self.folder / "truth.npy")

    def make(self) -> None:
        """Write rows, queries and the exact answers."""
        if (self.folder / "truth.npy").exists():
            return
        rng = np.random.default_rng(0)
        centres = rng.standard_normal((max(1, self.rows // 12), 24), dtype=np.float32)
        first = rng.standard_normal((24, 128), dtype=np.float32) / 24**0.5
        second = rng.standard_normal((128, self.dim), dtype=np.float32)

        def draw(count: int) -> Array:
            latent = centres[rng.integers(0, len(centres), count)]
            latent = latent + np.float32(0.4) * rng.standard_normal((count, 24), dtype=np.float32)
            points = np.tanh(latent @ first) @ second
            return points / np.linalg.norm(points, axis=1, keepdims=True)

        vectors = np.concatenate([draw(min(50_000, self.rows - at)) for at in range(0, self.rows, 50_000)])
        queries = draw(1000)
        truth = [np.argsort(-(queries[at : at + 50] @ vectors.T), axis=1)[:, :K] for at in range(0, QUERIES, 50)]
        np.save(self.folder / "vectors.npy", vectors)
        np.save(self.folder / "queries.npy", queries)
        np.save(self.folder / "truth.npy", np.concatenate(truth))


def forked(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Run in a process of its own; adds its CPU seconds and the growth of its memory."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def child(sender: Connection) -> None:
        Path("/proc/self/clear_refs").write_text("5")
        before, start, wall = _status_mb("VmRSS"), time.process_time(), time.perf_counter()
        found = work()
        took = {"cpu_s": round(time.process_time() - start, 3), "wall_s": round(time.perf_counter() - wall, 3)}
        sender.send({**took, "growth_mb": round(_status_mb("VmHWM") - before, 1), **found})

    process = context.Process(target=child, args=(sender,))
    process.start()
    sender.close()
    answer: dict[str, Any] = receiver.recv()
    process.join()
    return answer


def once(path: Path, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Do a build once and remember what was measured."""
    if not path.exists():
        path.write_text(json.dumps(forked(work)))
    found: dict[str, Any] = json.loads(path.read_text())
    return found


# --- ours


def build_ours(place: Place, kind: str, dtype: str, address: str) -> dict[str, Any]:
    from proxemics.search import Index, ModelKey
    from proxemics.search.build import batches, fill

    vectors = place.vectors()
    meta = [{"label": f"class {row % 1000}"} for row in range(len(vectors))]
    with Index.create(address, ModelKey(model="benchmark", dim=place.dim), kind=kind, dtype=dtype) as index:  # type: ignore[arg-type]
        start = time.process_time()
        fill(index, batches([f"{row:08d}" for row in range(len(vectors))], vectors, meta))
        index.compact()
        return {"cpu_s": round(time.process_time() - start, 3)}


def our_folder(place: Place, kind: str, dtype: str) -> tuple[Path, dict[str, Any]]:
    folder = place.folder / f"ours_{kind}_{dtype}"
    note = place.folder / f"ours_{kind}_{dtype}.json"
    if not note.exists():
        shutil.rmtree(folder, ignore_errors=True)
    return folder, once(note, partial(build_ours, place, kind, dtype, str(folder)))


def ours(place: Place, kind: str, dtype: str, batch: int, repeats: int, *, single: bool = False) -> Task:
    import torch

    from proxemics.search import Index

    torch.set_num_threads(1)
    index = Index.open(str(place.folder / f"ours_{kind}_{dtype}"), read_only=True)
    queries = place.queries(batch)
    if single:
        return Task(lambda: [index.search(one[None], K) for one in queries], repeats=repeats)
    return Task(lambda: index.search(queries, K), repeats=repeats)


def our_recall(place: Place, kind: str, dtype: str) -> dict[str, Any]:
    from proxemics.search import Index

    index = Index.open(str(place.folder / f"ours_{kind}_{dtype}"), read_only=True)
    found = index.search(place.queries(QUERIES), K)
    return {
        "recall": recall([[int(name) for name in hits.ids] for hits in found], place.truth()),
        "facts": index.facts(),  # type: ignore[attr-defined]
    }


def recall(found: Sequence[Sequence[int]] | Array, truth: Array) -> float:
    return round(sum(len(set(one) & set(two.tolist())) for one, two in zip(found, truth, strict=True)) / truth.size, 4)


# --- peers


def faiss_flat(place: Place, batch: int, repeats: int, threshold: int) -> Task:
    # The OpenBLAS inside the wheel does not know newer CPUs and would run at a quarter of the speed.
    if "avx512f" in Path("/proc/cpuinfo").read_text():
        os.environ.setdefault("OPENBLAS_CORETYPE", "SkylakeX")
    import faiss

    faiss.omp_set_num_threads(1)
    faiss.cvar.distance_compute_blas_threshold = threshold
    index = faiss.IndexFlatIP(place.dim)
    index.add(place.vectors())
    queries = place.queries(batch)
    return Task(lambda: index.search(queries, K), repeats=repeats)


def new_usearch(place: Place, dtype: str, expansion: int = 64) -> Any:
    from usearch.index import Index

    return Index(
        ndim=place.dim,
        metric="ip" if dtype == "f32" else "cos",
        dtype=dtype,
        connectivity=connectivity(place.dim, is_int8=dtype == "i8"),
        expansion_add=EXPANSION_ADD,
        expansion_search=expansion,
    )


def build_usearch(place: Place, dtype: str) -> dict[str, Any]:
    vectors, path = place.vectors(), place.folder / f"{dtype}.usearch"
    index = new_usearch(place, dtype)
    start = time.process_time()
    index.add(np.arange(len(vectors)), vectors, threads=1)
    took = time.process_time() - start
    index.save(str(path))
    recalls = {}
    for expansion in EXPANSIONS:
        index.expansion_search = expansion
        recalls[expansion] = recall(index.search(place.queries(QUERIES), K, threads=1).keys.tolist(), place.truth())
    return {"cpu_s": round(took, 3), "bytes": path.stat().st_size, "recalls": recalls}


def usearch(place: Place, dtype: str, expansion: int, batch: int, repeats: int, *, single: bool = False) -> Task:
    index = new_usearch(place, dtype, expansion)
    index.load(str(place.folder / f"{dtype}.usearch"))
    index.expansion_search = expansion
    queries = place.queries(batch)
    if single:
        return Task(lambda: [index.search(one, K, threads=1) for one in queries], repeats=repeats)
    return Task(lambda: index.search(queries, K, threads=1), repeats=repeats)


def build_hnswlib(place: Place) -> dict[str, Any]:
    import hnswlib

    vectors, path = place.vectors(), place.folder / "f32.hnswlib"
    index = hnswlib.Index("ip", place.dim)
    index.init_index(len(vectors), ef_construction=EXPANSION_ADD, M=connectivity(place.dim, is_int8=False))
    index.set_num_threads(1)
    start = time.process_time()
    index.add_items(vectors, np.arange(len(vectors)))
    took = time.process_time() - start
    index.save_index(str(path))
    recalls = {}
    for expansion in EXPANSIONS:
        index.set_ef(expansion)
        recalls[expansion] = recall(index.knn_query(place.queries(QUERIES), K)[0].tolist(), place.truth())
    return {"cpu_s": round(took, 3), "bytes": path.stat().st_size, "recalls": recalls}


def hnswlib_search(place: Place, expansion: int, batch: int, repeats: int) -> Task:
    import hnswlib

    index = hnswlib.Index("ip", place.dim)
    index.load_index(str(place.folder / "f32.hnswlib"))
    index.set_num_threads(1)
    index.set_ef(expansion)
    queries = place.queries(batch)
    return Task(lambda: index.knn_query(queries, K), repeats=repeats)


# --- rows


def exact_row(place: Place, dtype: str, batch: int, rounds: int) -> dict[str, Any]:
    our_folder(place, "exact", dtype)
    repeats = max(2, min(40, 120 // batch))
    tasks: dict[str, Callable[[], Task]] = {
        "ours": partial(ours, place, "exact", dtype, batch, repeats),
        "faiss threshold 128000": partial(faiss_flat, place, batch, repeats, 128_000),
        "faiss threshold 0": partial(faiss_flat, place, batch, repeats, 0),
    }
    found = row("", compare(tasks, rounds))
    best = min(found["peers"].values())
    return {
        **found,
        "queries": batch,
        "qps": round(batch / found["ours"]),
        "speed_over_best_faiss": best / found["ours"],
    }


def hnsw_row(place: Place, dtype: str, rounds: int, *, single: bool) -> dict[str, Any]:
    folder, built = our_folder(place, "hnsw", dtype)
    about = forked(partial(our_recall, place, "hnsw", dtype))
    short = {"float32": "f32", "int8": "i8"}[dtype]
    direct = once(place.folder / f"{short}.usearch.json", partial(build_usearch, place, short))
    expansion = int(about["facts"]["expansion"])
    count, repeats = (100, 3) if single else (QUERIES, 4)
    tasks: dict[str, Callable[[], Task]] = {
        "ours": partial(ours, place, "hnsw", dtype, count, repeats, single=single),
        "usearch": partial(usearch, place, short, expansion, count, repeats, single=single),
    }
    extra: dict[str, Any] = {}
    if not single and dtype == "float32" and find_spec("hnswlib") is None:
        print("hnswlib is not installed, so its figures are left out: pip install hnswlib", flush=True)
    elif not single and dtype == "float32":
        other = once(place.folder / "hnswlib.json", partial(build_hnswlib, place))
        reached = [int(ef) for ef, share in other["recalls"].items() if share >= TARGET]
        ef = min(reached, default=EXPANSIONS[-1])
        tasks["hnswlib"] = partial(hnswlib_search, place, ef, count, repeats)
        extra = {"hnswlib": {**_without_recalls(other), "ef": ef, "recall": other["recalls"][str(ef)]}}
    found = row("", compare(tasks, rounds))
    graph = next(folder.glob("graph-*.usearch")).stat().st_size
    return {
        **found,
        "queries": count,
        "qps": round(count / found["ours"]),
        "overhead_over_usearch": found["ours"] / found["peers"]["usearch"] - 1,
        "recall": about["recall"],
        "ef": expansion,
        "build_cpu_s": built["cpu_s"],
        "build_growth_mb": built["growth_mb"],
        "graph_bytes": graph,
        "folder_bytes": about["facts"]["bytes"],
        "usearch": {**_without_recalls(direct), "recall": direct["recalls"].get(str(expansion))},
        **extra,
    }


def _without_recalls(built: dict[str, Any]) -> dict[str, Any]:
    return {
        ("build_cpu_s" if key == "cpu_s" else key): value for key, value in built.items() if key in ("cpu_s", "bytes")
    }


def server_row(place: Place, server: str, kind: str) -> dict[str, Any]:
    found = forked(lambda: measure_server(server, kind, place.vectors(), place.queries(QUERIES), place.truth()))
    return {key: value for key, value in found.items() if key not in ("cpu_s", "wall_s", "growth_mb")}


def main() -> None:
    """Run the benchmark."""
    one_thread()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", action="append", help="rows x dimensions, e.g. 100000x512; may be repeated")
    parser.add_argument("--only", action="append", help="rows whose names start so; may be repeated")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each implementation")
    parser.add_argument("--again", action="store_true", help="measure finished rows again")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "proxemics-bench-search")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the result file")
    options = parser.parse_args()
    file = options.out / "search.json"
    rows = json.loads(file.read_text())["rows"] if file.exists() else []
    for size in options.size or ["100000x512", "500000x128"]:
        place = Place(options.work, size)
        forked(lambda place=place: place.make() or {})  # type: ignore[misc]  # a default binds the loop
        for name, work in planned(place, options.rounds).items():
            full = f"{name}_{size}"
            wanted = not options.only or any(name.startswith(one) for one in options.only)
            if not wanted or (not options.again and any(one["name"] == full for one in rows)):
                continue
            found = {**work(), "name": full, "machine": machine()}
            rows = [*(one for one in rows if one["name"] != full), found]
            write_results("search", rows, PACKAGES, options.out)
            print(told(found), flush=True)


def planned(place: Place, rounds: int) -> dict[str, Callable[[], dict[str, Any]]]:
    """Every row of a size, in the order of running."""
    plan: dict[str, Callable[[], dict[str, Any]]] = {}
    for batch in BATCHES:
        plan[f"exact_batch_{batch}"] = partial(exact_row, place, "float32", batch, rounds)
    for batch in BATCHES:
        plan[f"exact_int8_batch_{batch}"] = partial(exact_row, place, "int8", batch, rounds)
    for dtype in ("float32", "int8"):
        plan[f"hnsw_{dtype}"] = partial(hnsw_row, place, dtype, rounds, single=False)
        plan[f"hnsw_{dtype}_single"] = partial(hnsw_row, place, dtype, rounds, single=True)
    for server in SERVERS:
        if find_spec(NEEDS[server]) is None:
            print(
                f"{NEEDS[server]} is not installed, so {server} is left out: pip install 'proxemics[dev]'", flush=True
            )
            continue
        for kind in ("exact", "hnsw"):
            plan[f"{server}_{kind}"] = partial(server_row, place, server, kind)
    return plan


def told(found: dict[str, Any]) -> str:
    """One line for the terminal."""
    if found["unit"] == "s":
        keys = ("qps", "qps_in_batches_of_100", "recall", "build_s", "disk_mb", "peak_growth_mb")
        shown = {key: found[key] for key in keys}
        return f"{found['name']}: {shown}"
    keys = ("qps", "speed_over_best_faiss", "overhead_over_usearch", "recall", "ef", "build_cpu_s", "graph_bytes")
    return f"{describe(found)}; { ({key: found[key] for key in keys if key in found}) }"


if __name__ == "__main__":
    main()
