"""The embedded index."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from itertools import chain
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from proxemics.__about__ import __version__
from proxemics.core.errors import SearchError
from proxemics.core.files import write_text
from proxemics.search.index import Index, Verified
from proxemics.search.items import Hits, Items, unit_rows
from proxemics.search.local import compact
from proxemics.search.local.database import Database, count_where, page, rows_of_slots, slots_of_ids
from proxemics.search.local.filters import where_clause
from proxemics.search.local.layout import DATABASE, LOCK, MANIFEST, vectors_file
from proxemics.search.local.lock import WriterLock
from proxemics.search.local.plan import Answer, nearest
from proxemics.search.local.rows import Rows
from proxemics.search.local.snapshot import Snapshot, Snapshots, StaleError, keeps_codes
from proxemics.search.local.vectors import sync
from proxemics.search.local.verify import damage, manifest_digest
from proxemics.search.local.writer import Change, Writer, write_rows
from proxemics.search.manifest import Manifest, ModelKey, read_manifest
from proxemics.search.where import Condition, check_batch

LARGEST_K = 10_000
ATTEMPTS = 50

Result = TypeVar("Result")


class LocalIndex(Index):
    """One folder: vectors in memory-mapped files, ids and metadata in SQLite, a graph as a cache.

    One process writes, from as many threads as it likes; any number of others read, and see every committed state.
    Open one with :meth:`Index.open`.

    Args:
        folder: that holds ``manifest.json``.
        manifest: what is in it.
        lock: of the writer; None: read only.
    """

    def __init__(self, folder: Path, manifest: Manifest, lock: WriterLock | None) -> None:
        self._folder, self._manifest, self._lock = folder, manifest, lock
        self._writer: Writer | None = None
        self._changes: Database | None = None
        if lock is not None:
            self._changes = Database(folder / DATABASE, writer=True)
            self._writer = Writer(folder, self._changes, manifest)
            compact.sweep(folder, self._changes.state())
        self._reads = Database(folder / DATABASE, writer=False)
        self._snapshots = Snapshots(folder, self._reads, manifest)
        self._rows = Rows(self._reads)

    @staticmethod
    def open(address: str, *, read_only: bool = False) -> LocalIndex:
        """Open a folder; see :meth:`Index.open`."""
        folder = Path(address).expanduser()
        if not (folder / MANIFEST).exists():
            what = "holds no index" if folder.exists() else "does not exist"
            raise SearchError(f"{folder} {what}; make one with: proxemics index build SOURCE --model RUN --to {folder}")
        manifest = read_manifest((folder / MANIFEST).read_text(encoding="utf-8", errors="replace"), str(folder))
        if read_only:
            return LocalIndex(folder, manifest, None)
        if not os.access(folder, os.W_OK):
            raise SearchError(f"The folder {folder} cannot be written; open the index with read_only=True.")
        lock = WriterLock(folder / LOCK, str(folder))
        try:
            return LocalIndex(folder, manifest, lock)
        except BaseException:
            lock.release()
            raise

    @staticmethod
    def create(
        address: str,
        key: ModelKey,
        *,
        kind: Literal["exact", "hnsw"] = "exact",
        dtype: Literal["float32", "int8"] = "float32",
        title: str = "",
    ) -> LocalIndex:
        """Make a folder, whole or not at all; see :meth:`Index.create`."""
        folder = check_free_folder(address)
        if kind == "hnsw":
            from proxemics.search.local.graph import require_usearch

            require_usearch()
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        manifest = Manifest(key=key, kind=kind, dtype=dtype, version=__version__, created=now, title=title)
        text = manifest.model_dump_json(indent=2) + "\n"
        folder.absolute().parent.mkdir(parents=True, exist_ok=True)
        fresh = folder.absolute().with_name(f".{folder.absolute().name}.{secrets.token_hex(4)}")
        fresh.mkdir()
        try:
            Database.create(fresh / DATABASE, manifest_digest(text))
            for path in _empty_files(fresh, manifest):
                path.touch()
            write_text(fresh / MANIFEST, text)
            sync(fresh)
            fresh.replace(folder)
            sync(folder.absolute().parent)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
        return LocalIndex.open(address)

    @property
    def manifest(self) -> Manifest:
        """What the index remembers of itself."""
        return self._manifest

    @property
    def address(self) -> str:
        """The folder."""
        return str(self._folder)

    @property
    def snapshot(self) -> Snapshot:
        """The state committed last, for a closer look; it stays as it is while others write."""
        return self._steady(self._snapshots.newest)

    def add(self, items: Items) -> int:
        """Add rows whose ids are new; all or none. See :meth:`Index.add`."""
        writer = self._writing()
        return writer.submit(write_rows(items, self._manifest.key.dim, may_replace=False))[0]

    def upsert(self, items: Items) -> tuple[int, int]:
        """Add or replace rows; all or none. See :meth:`Index.upsert`."""
        writer = self._writing()
        return writer.submit(write_rows(items, self._manifest.key.dim, may_replace=True))

    def remove(self, ids: Sequence[str]) -> int:
        """Remove rows; their room is given back by :meth:`compact`. See :meth:`Index.remove`."""
        return self._writing().submit(Change([str(one) for one in ids]))[0]

    def search(
        self,
        vectors: NDArray[np.float32],
        k: int = 10,
        *,
        where: Sequence[Condition] = (),
        key: ModelKey | None = None,
    ) -> list[Hits]:
        """Find the nearest rows of each query; exact ones where :attr:`manifest` says so. See :meth:`Index.search`."""
        return self._search(vectors, k, where, key, exact=False)

    def search_exactly(
        self, vectors: NDArray[np.float32], k: int = 10, *, where: Sequence[Condition] = ()
    ) -> list[Hits]:
        """Search without the graph."""
        return self._search(vectors, k, where, None, exact=True)

    def _search(
        self, vectors: NDArray[np.float32], k: int, where: Sequence[Condition], key: ModelKey | None, *, exact: bool
    ) -> list[Hits]:
        if key is not None:
            self._manifest.check(key)
        if isinstance(k, bool) or not isinstance(k, int | np.integer) or not 1 <= k <= LARGEST_K:
            raise SearchError(f"k={k!r}; give a whole number from 1 to {LARGEST_K:,}.")
        queries = unit_rows(vectors, dim=self._manifest.key.dim)
        if not len(queries):
            return []
        conditions = list(where)

        def answer() -> list[Hits]:
            snapshot = self._snapshots.newest()
            matching = self._rows.matching(snapshot, conditions) if conditions else None
            found = nearest(
                snapshot,
                queries,
                int(k),
                matching=matching,
                names=lambda slots: self._rows.names(snapshot, slots),
                exact=exact,
            )
            return self._hits(snapshot, found, int(k))

        return self._steady(answer)

    def _hits(self, snapshot: Snapshot, answers: Sequence[Answer], k: int) -> list[Hits]:
        known = self._rows.of_slots(snapshot, chain.from_iterable(slots for slots, _ in answers))
        names, meta = known.ids.__getitem__, known.meta.__getitem__
        return [
            Hits.of_shared(list(map(names, slots)), scores, list(map(meta, slots)), k - len(slots))
            for slots, scores in answers
        ]

    def get(self, ids: Sequence[str]) -> Items:
        """Return rows by id. See :meth:`Index.get`."""

        def read() -> Items:
            with self._reads.reading() as link:
                snapshot = self._snapshots.newest()
                slots = slots_of_ids(link, [str(one) for one in ids])
                found = rows_of_slots(link, list(slots.values()))
            by_id = {name: (slot, name, meta) for slot, name, meta in found}
            return _items(snapshot, [by_id[one] for one in ids if one in by_id])

        return self._steady(read)

    def count(self, where: Sequence[Condition] = ()) -> int:
        """Return how many rows there are that meet the conditions."""
        if not where:
            return self.snapshot.live
        with self._reads.reading() as link:
            return count_where(link, where_clause(where))

    def scan(self, batch: int = 1000, *, where: Sequence[Condition] = ()) -> Iterator[Items]:
        """Iterate over all rows in the order of their ids; each batch belongs to one state. See :meth:`Index.scan`."""
        clause, after = where_clause(where), ""
        check_batch(batch)

        def read() -> Items:
            with self._reads.reading() as link:
                snapshot = self._snapshots.newest()
                return _items(snapshot, page(link, clause, after, batch))

        while True:
            items = self._steady(read)
            if len(items):
                yield items
                after = items.ids[-1]
            if len(items) < batch:
                return

    def verify(self, sample: int = 200, *, seed: int = 0) -> Verified:
        """Search for rows of the index itself, compare with a scan, and look for damage. See :meth:`Index.verify`."""

        def look() -> tuple[Snapshot, list[str]]:
            with self._reads.reading():
                snapshot = self._snapshots.newest()
                return snapshot, damage(self._folder, self._reads, snapshot)

        snapshot, problems = self._steady(look)
        live = np.setdiff1d(np.arange(snapshot.state.length), snapshot.dead, assume_unique=True)
        chosen = np.sort(np.random.default_rng(seed).choice(live, min(sample, len(live)), replace=False))
        if not len(chosen):
            return Verified(snapshot.live, 0, 1.0, 1.0, tuple(problems))
        queries = unit_rows(np.array(snapshot.vectors[chosen], np.float64))

        def search(*, exact: bool) -> list[Answer]:
            return nearest(snapshot, queries, 10, matching=None, names=_numbered, exact=exact)

        found, wanted = search(exact=False), search(exact=True)
        own = [_finds(snapshot, slot, answer[0]) for slot, answer in zip(chosen, found, strict=True)]
        recall = compact.recall_of([slots for slots, _ in found], [slots for slots, _ in wanted])
        if not all(own):
            problems.append(f"{own.count(False)} of {len(own)} rows do not find themselves first.")
        return Verified(snapshot.live, len(chosen), float(np.mean(own)), round(recall, 4), tuple(problems))

    def compact(self, progress: Callable[[int], None] | None = None) -> None:
        """Give back the room of removed rows, and build the graph over all rows.

        Args:
            progress: called with the number of rows that the new graph holds so far.
        """
        writer, changes = self._writing(), self._changes
        assert changes is not None
        with writer.turn:
            snapshot = self._steady(self._snapshots.newest)
            facts, wants_graph = snapshot.state.graph, self._manifest.kind == "hnsw"
            is_whole = snapshot.graph is not None and snapshot.graph.facts.covered == snapshot.live
            if not len(snapshot.dead) and (is_whole or not wants_graph or snapshot.live == 0):
                return
            if len(snapshot.dead):
                compact.rewrite(self._folder, snapshot, self._manifest)
            facts = compact.make_graph(self._folder, snapshot, self._manifest, progress) if wants_graph else None
            writer.close()
            try:
                compact.commit(self._folder, changes, snapshot, facts)
            finally:
                writer.reopen(changes.state())

    def facts(self) -> dict[str, int | float | bool]:
        """Return what is on disk: rows in the graph and beside it, its expansion and recall, removed rows, bytes."""
        snapshot = self.snapshot
        found: dict[str, int | float | bool] = {
            "removed_rows": len(snapshot.dead),
            "bytes": sum(path.stat().st_size for path in self._folder.rglob("*") if path.is_file()),
        }
        if self._manifest.kind == "hnsw":
            facts = snapshot.graph.facts if snapshot.graph is not None else None
            covered = facts.covered if facts is not None else 0
            found["rows_in_graph"], found["rows_after_graph"] = covered, snapshot.state.length - covered
            if facts is not None:
                found["expansion"], found["graph_recall_at_10"] = facts.expansion, facts.recall
        return found

    def close(self) -> None:
        """Let go of files, connections and the lock; twice is no error."""
        if self._writer is not None:
            self._writer.close()
        self._reads.close()
        if self._changes is not None:
            self._changes.close()
        if self._lock is not None:
            self._lock.release()

    def _writing(self) -> Writer:
        if self._writer is None:
            raise SearchError(f"The index {self._folder} was opened read-only; open it without read_only to change it.")
        return self._writer

    def _steady(self, call: Callable[[], Result]) -> Result:
        """Call until no other process compacts the index in between."""
        for _ in range(ATTEMPTS):
            with suppress(StaleError):
                return call()
        try:
            with self._reads.reading():  # nothing moves in here
                return call()
        except StaleError as error:
            raise SearchError(f"A file of the index {self._folder} is not there: {error}.") from error


def check_free_folder(address: str) -> Path:
    """Return the folder that an address names.

    Raises:
        SearchError: something is there already.
    """
    folder = Path(address).expanduser()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SearchError(f"{folder} exists already; choose another place, or add to it with: proxemics index add")
    return folder


def holds_index(address: str) -> bool:
    """Whether the folder that an address names is an index."""
    return (Path(address).expanduser() / MANIFEST).exists()


def _items(snapshot: Snapshot, rows: Sequence[tuple[int, str, str]]) -> Items:
    slots = [slot for slot, _, _ in rows]
    vectors = np.array(snapshot.vectors[slots], np.float32).reshape(len(rows), snapshot.vectors.shape[1])
    return Items([name for _, name, _ in rows], vectors, [json.loads(meta) for _, _, meta in rows])


def _finds(snapshot: Snapshot, slot: int, found: Sequence[int]) -> bool:
    """Whether a row found itself, or a row with an equal vector, first."""
    if not found:
        return False
    return found[0] == slot or bool(np.array_equal(snapshot.vectors[found[0]], snapshot.vectors[slot]))


def _numbered(slots: Sequence[int]) -> list[str]:
    return [f"{slot:012d}" for slot in slots]


def _empty_files(folder: Path, manifest: Manifest) -> list[Path]:
    from proxemics.search.local.layout import codes_file, scales_file

    codes = [codes_file(folder, 1), scales_file(folder, 1)] if keeps_codes(manifest) else []
    return [vectors_file(folder, 1), *codes]
