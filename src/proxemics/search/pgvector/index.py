"""An index in a PostgreSQL database: vectors in a table of their own, searched by pgvector."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from proxemics.search.index import Index, Verified
from proxemics.search.items import Hits, Items
from proxemics.search.manifest import Manifest, ModelKey
from proxemics.search.pgvector import rows
from proxemics.search.pgvector.address import PgAddress
from proxemics.search.pgvector.conditions import where_sql
from proxemics.search.pgvector.connections import Connections
from proxemics.search.pgvector.nearest import graph_nearest, scan_nearest
from proxemics.search.pgvector.tables import (
    check_offer,
    create_tables,
    extension_version,
    has_graph,
    open_tables,
    tidy,
)
from proxemics.search.pgvector.verify import verify
from proxemics.search.remote import asked, new_manifest, refuse_when, rows_to_write
from proxemics.search.where import Condition, check_batch


class PgVectorIndex(Index):
    """An :class:`Index` on PostgreSQL with pgvector; any number of threads and programs may read and write.

    The graph of kind ``hnsw`` is built by :meth:`compact`, once the rows are there. PostgreSQL keeps it up from then
    on; without it every row is scanned.

    Make one with :meth:`create` and open one with :meth:`open`.
    """

    def __init__(self, address: PgAddress, connections: Connections, manifest: Manifest, *, read_only: bool) -> None:
        self._shown = address.shown
        self._table = address.name
        self._connections = connections
        self._manifest = manifest
        self._read_only = read_only
        self._graph_seen = False
        self._version: tuple[int, ...] = ()

    @staticmethod
    def open(address: str, read_only: bool = False) -> PgVectorIndex:
        """Open an index that exists; see :meth:`proxemics.search.Index.open`."""
        parsed = PgAddress.parse(address)
        connections = Connections(parsed, read_only=read_only)
        try:
            with connections.borrow() as connection:
                manifest = open_tables(connection, parsed)
        except BaseException:
            connections.close()
            raise
        return PgVectorIndex(parsed, connections, manifest, read_only=read_only)

    @staticmethod
    def create(
        address: str,
        key: ModelKey,
        *,
        kind: Literal["exact", "hnsw"] = "exact",
        dtype: Literal["float32", "int8"] = "float32",
        title: str = "",
    ) -> PgVectorIndex:
        """Make a new, empty index; see :meth:`proxemics.search.Index.create`."""
        parsed = PgAddress.parse(address)
        manifest = new_manifest(key, kind=kind, dtype=dtype, title=title, server="pgvector")
        check_offer(manifest)
        making = Connections(parsed, read_only=False)
        try:
            with making.borrow() as connection:
                create_tables(connection, parsed, manifest)
        finally:
            making.close()  # its connection was made before the type of the vectors was known
        return PgVectorIndex(parsed, Connections(parsed, read_only=False), manifest, read_only=False)

    @property
    def manifest(self) -> Manifest:
        """What the index remembers of itself."""
        return self._manifest

    @property
    def address(self) -> str:
        """Where it is, without the password."""
        return self._shown

    def add(self, items: Items) -> int:
        """Add rows whose ids are new, in one transaction; see :meth:`proxemics.search.Index.add`."""
        items = rows_to_write(self._manifest, items, read_only=self._read_only)
        if not len(items):
            return 0
        with self._connections.borrow() as connection:
            return rows.insert(connection, self._table, items)

    def upsert(self, items: Items) -> tuple[int, int]:
        """Add or replace rows, in one transaction; see :meth:`proxemics.search.Index.upsert`."""
        items = rows_to_write(self._manifest, items, read_only=self._read_only)
        if not len(items):
            return 0, 0
        with self._connections.borrow() as connection:
            return rows.insert_or_replace(connection, self._table, items)

    def remove(self, ids: Sequence[str]) -> int:
        """Remove rows; see :meth:`proxemics.search.Index.remove`."""
        refuse_when(self._read_only)
        with self._connections.borrow() as connection:
            return rows.delete(connection, self._table, ids)

    def search(
        self,
        vectors: NDArray[np.float32],
        k: int = 10,
        *,
        where: Sequence[Condition] = (),
        key: ModelKey | None = None,
    ) -> list[Hits]:
        """Find the nearest rows of each query; see :meth:`proxemics.search.Index.search`."""
        queries = asked(self._manifest, vectors, k, key)
        if not len(queries):
            return []
        with self._connections.borrow() as connection:
            if self._manifest.kind == "exact" or not self._has_graph():
                return scan_nearest(connection, self._table, queries, k, where)
            self._version = self._version or extension_version(connection)
            return graph_nearest(connection, self._table, self._manifest, queries, k, where, self._version)

    def get(self, ids: Sequence[str]) -> Items:
        """Return rows by id; see :meth:`proxemics.search.Index.get`."""
        with self._connections.borrow() as connection:
            return rows.fetch(connection, self._table, ids, self._manifest.key.dim)

    def count(self, where: Sequence[Condition] = ()) -> int:
        """Return how many rows there are that meet the conditions."""
        from psycopg.sql import SQL, Identifier

        condition, parameters = where_sql(where)
        statement = SQL("SELECT count(*) FROM {} WHERE {}").format(Identifier(self._table), condition)
        with self._connections.borrow() as connection:
            row = connection.execute(statement, parameters).fetchone()
        return int(row[0]) if row else 0

    def scan(self, batch: int = 1000, *, where: Sequence[Condition] = ()) -> Iterator[Items]:
        """Iterate over all rows by id; rows that come or go meanwhile may be seen or not."""
        from psycopg.sql import SQL, Identifier, Literal

        check_batch(batch)
        condition, parameters = where_sql(where)
        statement = SQL(
            "SELECT id, embedding, metadata FROM {} WHERE id > %(after)s AND {} ORDER BY id LIMIT {}"
        ).format(Identifier(self._table), condition, Literal(batch))
        after = ""
        while True:
            with self._connections.borrow() as connection:
                found = connection.execute(statement, {**parameters, "after": after}, binary=True).fetchall()
            if not found:
                return
            yield rows.as_items(found, self._manifest.key.dim)
            after = found[-1][0]

    def verify(self, sample: int = 200, *, seed: int = 0) -> Verified:
        """Compare searches for rows of the index with a scan; see :meth:`proxemics.search.Index.verify`."""
        with self._connections.borrow() as connection:
            return verify(connection, self._table, self._manifest, self.search, sample, seed)

    def compact(self) -> None:
        """Free the room of removed rows for new ones, and build or rebuild the graph."""
        refuse_when(self._read_only)
        with self._connections.borrow() as connection:
            tidy(connection, self._manifest, self._table)

    def close(self) -> None:
        """Close the connections; closing twice is no error."""
        self._connections.close()

    def _has_graph(self) -> bool:
        if not self._graph_seen:
            with self._connections.borrow() as connection:
                self._graph_seen = has_graph(connection, self._table)
        return self._graph_seen
