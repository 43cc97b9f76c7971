"""The SQLite file: ids, metadata, where each row's vector is, and which state is committed."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from proxemics.core.errors import SearchError
from proxemics.search.local.filters import Clause, install

_SCHEMA = """
CREATE TABLE rows (slot INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, meta TEXT NOT NULL, crc INTEGER NOT NULL);
CREATE TABLE dead (number INTEGER PRIMARY KEY, slot INTEGER NOT NULL);
CREATE TABLE state (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    version INTEGER NOT NULL, generation INTEGER NOT NULL, length INTEGER NOT NULL,
    manifest TEXT NOT NULL, graph TEXT
);
"""


FEW = 64
"""Slots up to which a statement names each one; a list of more is handed over as JSON."""
MAPPED = 1 << 28
"""Bytes of the file that a reader maps instead of reading page by page."""


class GraphFacts(BaseModel):
    """What is known of the graph file.

    Attributes:
        file: its name.
        covered: the graph holds the slots 0..covered-1; rows added later are searched exactly.
        size: bytes.
        crc: of the bytes.
        expansion: how many candidates a search keeps, chosen when the graph was built.
        recall: recall@10 measured then.
        unreached: slots that no search of the graph comes to, a few in ten thousand; they are searched exactly.
    """

    model_config = ConfigDict(frozen=True)

    file: str
    covered: int
    size: int
    crc: int
    expansion: int
    recall: float
    unreached: tuple[int, ...] = ()


@dataclass(frozen=True)
class State:
    """One committed state.

    Attributes:
        version: grows with every commit.
        generation: of the vector files; slots are numbered anew in each.
        length: slots 0..length-1 are written.
        manifest: SHA-256 of the manifest file.
        graph: None where there is none.
    """

    version: int
    generation: int
    length: int
    manifest: str
    graph: GraphFacts | None


class Database:
    """A connection that threads share; hold :meth:`reading` or :meth:`writing` while using it.

    Args:
        path: of the file.
        writer: whether it may write.
    """

    def __init__(self, path: Path, *, writer: bool) -> None:
        self._lock = threading.RLock()
        self._what = path.parent
        try:
            self.link = _connect(path, writer=writer)
            install(self.link)
        except sqlite3.Error as error:
            raise self._failed(error) from error

    @staticmethod
    def create(path: Path, manifest: str) -> None:
        """Write an empty database."""
        with sqlite3.connect(path, isolation_level=None) as link:
            link.execute("PRAGMA journal_mode = WAL")
            link.executescript(_SCHEMA)
            link.execute("INSERT INTO state VALUES (1, 1, 1, 0, ?, NULL)", [manifest])
        link.close()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Everything read inside belongs to one state."""
        with self._transaction("BEGIN") as link:
            yield link

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Everything written inside is committed at the end, or not at all when something is raised."""
        with self._transaction("BEGIN IMMEDIATE") as link:
            yield link

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                if self._is_open():
                    yield self.link
                    return
                self.link.execute(begin)
                try:
                    yield self.link
                    self.link.execute("COMMIT")
                finally:
                    if self._is_open():
                        self.link.execute("ROLLBACK")
            except sqlite3.Error as error:
                raise self._failed(error) from error

    def _is_open(self) -> bool:
        return self.link.in_transaction

    def state(self) -> State:
        """Return the committed state."""
        with self.reading() as link:
            row = link.execute("SELECT version, generation, length, manifest, graph FROM state").fetchone()
        graph = None if row[4] is None else GraphFacts.model_validate_json(row[4])
        return State(row[0], row[1], row[2], row[3], graph)

    def version(self) -> int:
        """Return the version of the committed state alone."""
        with self._lock:
            try:
                (version,) = self.link.execute("SELECT version FROM state").fetchone()
            except sqlite3.Error as error:
                raise self._failed(error) from error
        return int(version)

    def generation(self) -> int:
        """Return the generation of the committed state alone."""
        with self.reading() as link:
            (generation,) = link.execute("SELECT generation FROM state").fetchone()
        return int(generation)

    def rows(self, generation: int, slots: Sequence[int]) -> list[tuple[int, str, str]]:
        """Return (slot, id, metadata as JSON) of the slots that are there; nothing where the generation is another."""
        with self._lock:
            try:
                return rows_of_slots(self.link, slots, generation=generation)
            except sqlite3.Error as error:
                raise self._failed(error) from error

    def vacuum(self) -> None:
        """Give the file's free pages back."""
        with self._lock:
            self.link.execute("VACUUM")
            self.link.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """Close the connection; twice is no error."""
        with self._lock:
            self.link.close()

    def _failed(self, error: sqlite3.Error) -> SearchError:
        if isinstance(error, sqlite3.ProgrammingError) and "closed" in str(error):
            return SearchError(f"The index {self._what} was closed; open it again.")
        return SearchError(
            f"The database of the index {self._what} cannot be used: {error}. Look at free space and rights of the "
            "folder; what was written before is kept."
        )


def dead_slots(link: sqlite3.Connection, known: int) -> list[tuple[int, int]]:
    """Return (number, slot) of the rows removed after the first ``known``."""
    found = link.execute("SELECT number, slot FROM dead WHERE number > ? ORDER BY number", [known])
    return [(int(number), int(slot)) for number, slot in found]


def slots_of_ids(link: sqlite3.Connection, ids: Sequence[str]) -> dict[str, int]:
    """Return the slots of the ids that are there."""
    wanted = json.dumps(list(ids))
    return dict(link.execute("SELECT id, slot FROM rows WHERE id IN (SELECT value FROM json_each(?))", [wanted]))


def rows_of_slots(
    link: sqlite3.Connection, slots: Sequence[int], *, generation: int | None = None
) -> list[tuple[int, str, str]]:
    """Return (slot, id, metadata as JSON) of the slots that are there, of one state.

    Args:
        link: the connection.
        slots: which.
        generation: only while the index is in this one.
    """
    few = len(slots) <= FEW
    some = ", ".join("?" * len(slots)) if few else "SELECT value FROM json_each(?)"
    values: list[object] = list(slots) if few else [json.dumps(slots)]
    same = "AND (SELECT generation FROM state) = ?" if generation is not None else ""
    values += [] if generation is None else [generation]
    return link.execute(f"SELECT slot, id, meta FROM rows WHERE slot IN ({some}) {same}", values).fetchall()  # noqa: S608  # fixed pieces


def slots_where(link: sqlite3.Connection, clause: Clause) -> list[int]:
    """Return the slots of the rows that meet a clause, rising."""
    text, values = clause
    return [slot for (slot,) in link.execute(f"SELECT slot FROM rows WHERE {text} ORDER BY slot", values)]  # noqa: S608  # clauses are fixed pieces


def count_where(link: sqlite3.Connection, clause: Clause) -> int:
    """Return how many rows meet a clause."""
    text, values = clause
    (count,) = link.execute(f"SELECT count(*) FROM rows WHERE {text}", values).fetchone()  # noqa: S608  # clauses are fixed pieces
    return int(count)


def page(link: sqlite3.Connection, clause: Clause, after: str, size: int) -> list[tuple[int, str, str]]:
    """Return the next rows in the order of ids as (slot, id, metadata as JSON)."""
    text, values = clause
    query = f"SELECT slot, id, meta FROM rows WHERE id > ? AND {text} ORDER BY id LIMIT ?"  # noqa: S608  # clauses are fixed pieces
    return link.execute(query, [after, *values, size]).fetchall()


def _connect(path: Path, *, writer: bool) -> sqlite3.Connection:
    """Open the file; a folder that cannot be written is read as it lies there."""
    place = path.absolute().as_uri()
    if not writer and not os.access(path.parent, os.W_OK):
        log = path.with_name(f"{path.name}-wal")
        if log.exists() and log.stat().st_size:
            raise SearchError(
                f"{path.parent} cannot be written, and its last changes still lie in {log.name}; open it once where it "
                "can be written, or copy the folder."
            )
        return sqlite3.connect(f"{place}?immutable=1", uri=True, check_same_thread=False, isolation_level=None)
    link = sqlite3.connect(f"{place}?mode=rw", uri=True, check_same_thread=False, isolation_level=None, timeout=60)
    link.execute("PRAGMA journal_mode = WAL")
    link.execute("PRAGMA synchronous = FULL")
    if not writer:
        link.execute("PRAGMA query_only = 1")
        link.execute(f"PRAGMA mmap_size = {MAPPED}")
    return link
