"""The contract that every back-end keeps: :class:`Index`.

A score is a cosine: a vector scores 1 against itself, whatever the back-end calls its distance. Every change that a
call returned from is on disk. Vectors and queries are put on the unit sphere on the way in.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from proxemics.search.items import Hits, Items
from proxemics.search.manifest import Manifest, ModelKey
from proxemics.search.where import Condition


@dataclass(frozen=True)
class Verified:
    """What :meth:`Index.verify` measured.

    Attributes:
        count: rows in the index.
        sampled: rows that were searched for.
        self_recall: share of them that found themselves, or a row with an equal vector, first.
        recall_at_10: share of the exact ten nearest that the index finds, over the sample; 1 for exact ones.
        problems: sentences about what does not agree, empty when all is well.
    """

    count: int
    sampled: int
    self_recall: float
    recall_at_10: float
    problems: tuple[str, ...] = ()


class Index(ABC):
    """Vectors with ids and metadata, of one model, searchable by cosine.

    Open one with :meth:`open` and make one with :meth:`create`; the back-end follows from the address:

    * a folder: ``local``, embedded, one writer and many readers;
    * ``postgresql://user@host/database?index=NAME``: PostgreSQL with pgvector;
    * ``milvus:FILE.db?index=NAME`` for Milvus Lite, ``milvus+http://host:19530?index=NAME`` for a server or cluster.
    """

    @staticmethod
    def open(address: str, *, read_only: bool = False) -> Index:
        """Open an index that exists.

        Args:
            address: see the class.
            read_only: never take the writer's place; changes are then refused.

        Raises:
            SearchError: there is none, it is of a newer format, or the server is not there.
        """
        from proxemics.search.open import open_index

        return open_index(address, read_only=read_only)

    @staticmethod
    def create(
        address: str,
        key: ModelKey,
        *,
        kind: Literal["exact", "hnsw"] = "exact",
        dtype: Literal["float32", "int8"] = "float32",
        title: str = "",
    ) -> Index:
        """Make a new, empty index.

        Raises:
            SearchError: the place is taken, or the back-end does not offer the kind.
        """
        from proxemics.search.open import create_index

        return create_index(address, key, kind=kind, dtype=dtype, title=title)

    @property
    @abstractmethod
    def manifest(self) -> Manifest:
        """What the index remembers of itself."""

    @property
    @abstractmethod
    def address(self) -> str:
        """Where it is, without passwords."""

    @abstractmethod
    def add(self, items: Items) -> int:
        """Add rows whose ids are new; all or none.

        Returns:
            How many were added.

        Raises:
            SearchError: an id is taken (nothing was added), or the vectors have another length.
        """

    @abstractmethod
    def upsert(self, items: Items) -> tuple[int, int]:
        """Add rows, and replace those whose ids are taken, vector and metadata; all or none.

        Returns:
            How many were added, and how many replaced.
        """

    @abstractmethod
    def remove(self, ids: Sequence[str]) -> int:
        """Remove rows; ids that are not there are passed over.

        Returns:
            How many were removed.
        """

    @abstractmethod
    def search(
        self,
        vectors: NDArray[np.float32],
        k: int = 10,
        *,
        where: Sequence[Condition] = (),
        key: ModelKey | None = None,
    ) -> list[Hits]:
        """Find the nearest rows of each query.

        Args:
            vectors: (Q, D) numbers, put on the unit sphere.
            k: rows a query, 1..10,000.
            where: conditions that rows must meet; ``k`` of those that do are returned while there are so many.
            key: the model that the queries come from; None skips the check, for code that made it before.

        Returns:
            Q results; rows of equal score stand in the order of their ids where the back-end can tell.

        Raises:
            SearchError: another model, another length, a query that is zero or not finite, k out of range.
        """

    @abstractmethod
    def get(self, ids: Sequence[str]) -> Items:
        """Return rows by id, in the order asked for; ids that are not there are left out."""

    @abstractmethod
    def count(self, where: Sequence[Condition] = ()) -> int:
        """Return how many rows there are that meet the conditions."""

    @abstractmethod
    def scan(self, batch: int = 1000, *, where: Sequence[Condition] = ()) -> Iterator[Items]:
        """Iterate over all rows, ``batch`` at a time, in the order of their ids."""

    @abstractmethod
    def verify(self, sample: int = 200, *, seed: int = 0) -> Verified:
        """Search for rows of the index itself and compare with the exact answer; look for damage."""

    @abstractmethod
    def compact(self) -> None:
        """Give back the room of removed rows, and rebuild what searches fast."""

    @abstractmethod
    def close(self) -> None:
        """Let go of files and connections; closing twice is no error."""

    def __enter__(self) -> Index:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
