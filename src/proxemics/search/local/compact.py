"""Compacting: vectors without removed rows, and a graph over all, beside the old files until they are committed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from proxemics.search.items import unit_rows
from proxemics.search.local.codes import quantise
from proxemics.search.local.database import Database, GraphFacts, State
from proxemics.search.local.graph import Graph, build_graph, checksum, require_usearch, unreached
from proxemics.search.local.layout import codes_file, graph_name, scales_file, strangers, vectors_file
from proxemics.search.local.plan import nearest
from proxemics.search.local.snapshot import Snapshot, keeps_codes
from proxemics.search.local.vectors import Appender, map_rows, sync
from proxemics.search.manifest import Manifest

TARGET = 0.97
"""Recall@10 that the expansion of a graph is chosen for."""
EXPANSIONS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
SAMPLE = 200
BLOCK = 50_000


def rewrite(folder: Path, snapshot: Snapshot, manifest: Manifest) -> None:
    """Write the rows that are left as the files of the next generation."""
    generation, dim = snapshot.state.generation + 1, manifest.key.dim
    live = np.setdiff1d(np.arange(snapshot.state.length), snapshot.dead, assume_unique=True)
    files = [Appender(vectors_file(folder, generation), 0, dim, np.float32)]
    if keeps_codes(manifest):
        files.append(Appender(codes_file(folder, generation), 0, dim, np.int8))
        files.append(Appender(scales_file(folder, generation), 0, 2, np.float32))
    try:
        for start in range(0, len(live), BLOCK):
            block = snapshot.vectors[live[start : start + BLOCK]]
            parts: Sequence[NDArray[np.generic]] = (block, *(quantise(block) if len(files) > 1 else ()))
            for file, part in zip(files, parts, strict=True):
                file.write(start, part)
    finally:
        for file in files:
            file.close()


def make_graph(
    folder: Path, snapshot: Snapshot, manifest: Manifest, progress: Callable[[int], None] | None = None
) -> GraphFacts | None:
    """Build and measure a graph over the live rows; None where it would be empty.

    Args:
        folder: of the index; where rows were removed, it holds the next generation already.
        snapshot: the state before.
        manifest: of the index.
        progress: called with the number of rows done.

    Returns:
        What is known of the file, with the smallest expansion whose recall@10 over a sample reaches
        :data:`TARGET`.
    """
    if snapshot.live == 0:
        return None
    require_usearch()
    moved = len(snapshot.dead) > 0
    generation = snapshot.state.generation + moved
    before = snapshot.state.graph
    number = 1 if moved or before is None else int(before.file.rpartition("-")[2].partition(".")[0]) + 1
    vectors = snapshot.vectors
    if moved:
        vectors = map_rows(vectors_file(folder, generation), snapshot.live, manifest.key.dim, np.float32)  # type: ignore[assignment]  # the dtype is given
    path = folder / graph_name(generation, number)
    temporary = path.with_name(f".{path.name}")
    native = build_graph(temporary, vectors, manifest, progress)
    sync(temporary)
    temporary.replace(path)
    facts = GraphFacts(
        file=path.name,
        covered=len(vectors),
        size=path.stat().st_size,
        crc=checksum(path),
        expansion=EXPANSIONS[-1],
        recall=0.0,
    )
    is_int8 = manifest.dtype == "int8"
    facts = facts.model_copy(update={"unreached": unreached(Graph(native, facts, is_int8=is_int8), vectors)})
    state = State(0, generation, len(vectors), "", facts)
    graph = Graph(native, facts, is_int8=is_int8)
    return _measured(Snapshot(state, vectors, np.empty(0, np.int64), 0, None, None, graph))


def recall_of(found: Sequence[Sequence[int]], wanted: Sequence[Sequence[int]]) -> float:
    """Return the share of the wanted slots that were found, over all queries; 1 where nothing was wanted.

    Example:
        >>> recall_of([[1, 2]], [[1, 3]])
        0.5
    """
    total = sum(len(one) for one in wanted)
    shared = sum(len(set(one) & set(other)) for one, other in zip(found, wanted, strict=True))
    return shared / total if total else 1.0


def _measured(snapshot: Snapshot) -> GraphFacts:
    """Choose the expansion, with queries halfway between a row and its tenth neighbour: no rows, but near to some."""
    graph = snapshot.graph
    assert graph is not None
    count = snapshot.state.length
    k, names = min(10, count), _numbered(count)
    sample = np.sort(np.random.default_rng(0).choice(count, min(SAMPLE, count), replace=False))
    own = np.ascontiguousarray(snapshot.vectors[sample])
    near = nearest(snapshot, own, k, matching=None, names=names, exact=True)
    queries = unit_rows(own.astype(np.float64) + 1.001 * snapshot.vectors[[slots[-1] for slots, _ in near]])
    wanted = [slots for slots, _ in nearest(snapshot, queries, k, matching=None, names=names, exact=True)]
    facts = graph.facts
    for expansion in EXPANSIONS:
        slots, _ = graph.search(queries, 2 * k if graph.is_int8 else k, expansion=expansion)
        recall = round(recall_of(_best(snapshot, queries, slots, k), wanted), 4)
        facts = facts.model_copy(update={"expansion": expansion, "recall": recall})
        if recall >= TARGET:
            break
    return facts


def _best(snapshot: Snapshot, queries: NDArray[np.float32], slots: NDArray[np.int64], k: int) -> list[list[int]]:
    scores = np.einsum("qd,qkd->qk", queries, snapshot.vectors[slots])
    scores[slots < 0] = -math.inf
    return [slots[row, np.argsort(-scores[row])[:k]].tolist() for row in range(len(queries))]


def _numbered(count: int) -> Callable[[Sequence[int]], list[str]]:
    width = len(str(count))
    return lambda slots: [f"{slot:0{width}d}" for slot in slots]


def commit(folder: Path, database: Database, snapshot: Snapshot, graph: GraphFacts | None) -> State:
    """Switch over in one transaction, then delete what is no longer used."""
    moved = len(snapshot.dead) > 0
    text = None if graph is None else graph.model_dump_json()
    sync(folder)  # the names of the new files, before anything counts on them
    with database.writing() as link:
        if moved:
            link.execute(
                "CREATE TABLE fresh (slot INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, meta TEXT NOT NULL, "
                "crc INTEGER NOT NULL)"
            )
            link.execute(
                "INSERT INTO fresh SELECT row_number() OVER (ORDER BY slot) - 1, id, meta, crc FROM rows ORDER BY slot"
            )
            link.execute("DROP TABLE rows")
            link.execute("ALTER TABLE fresh RENAME TO rows")
            link.execute("DELETE FROM dead")
        link.execute(
            "UPDATE state SET version = version + 1, generation = generation + ?, length = ?, graph = ?",
            [int(moved), snapshot.live, text],
        )
    state = database.state()
    sweep(folder, state)
    if moved:
        database.vacuum()
    return state


def sweep(folder: Path, state: State) -> None:
    """Delete files that belong to no state; what is still open elsewhere on Windows goes the next time."""
    for path in strangers(folder, state.generation, None if state.graph is None else state.graph.file):
        with suppress(OSError):
            path.unlink()
