"""The writer: changes of many threads, committed together, each on disk when its call returns."""

from __future__ import annotations

import json
import threading
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from proxemics.core.errors import SearchError
from proxemics.search.items import Items, unit_rows
from proxemics.search.local.codes import quantise
from proxemics.search.local.database import Database, State, slots_of_ids
from proxemics.search.local.layout import codes_file, scales_file, vectors_file
from proxemics.search.local.snapshot import keeps_codes
from proxemics.search.local.vectors import Appender
from proxemics.search.manifest import Manifest
from proxemics.search.remote import keepable


@dataclass(frozen=True, eq=False)
class Change:
    """One call: rows to write, or ids to remove.

    Attributes:
        ids: which.
        vectors: (N, D) unit rows; None to remove.
        meta: JSON of each row.
        may_replace: whether an id may be taken already.
    """

    ids: Sequence[str]
    vectors: NDArray[np.float32] | None = None
    meta: Sequence[str] = ()
    may_replace: bool = True


def write_rows(items: Items, dim: int, *, may_replace: bool) -> Change:
    """Check rows and put their vectors on the unit sphere; what can fail because of them fails here.

    Raises:
        SearchError: another length, or an id or value that cannot be written.
    """
    checked = Items.make(items.ids, items.vectors, items.meta)
    vectors = unit_rows(checked.vectors, count=len(checked), dim=dim if len(checked) else None)
    meta = [json.dumps(one, ensure_ascii=False, allow_nan=False) for one in checked.meta]
    for name, one in zip(checked.ids, checked.meta, strict=True):
        if not all(keepable(text) for text in (name, *one, *one.values()) if isinstance(text, str)):
            raise SearchError(f"Row {name!r} has a text with a zero byte or half a character; take it out.")
    return Change(checked.ids, vectors, meta, may_replace)


class _Ticket:
    def __init__(self, change: Change) -> None:
        self.change = change
        self.added = self.replaced = 0
        self.error: Exception | None = None
        self.is_done = False


class Writer:
    """Appends and commits.

    Args:
        folder: of the index.
        database: a writing connection.
        manifest: of the index.
    """

    def __init__(self, folder: Path, database: Database, manifest: Manifest) -> None:
        self.turn = threading.RLock()
        """Held while files and database change."""
        self._folder, self._database, self._manifest = folder, database, manifest
        self._guard = threading.Lock()
        self._waiting: list[_Ticket] = []
        self.reopen(database.state())

    def reopen(self, state: State) -> None:
        """Open the files of a generation for appending; what was never committed is cut off."""
        generation, dim = state.generation, self._manifest.key.dim
        self._files = [Appender(vectors_file(self._folder, generation), state.length, dim, np.float32)]
        if keeps_codes(self._manifest):
            self._files.append(Appender(codes_file(self._folder, generation), state.length, dim, np.int8))
            self._files.append(Appender(scales_file(self._folder, generation), state.length, 2, np.float32))

    def submit(self, change: Change) -> tuple[int, int]:
        """Do a change, together with those that other threads brought meanwhile.

        Returns:
            How many rows were added (or removed), and how many replaced.

        Raises:
            SearchError: an id is taken, or the disk cannot be written; nothing of this change was done.
        """
        ticket = _Ticket(change)
        if not change.ids:
            return 0, 0
        with self._guard:
            self._waiting.append(ticket)
        with self.turn:
            if not ticket.is_done:
                with self._guard:
                    tickets, self._waiting = self._waiting, []
                self._commit(tickets)
        if ticket.error is not None:
            raise ticket.error
        return ticket.added, ticket.replaced

    def close(self) -> None:
        """Close the files; twice is no error."""
        with self.turn:
            for file in self._files:
                file.close()

    def _commit(self, tickets: list[_Ticket]) -> None:
        try:
            self._write(self._database.state(), tickets)
        except BaseException as error:
            told = error if isinstance(error, SearchError) else _cannot_write(self._folder, error)
            for ticket in tickets:
                ticket.error = ticket.error or told
            with suppress(Exception):  # room only: what is not committed is cut when the index is opened, too
                length = self._database.state().length
                for file in self._files:
                    file.cut(length)
            if not isinstance(error, Exception):
                raise
        finally:
            for ticket in tickets:
                ticket.is_done = True

    def _write(self, state: State, tickets: list[_Ticket]) -> None:
        length, blocks = state.length, []
        with self._database.writing() as link:
            for ticket in tickets:
                change = ticket.change
                taken = slots_of_ids(link, change.ids)
                if change.vectors is not None and taken and not change.may_replace:
                    ticket.error = _taken(next(name for name in change.ids if name in taken), len(taken))
                    continue
                gone = [(slot,) for slot in taken.values()]
                link.executemany("DELETE FROM rows WHERE slot = ?", gone)
                link.executemany("INSERT INTO dead (slot) VALUES (?)", gone)
                if change.vectors is None:
                    ticket.added = len(gone)
                    continue
                ticket.added, ticket.replaced = len(change.ids) - len(gone), len(gone)
                crcs = [zlib.crc32(row) for row in change.vectors]
                slots = range(length, length + len(crcs))
                rows = zip(slots, change.ids, change.meta, crcs, strict=True)
                link.executemany("INSERT INTO rows VALUES (?, ?, ?, ?)", rows)
                blocks.append(change.vectors)
                length += len(crcs)
            if blocks:
                self._append(state.length, np.concatenate(blocks))
            link.execute("UPDATE state SET version = version + 1, length = ?", [length])

    def _append(self, row: int, vectors: NDArray[np.float32]) -> None:
        parts: list[NDArray[np.generic]] = [vectors]
        if len(self._files) > 1:
            parts.extend(quantise(vectors))
        for file, part in zip(self._files, parts, strict=True):
            file.write(row, part)


def _taken(name: str, count: int) -> SearchError:
    more = f" and {count - 1} more are" if count > 1 else " is"
    return SearchError(
        f"Id {name!r}{more} in the index already; nothing was added. Use upsert (--replace) to replace rows."
    )


def _cannot_write(folder: Path, error: BaseException) -> SearchError:
    return SearchError(f"The index {folder} cannot be written: {error}. Nothing of this call was kept.")
