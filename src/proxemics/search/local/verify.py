"""Looking for damage: checksums of rows, sizes of files, and whether what the database says is what lies there."""

from __future__ import annotations

import hashlib
import sqlite3
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from proxemics.search.local.codes import quantise
from proxemics.search.local.database import Database, rows_of_slots
from proxemics.search.local.graph import checksum
from proxemics.search.local.layout import MANIFEST
from proxemics.search.local.snapshot import Snapshot

BLOCK = 50_000


def manifest_digest(text: str) -> str:
    """Return the SHA-256 of a manifest's text, which the database remembers."""
    return hashlib.sha256(text.encode()).hexdigest()


def damage(folder: Path, database: Database, snapshot: Snapshot) -> list[str]:
    """Return a sentence for everything that does not agree.

    Args:
        folder: of the index.
        database: a reading connection, inside the state of the snapshot.
        snapshot: the state to look at.
    """
    with database.reading() as link:
        problems = [*_manifest(folder, snapshot), *_database(link, snapshot), *_rows(link, snapshot.vectors)]
        problems += _codes(link, snapshot)
    return [*problems, *_graph(folder, snapshot)]


def _manifest(folder: Path, snapshot: Snapshot) -> list[str]:
    digest = manifest_digest((folder / MANIFEST).read_text(encoding="utf-8", errors="replace"))
    if digest == snapshot.state.manifest:
        return []
    return [f"{MANIFEST} was changed after the index was made; the model it names may not be the one of the vectors."]


def _database(link: sqlite3.Connection, snapshot: Snapshot) -> list[str]:
    (told,) = link.execute("PRAGMA quick_check(1)").fetchone()
    problems = [] if told == "ok" else [f"The database is damaged: {told}."]
    (count,) = link.execute("SELECT count(*) FROM rows").fetchone()
    if count != snapshot.live:
        problems.append(f"The database has {count} rows and {snapshot.live} vectors are in use.")
    return problems


def _rows(link: sqlite3.Connection, vectors: NDArray[np.float32]) -> list[str]:
    bad, first = 0, ""
    for slot, name, crc in link.execute("SELECT slot, id, crc FROM rows ORDER BY slot"):
        if slot >= len(vectors) or zlib.crc32(vectors[slot].data) != crc:
            bad, first = bad + 1, first or name
    if not bad:
        return []
    return [f"{bad} vectors differ from what was written, first that of {first!r}; embed those pictures again."]


def _codes(link: sqlite3.Connection, snapshot: Snapshot) -> list[str]:
    """Make the 8-bit rows again and compare: a search trusts them to rule rows out."""
    if snapshot.codes is None or snapshot.scales is None:
        return []
    bad: list[NDArray[np.int64]] = []
    for start in range(0, snapshot.state.length, BLOCK):
        part = slice(start, start + BLOCK)
        codes, scales = quantise(snapshot.vectors[part])
        step, lost = snapshot.scales[part].T
        same = (codes == snapshot.codes[part]).all(axis=1) & (step == scales[:, 0])
        bad.append(start + np.flatnonzero(~(same & (lost >= scales[:, 1] * (1 - 1e-5)) & (lost <= 1))))
    slots = np.setdiff1d(np.concatenate(bad), snapshot.dead, assume_unique=True) if bad else np.empty(0, np.int64)
    if not slots.size:
        return []
    first = rows_of_slots(link, [int(slots[0])])[0][1]
    return [
        f"{len(slots)} rows in 8 bits differ from their vectors, first that of {first!r}, so searches may miss them; "
        "put those rows in again with upsert, or build the index again."
    ]


def _graph(folder: Path, snapshot: Snapshot) -> list[str]:
    facts = snapshot.state.graph
    if facts is None:
        return []
    path = folder / facts.file
    if not path.exists():
        return [f"The graph {facts.file} is absent, so searches scan every row; `proxemics index compact` builds it."]
    if path.stat().st_size != facts.size or checksum(path) != facts.crc:
        return [f"The graph {facts.file} is damaged; delete it, and `proxemics index compact` builds it again."]
    return []
