"""The HNSW graph, by usearch: a cache of the vectors, built as a whole and never changed."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from proxemics.core.errors import SearchError
from proxemics.search.local.codes import round_rows
from proxemics.search.local.database import GraphFacts
from proxemics.search.manifest import Manifest

EXPANSION_ADD = 128
SHORT = 192
"""Up to so many bytes a row, a graph of 8-bit rows keeps fewer links, because these are half of it or nearly so."""
BLOCK = 20_000


def connectivity(dim: int, *, is_int8: bool) -> int:
    """Return the links a node keeps on every level; twice as many on the lowest, of four bytes each.

    For 128 numbers a graph of 8-bit rows with 10 links takes .35 of the room of one of float32 rows, with 16 .42. The
    price is recall: .956 against .978 of 500,000 rows at the same expansion; a wider search makes up for it.

    Example:
        >>> connectivity(128, is_int8=True), connectivity(128, is_int8=False), connectivity(512, is_int8=True)
        (10, 16, 16)
    """
    return 10 if is_int8 and dim <= SHORT else 16


class Graph:
    """A graph ready to search.

    Args:
        native: the usearch index.
        facts: see :class:`GraphFacts`.
        is_int8: whether it holds 8-bit codes, whose scores are rough.
    """

    def __init__(self, native: Any, facts: GraphFacts, *, is_int8: bool) -> None:
        self._native, self.facts, self.is_int8 = native, facts, is_int8
        self._lock = threading.Lock()  # calls of usearch share the buffers of its threads

    def search(
        self, queries: NDArray[np.float32], k: int, *, expansion: int | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Find about the nearest slots.

        Args:
            queries: (Q, D) unit rows.
            k: slots a query.
            expansion: candidates kept; default: what was chosen at the build.

        Returns:
            (Q, k) slots, -1 where fewer were found, and (Q, k) scores.
        """
        given = round_rows(queries)[0] if self.is_int8 else queries
        with self._lock:
            self._native.expansion_search = max(expansion or self.facts.expansion, k)
            found = self._native.search(given, k, threads=threads())
        keys, distances = np.asarray(found.keys), np.asarray(found.distances)
        if keys.size == len(queries) * k and (len(queries) == 1 or int(np.asarray(found.counts).min()) == k):
            return keys.astype(np.int64).reshape(-1, k), 1 - distances.reshape(-1, k)
        slots, scores = np.full((len(queries), k), -1, np.int64), np.full((len(queries), k), -1, np.float32)
        counts = [keys.size] if len(queries) == 1 else found.counts  # one query comes without empty places and axis
        for row, count in enumerate(counts):
            slots[row, :count] = keys.reshape(len(queries), -1)[row, :count]
            scores[row, :count] = 1 - distances.reshape(len(queries), -1)[row, :count]
        return slots, scores


def build_graph(
    path: Path, vectors: NDArray[np.float32], manifest: Manifest, progress: Callable[[int], None] | None = None
) -> Any:
    """Build a graph over all rows and write it.

    Args:
        path: where to; replaced by the caller.
        vectors: (N, D) unit rows; row i gets the key i.
        manifest: says whether codes or float32 numbers are kept.
        progress: called with the number of rows done.

    Returns:
        The usearch index.
    """
    native = _new(manifest)
    for start in range(0, len(vectors), BLOCK):
        block = np.ascontiguousarray(vectors[start : start + BLOCK])
        keys = np.arange(start, start + len(block), dtype=np.uint64)
        native.add(keys, round_rows(block)[0] if manifest.dtype == "int8" else block, threads=threads())
        if progress is not None:
            progress(start + len(block))
    native.save(str(path))
    return native


def unreached(graph: Graph, vectors: NDArray[np.float32]) -> tuple[int, ...]:
    """Return the slots that a search for their own vectors does not come to, unless many have the same vector.

    Pruning cuts all the links to a few rows, whatever the expansion; searches have to look at those themselves.

    Args:
        graph: over all rows.
        vectors: (N, D) unit rows.
    """
    left = np.arange(len(vectors), dtype=np.int64)
    for k, expansion in ((1, 4), (8, 32), (32, 128)):  # most are come to at once
        lost = [np.empty(0, np.int64)]
        for start in range(0, len(left), BLOCK):
            slots = left[start : start + BLOCK]
            found, _ = graph.search(np.ascontiguousarray(vectors[slots]), min(k, len(vectors)), expansion=expansion)
            away = np.flatnonzero((found != slots[:, None]).all(axis=1))
            if k == 32:  # a list full of equal rows may have left this one out; one equal row says nothing of it
                last = found[away, -1]
                away = away[~((vectors[last] == vectors[slots[away]]).all(axis=1) & (last >= 0))]
            lost.append(slots[away])
        left = np.concatenate(lost)
    return tuple(left.tolist())


def open_graph(folder: Path, facts: GraphFacts, manifest: Manifest) -> Graph | None:
    """Map a graph file; None when it is absent or of another size, so that the search goes without it."""
    path = folder / facts.file
    if not path.exists() or path.stat().st_size != facts.size:
        return None
    native = _new(manifest)
    native.view(str(path))
    return Graph(native, facts, is_int8=manifest.dtype == "int8")


def checksum(path: Path) -> int:
    """Return the CRC-32 of a file."""
    crc = 0
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            crc = zlib.crc32(block, crc)
    return crc


def threads() -> int:
    """As many threads as torch uses, so that one setting holds for all searches."""
    import torch

    return torch.get_num_threads()


def require_usearch() -> None:
    """Refuse early where the package is absent.

    Raises:
        SearchError: names the extra.
    """
    try:
        import usearch.index  # noqa: F401  # only whether it is there
    except ImportError as error:
        raise SearchError('An hnsw index needs usearch; install it with: pip install "proxemics[index]".') from error


def _new(manifest: Manifest) -> Any:
    from usearch.compiled import MetricKind, ScalarKind
    from usearch.index import Index

    # The type is always named: without one usearch keeps fewer bits, and neighbours are lost.
    is_int8 = manifest.dtype == "int8"
    return Index(
        ndim=manifest.key.dim,
        metric=MetricKind.Cos if is_int8 else MetricKind.IP,  # codes have steps of their own, which a cosine ignores
        dtype=ScalarKind.I8 if is_int8 else ScalarKind.F32,
        connectivity=connectivity(manifest.key.dim, is_int8=is_int8),
        expansion_add=EXPANSION_ADD,
        enable_key_lookups=False,
    )
