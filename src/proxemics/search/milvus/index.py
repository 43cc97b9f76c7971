"""An index in a collection of Milvus: Milvus Lite in a file, a server, or a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from proxemics.core.errors import SearchError
from proxemics.search.index import Index, Verified
from proxemics.search.items import Hits, Items
from proxemics.search.manifest import Manifest, ModelKey
from proxemics.search.milvus import collection
from proxemics.search.milvus.address import MilvusAddress
from proxemics.search.milvus.client import MilvusLink
from proxemics.search.milvus.filters import expression
from proxemics.search.milvus.nearest import exactly, nearest
from proxemics.search.milvus.verify import verify
from proxemics.search.remote import asked, new_manifest, refuse_when, rows_to_write
from proxemics.search.where import Condition, check_batch


class MilvusIndex(Index):
    """An :class:`Index` on Milvus; threads may share it, and changes go one after another.

    Make one with :meth:`create` and open one with :meth:`open`.
    """

    def __init__(self, link: MilvusLink, manifest: Manifest, *, read_only: bool) -> None:
        self._link = link
        self._name = link.address.name
        self._manifest = manifest
        self._read_only = read_only

    @staticmethod
    def open(address: str, read_only: bool = False) -> MilvusIndex:
        """Open an index that exists; see :meth:`proxemics.search.Index.open`."""
        link = MilvusLink(MilvusAddress.parse(address), create=False)
        try:
            manifest = link.call(lambda client: collection.open_collection(client, link.address))
        except BaseException:
            link.close()
            raise
        return MilvusIndex(link, manifest, read_only=read_only)

    @staticmethod
    def create(
        address: str,
        key: ModelKey,
        *,
        kind: Literal["exact", "hnsw"] = "exact",
        dtype: Literal["float32", "int8"] = "float32",
        title: str = "",
    ) -> MilvusIndex:
        """Make a new, empty index; see :meth:`proxemics.search.Index.create`."""
        parsed = MilvusAddress.parse(address)
        manifest = new_manifest(key, kind=kind, dtype=dtype, title=title, server="Milvus")
        link = MilvusLink(parsed, create=True)
        try:
            link.call(lambda client: collection.create_collection(client, parsed, manifest, is_lite=link.is_lite))
        except BaseException:
            link.close()
            raise
        return MilvusIndex(link, manifest, read_only=False)

    @property
    def manifest(self) -> Manifest:
        """What the index remembers of itself."""
        return self._manifest

    @property
    def address(self) -> str:
        """Where it is, without the token."""
        return self._link.address.shown

    def add(self, items: Items) -> int:
        """Add rows whose ids are new, in one message; see :meth:`proxemics.search.Index.add`."""
        items = rows_to_write(self._manifest, items, read_only=self._read_only)
        if not len(items):
            return 0
        rows = collection.as_rows(items)
        self._link.change(lambda client: self._add(client, rows))
        return len(rows)

    def upsert(self, items: Items) -> tuple[int, int]:
        """Add or replace rows, in one message; see :meth:`proxemics.search.Index.upsert`."""
        items = rows_to_write(self._manifest, items, read_only=self._read_only)
        if not len(items):
            return 0, 0
        rows = collection.as_rows(items)
        replaced = self._link.change(lambda client: self._upsert(client, rows))
        return len(rows) - replaced, replaced

    def remove(self, ids: Sequence[str]) -> int:
        """Remove rows; see :meth:`proxemics.search.Index.remove`."""
        refuse_when(self._read_only)
        return self._link.change(lambda client: collection.delete_rows(client, self._name, ids))

    def search(
        self,
        vectors: NDArray[np.float32],
        k: int = 10,
        *,
        where: Sequence[Condition] = (),
        key: ModelKey | None = None,
    ) -> list[Hits]:
        """Find the nearest rows of each query; see :meth:`proxemics.search.Index.search`.

        Where a graph finds fewer than k rows though more meet the conditions, the query is answered again from all
        rows that do.
        """
        queries = asked(self._manifest, vectors, k, key)
        text = expression(where)
        if not len(queries):
            return []
        found = self._link.call(lambda client: nearest(client, self._name, self._manifest, queries, k, text))
        short = [place for place, hits in enumerate(found) if hits.missing]
        if short and self._manifest.kind == "hnsw":
            there = min(k, self.count(where))
            short = [place for place in short if len(found[place]) < there]
            again = exactly(self.scan(where=where), queries[short], k) if short else []
            for place, hits in zip(short, again, strict=True):
                found[place] = hits
        return found

    def get(self, ids: Sequence[str]) -> Items:
        """Return rows by id; see :meth:`proxemics.search.Index.get`."""
        dim = self._manifest.key.dim
        return self._link.call(lambda client: collection.fetch_rows(client, self._name, ids, dim))

    def count(self, where: Sequence[Condition] = ()) -> int:
        """Return how many rows there are that meet the conditions; a server is asked for the ids of them all."""
        text, is_lite = expression(where), self._link.is_lite
        return self._link.call(lambda client: collection.count_rows(client, self._name, text, is_lite=is_lite))

    def scan(self, batch: int = 1000, *, where: Sequence[Condition] = ()) -> Iterator[Items]:
        """Iterate over all rows by id; rows that come or go meanwhile may be seen or not."""
        check_batch(batch)
        for page in self._pages(expression(where), batch, collection.FIELDS):
            yield collection.as_items(page, self._manifest.key.dim)

    def verify(self, sample: int = 200, *, seed: int = 0) -> Verified:
        """Compare searches for rows of the index with all rows; see :meth:`proxemics.search.Index.verify`."""
        dim = self._manifest.key.dim
        return verify(lambda: self._pages("", 1000, ["*"]), self.search, dim, sample, seed)

    def compact(self) -> None:
        """Write rows from the log into segments, where the graph is built, and drop removed rows."""
        refuse_when(self._read_only)
        self._link.change(lambda client: collection.tidy(client, self._name))

    def close(self) -> None:
        """Let go of the connection and of the file; closing twice is no error."""
        self._link.close()

    def _pages(self, text: str, batch: int, fields: Sequence[str]) -> Iterator[list[Any]]:
        after = ""
        while page := self._page(after, text, batch, fields):
            yield page
            after = page[-1]["id"]

    def _page(self, after: str, text: str, batch: int, fields: Sequence[str]) -> list[Any]:
        return self._link.call(lambda client: collection.page_after(client, self._name, after, text, batch, fields))

    def _add(self, client: Any, rows: Sequence[dict[str, Any]]) -> None:
        there = collection.taken(client, self._name, [row["id"] for row in rows])
        if there:
            raise SearchError(
                f"Id {min(there)!r} is in the index already, so nothing was added; use upsert (--replace) to replace "
                "rows."
            )
        collection.write_rows(client, self._name, rows, is_lite=self._link.is_lite)

    def _upsert(self, client: Any, rows: Sequence[dict[str, Any]]) -> int:
        replaced = len(collection.taken(client, self._name, [row["id"] for row in rows]))
        collection.write_rows(client, self._name, rows, is_lite=self._link.is_lite)
        return replaced
