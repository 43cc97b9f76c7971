"""What a search looks at: one committed state with its files mapped, which no later change touches."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from proxemics.search.local.database import Database, State, dead_slots
from proxemics.search.local.graph import Graph, open_graph
from proxemics.search.local.layout import codes_file, scales_file, vectors_file
from proxemics.search.local.vectors import map_rows
from proxemics.search.manifest import Manifest


@dataclass(frozen=True, eq=False)
class Snapshot:
    """One committed state.

    Attributes:
        state: see :class:`State`.
        vectors: (length, D) float32, mapped.
        dead: (n,) int64 rising slots of removed rows.
        deaths: number of the last removal.
        codes: (length, D) int8 for exact search with int8, else None.
        scales: (length, 2) float32 beside them.
        graph: None where there is none, or its file is not whole.
    """

    state: State
    vectors: NDArray[np.float32]
    dead: NDArray[np.int64]
    deaths: int
    codes: NDArray[np.int8] | None
    scales: NDArray[np.float32] | None
    graph: Graph | None

    @property
    def live(self) -> int:
        """How many rows there are."""
        return self.state.length - len(self.dead)

    @cached_property
    def unreached(self) -> NDArray[np.float32]:
        """(n, D) vectors of the rows that the graph holds and never comes to, read once."""
        slots = self.graph.facts.unreached if self.graph is not None else ()
        return np.asarray(self.vectors[list(slots)])


class StaleError(Exception):
    """Another process changed the index in between; look at its newest state and try again."""


class Snapshots:
    """Hands out the newest snapshot.

    Args:
        folder: of the index.
        database: a reading connection.
        manifest: of the index.
    """

    def __init__(self, folder: Path, database: Database, manifest: Manifest) -> None:
        self._folder, self._database, self._manifest = folder, database, manifest
        self._last: Snapshot | None = None

    def newest(self) -> Snapshot:
        """Return the state committed last, read from disk where it is not the one held.

        Raises:
            SearchError: a file of the index is damaged.
            StaleError: the index was compacted between reading the state and opening its files.
        """
        last = self._last
        if last is not None and self._database.version() == last.state.version:
            return last
        with self._database.reading():
            last = self._last
            if last is None or self._database.version() != last.state.version:
                try:
                    last = self._last = self._read(last)
                except FileNotFoundError as error:
                    raise StaleError(str(error)) from error
            return last

    def _read(self, last: Snapshot | None) -> Snapshot:
        with self._database.reading() as link:
            state = self._database.state()
            same = last is not None and last.state.generation == state.generation
            fresh = dead_slots(link, last.deaths if last is not None and same else 0)
        before = last.dead if last is not None and same else np.empty(0, np.int64)
        dead = np.sort(np.concatenate([before, np.array([slot for _, slot in fresh], np.int64)])) if fresh else before
        deaths = fresh[-1][0] if fresh else (last.deaths if last is not None and same else 0)
        generation, length, dim = state.generation, state.length, self._manifest.key.dim
        vectors = map_rows(vectors_file(self._folder, generation), length, dim, np.float32)
        codes = scales = None
        if keeps_codes(self._manifest):
            codes = map_rows(codes_file(self._folder, generation), length, dim, np.int8)
            scales = map_rows(scales_file(self._folder, generation), length, 2, np.float32)
        graph = last.graph if last is not None and last.state.graph == state.graph else None
        if graph is None and state.graph is not None:
            graph = open_graph(self._folder, state.graph, self._manifest)
        return Snapshot(state, vectors, dead, deaths, codes, scales, graph)  # type: ignore[arg-type]  # dtypes are given


def keeps_codes(manifest: Manifest) -> bool:
    """Whether rows are kept in 8 bits too: where an exact search screens with them. A graph holds its own."""
    return manifest.kind == "exact" and manifest.dtype == "int8"
