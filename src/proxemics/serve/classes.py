"""The class book and the calibrated thresholds of the model that is served."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from proxemics.core.errors import SearchError
from proxemics.evaluation.operating_point import Threshold
from proxemics.evaluation.threshold_file import Thresholds, load_thresholds, thresholds_path
from proxemics.search.classes.book import ClassBook, check_name
from proxemics.search.classes.decide import decide
from proxemics.search.classes.rows import enrolled_rows, put_rows, take_rows
from proxemics.search.classes.store import TENSORS, changing_book, load_book
from proxemics.search.index import Index
from proxemics.search.manifest import ModelKey
from proxemics.serve.errors import Refusal
from proxemics.serve.schemas import Decision, Enrolled, Forgotten


@dataclass
class Classes:
    """The classes of a model; files that another program changes are read again. Use it from one thread.

    Attributes:
        home: folder of the book.
        key: of the model.
        thresholds: calibrated ones, or None.
    """

    home: Path
    key: ModelKey
    thresholds: Thresholds | None = None
    _book: ClassBook | None = field(default=None, repr=False)
    _stamp: tuple[int, int] | None = field(default=None, repr=False)

    @property
    def book(self) -> ClassBook | None:
        """The book as it is on disk now, or None when there is none.

        Raises:
            SearchError: it is damaged, or of another model.
        """
        try:
            found = (self.home / TENSORS).stat()
        except OSError:
            self._book, self._stamp = None, None
            return None
        stamp = (found.st_mtime_ns, found.st_ino)
        if stamp != self._stamp:
            self._book, self._stamp = load_book(self.home, self.key), stamp
        return self._book

    @property
    def identify(self) -> Threshold | None:
        """The threshold below which a picture is unknown, or None."""
        entry = self.thresholds.identify if self.thresholds is not None else None
        return entry.point if entry is not None else None

    @property
    def verify(self) -> float | None:
        """The score from which two pictures count as one class, or None."""
        entry = self.thresholds.verify if self.thresholds is not None else None
        return entry.point.threshold if entry is not None else None

    def decide(self, vector: NDArray[np.float32]) -> Decision | None:
        """Say which class a picture belongs to, or that it is unknown; None while no class is enrolled.

        Args:
            vector: (D,) of unit length.
        """
        book = self.book
        if book is None or not len(book):
            return None
        (found,) = decide(book, vector[None], self.identify)
        return Decision(
            known=found.known,
            label=found.label if found.known else None,
            nearest=found.best,
            score=round(found.score, 6),
            threshold=found.threshold,
        )

    def enrol(
        self, index: Index, label: str, names: Sequence[str], vectors: NDArray[np.float32], lengths: NDArray[np.float32]
    ) -> tuple[Enrolled, int]:
        """Add pictures to a class and to the index.

        Args:
            index: open for writing.
            label: of the class; it begins if there is none.
            names: N ids of the new rows; those that are there are replaced.
            vectors: (N, D) of unit length.
            lengths: (N,) before they were normalised.

        Returns:
            The class now, and how many rows are new.

        Raises:
            Refusal: 422, the label cannot be one, or the pictures cancel each other out.
        """
        with _refused():
            check_name(label)
        with changing_book(self.home, self.key, create=True) as book:
            with _refused():
                book.enrol([label] * len(names), vectors, lengths)
            counted = Enrolled(label=label, pictures=book[label].count, classes=len(book))
            # Before the book is saved: where the index cannot be written, nothing is kept.
            added, _ = put_rows(index, names, vectors, [{"label": label}] * len(names))
        return counted, added

    def forget(self, index: Index, label: str) -> tuple[Forgotten, list[str]]:
        """Remove a class from the book, and the rows that were enrolled under its name from the index.

        Returns:
            What is left, and the ids of the rows.

        Raises:
            Refusal: 404, there is no such class.
        """
        absent = Refusal(404, "no_such_class", f"No class {label[:80]!r} is enrolled.")
        if self.book is None:
            raise absent
        with changing_book(self.home, self.key) as changed:
            if label not in changed:
                raise absent
            changed.forget([label])
            # Before the book is saved: where the index cannot be written, the class can be forgotten later.
            names = enrolled_rows(index, [label])
            take_rows(index, names)
        return Forgotten(label=label, rows=len(names), classes=len(changed)), names


@contextmanager
def _refused() -> Iterator[None]:
    try:
        yield
    except SearchError as error:
        raise Refusal(422, "cannot_enrol", str(error)) from error


def open_classes(model: Path, home: Path | None, key: ModelKey) -> Classes:
    """Read the thresholds of a model, and look at its class book.

    Args:
        model: a run folder or a bundle folder.
        home: folder of the book; None: beside the weights.
        key: of the model.

    Raises:
        ProxemicsError: book or thresholds are damaged or belong to another model.
    """
    beside = thresholds_path(model)
    thresholds = load_thresholds(model, key) if beside.exists() else None
    classes = Classes(home or beside.parent, key, thresholds)
    _ = classes.book
    return classes
