"""Searches of Milvus, and the exact answer from its rows to compare with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from proxemics.search.items import Hits, Items, Meta
from proxemics.search.manifest import Manifest
from proxemics.search.milvus.client import RETRIES

LEAST_SEARCHED = 100
MOST_SEARCHED = 32_768
_ROWS_AN_ANSWER = 20_000


def nearest(
    client: Any, name: str, manifest: Manifest, queries: NDArray[np.float32], k: int, filter_text: str
) -> list[Hits]:
    """Return what Milvus finds, a few queries a message, so that no answer grows beyond one."""
    settings = {"ef": min(MOST_SEARCHED, max(LEAST_SEARCHED, 2 * k))} if manifest.kind == "hnsw" else {}
    step = max(1, min(256, _ROWS_AN_ANSWER // k))
    found: list[Hits] = []
    for start in range(0, len(queries), step):
        answers = client.search(
            name,
            data=list(queries[start : start + step]),
            anns_field="embedding",
            limit=k,
            filter=filter_text,
            output_fields=["metadata"],
            search_params={"metric_type": "IP", "params": settings},
            consistency_level="Strong",
            **RETRIES,
        )
        found += [
            _hits([(-row["distance"], row["id"], row["entity"]["metadata"]) for row in one], k) for one in answers
        ]
    return found


def exactly(parts: Iterable[Items], queries: NDArray[np.float32], k: int) -> list[Hits]:
    """Return the nearest rows of each query by looking at all rows, part by part.

    Args:
        parts: all rows, of unit length.
        queries: (Q, D) of unit length.
        k: rows a query.
    """
    best: list[list[tuple[float, str, Meta]]] = [[] for _ in queries]
    for part in parts:
        scores = queries @ part.vectors.T
        kept = min(k, len(part))
        chosen = np.argpartition(-scores, kept - 1, axis=1)[:, :kept]
        for place, columns in enumerate(chosen):
            rows = [(-float(scores[place, n]), part.ids[n], part.meta[n]) for n in columns]
            best[place] = sorted(best[place] + rows, key=lambda row: row[:2])[:k]
    return [_hits(rows, k) for rows in best]


def _hits(rows: Sequence[tuple[float, str, Meta]], k: int) -> Hits:
    """Make a result of rows (minus score, id, metadata)."""
    order = sorted(rows, key=lambda row: (np.float32(row[0]), row[1]))
    scores = np.array([-row[0] for row in order], np.float32).clip(-1, 1)
    return Hits([row[1] for row in order], scores, [row[2] for row in order], missing=k - len(order))
