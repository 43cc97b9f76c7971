"""Ids and metadata of slots: read once, kept in memory; a slot never changes within a generation."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from proxemics.search.items import Meta
from proxemics.search.local.database import Database, slots_where
from proxemics.search.local.filters import where_clause
from proxemics.search.local.snapshot import Snapshot, StaleError
from proxemics.search.where import Condition

KEPT = 300_000
"""Rows kept in memory at most."""
MASKS = 32
"""Filters kept in memory at most."""


@dataclass
class Known:
    """What is known of slots; the dictionaries must not be changed by callers.

    Attributes:
        generation: that the slots are numbered in.
        ids: by slot.
        meta: by slot.
    """

    generation: int
    ids: dict[int, str] = field(default_factory=dict)
    meta: dict[int, Meta] = field(default_factory=dict)


class Rows:
    """Reads of the database that belong to a snapshot.

    Args:
        database: a reading connection.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known = Known(0)
        self._masks: dict[tuple[int, str], NDArray[np.int64]] = {}

    def of_slots(self, snapshot: Snapshot, slots: Iterable[int]) -> Known:
        """Return what is known of at least these slots.

        Raises:
            StaleError: the snapshot is too old to know.
        """
        generation = snapshot.state.generation
        known = self._known  # read once: another thread may look at another generation
        if known.generation != generation or len(known.ids) > KEPT:
            known = self._known = Known(generation)
        missing = set(slots).difference(known.meta)
        if missing:
            found = self._database.rows(generation, sorted(missing))
            if len(found) != len(missing):
                raise StaleError("a row was removed meanwhile, or the index was compacted")
            known.ids.update((slot, name) for slot, name, _ in found)
            known.meta.update((slot, json.loads(meta)) for slot, _, meta in found)
        return known

    def names(self, snapshot: Snapshot, slots: Sequence[int]) -> list[str]:
        """Return the ids of slots."""
        return list(map(self.of_slots(snapshot, slots).ids.__getitem__, slots))

    def matching(self, snapshot: Snapshot, where: Sequence[Condition]) -> NDArray[np.int64]:
        """Return the rising slots of the rows that meet the conditions.

        Raises:
            StaleError: the snapshot is too old to know.
        """
        key = (snapshot.state.version, repr(where))  # as text: 1 and True are equal, and mean different rows
        slots = self._masks.get(key)
        if slots is None:
            with self._database.reading() as link:
                self._check(snapshot.state.generation)
                if self._database.version() != snapshot.state.version:
                    raise StaleError("the index was changed meanwhile")
                slots = np.array(slots_where(link, where_clause(where)), np.int64)
            if len(self._masks) >= MASKS:
                self._masks.pop(next(iter(self._masks)), None)
            self._masks[key] = slots
        return slots

    def _check(self, generation: int) -> None:
        if self._database.generation() != generation:
            raise StaleError("the index was compacted meanwhile")
