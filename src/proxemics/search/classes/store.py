"""The class book on disk: ``classes.safetensors`` holds it, ``classes.json`` is a copy of its list for people.

All that the book is made of, names included, is in the one file of tensors, which is replaced in one step: a reader
sees the old book or the new one. Writers take turns.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from proxemics.core.errors import SearchError
from proxemics.core.files import atomic_path, write_text
from proxemics.search.classes.book import ClassBook, ClassEntry
from proxemics.search.manifest import ModelKey

SCHEMA = 1
TENSORS, LIST = "classes.safetensors", "classes.json"
_HEAD = "class_book"


class Listed(BaseModel):
    """What the list says of a class."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    pictures: int = Field(ge=1)


class Head(BaseModel):
    """The list of the book; ``format`` is ``schema`` in JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    format: int = Field(default=SCHEMA, alias="schema")
    key: ModelKey
    weighting: Literal["equal", "length"]
    classes: list[Listed]


def save_book(book: ClassBook, folder: str | Path) -> Path:
    """Write a class book; an older one in the folder is replaced.

    Returns:
        The file.
    """
    place = Path(folder)
    entries = [book[name] for name in book.names]
    head = Head(
        key=book.key,
        weighting=book.weighting,
        classes=[Listed(name=name, pictures=book[name].count) for name in book.names],
    ).model_dump_json(indent=2, by_alias=True)
    tensors = {
        "total": np.stack([one.total for one in entries]) if entries else np.empty((0, book.key.dim)),
        "weight": np.array([[one.weight, one.squares] for one in entries], dtype=np.float64).reshape(-1, 2),
    }
    with atomic_path(place / TENSORS) as temporary:
        save_file(tensors, temporary, metadata={_HEAD: head})
    write_text(place / LIST, head + "\n")
    return place / TENSORS


def load_book(folder: str | Path, key: ModelKey | None = None) -> ClassBook:
    """Read a class book.

    Args:
        folder: it was saved in.
        key: the model it is to be used with; None skips the check.

    Raises:
        SearchError: there is none, it is damaged or newer, or of another model.
    """
    path = Path(folder) / TENSORS
    if not path.is_file():
        raise SearchError(f"{folder} holds no enrolled classes; add one with `proxemics enrol`.")
    try:
        with safe_open(path, framework="np") as file:
            head = _head((file.metadata() or {}).get(_HEAD, ""), path)
            total, weight = file.get_tensor("total"), file.get_tensor("weight")
    except (SafetensorError, OSError, UnicodeDecodeError) as error:
        raise SearchError(f"{path} cannot be read: {' '.join(str(error).split())[:120]}.") from error
    wanted = (len(head.classes), head.key.dim), (len(head.classes), 2)
    if (total.shape, weight.shape) != wanted or total.dtype != np.float64 or not np.isfinite(total).all():
        raise SearchError(f"{path} is damaged: its tensors do not fit its list of {len(head.classes)} classes.")
    book = ClassBook(
        head.key,
        weighting=head.weighting,
        entries={
            one.name: ClassEntry(total[row], float(weight[row, 0]), float(weight[row, 1]), one.pictures)
            for row, one in enumerate(head.classes)
        },
    )
    if key is not None:
        book.check(key)
    return book


@contextmanager
def changing_book(
    folder: str | Path, key: ModelKey, *, weighting: Literal["equal", "length"] | None = None, create: bool = False
) -> Iterator[ClassBook]:
    """Yield the class book of a folder and save it when the block ends well; one writer at a time.

    Args:
        folder: of the book.
        key: the model.
        weighting: of a new book, ``equal`` if None; an existing one must have it.
        create: begin a new book where there is none.

    Raises:
        SearchError: see :func:`load_book`; or the book weighs pictures in another way.
    """
    place = Path(folder)
    if create:
        place.mkdir(parents=True, exist_ok=True)
    elif not (place / TENSORS).is_file():
        raise SearchError(f"{folder} holds no enrolled classes; add one with `proxemics enrol`.")
    with _one_writer(place):
        if create and not (place / TENSORS).is_file():
            book = ClassBook(key, weighting=weighting or "equal")
        else:
            book = load_book(place, key)
        if weighting is not None and book.weighting != weighting:
            raise SearchError(
                f"The class book in {place} weighs pictures by {book.weighting}, and {weighting} was asked for; "
                "sums of both cannot be mixed: use another --book."
            )
        yield book
        save_book(book, place)


@contextmanager
def _one_writer(folder: Path) -> Iterator[None]:
    """Lock a folder, without a file of its own; the lock goes with the process."""
    try:
        import fcntl
    except ModuleNotFoundError:  # Windows: writers there have to take turns by themselves
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # file systems without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _head(text: str, path: Path) -> Head:
    try:
        raw: Any = json.loads(text)
    except json.JSONDecodeError as error:
        raise SearchError(f"{path} is no class book: it has no list of classes.") from error
    schema = raw.get("schema") if isinstance(raw, dict) else None
    if isinstance(schema, int) and schema > SCHEMA:
        raise SearchError(f"{path} is of format {schema}, which is newer than this version; update Proxemics.")
    try:
        return Head.model_validate(raw)
    except ValidationError as error:
        raise SearchError(f"{path} is damaged: its list of classes is not understood.") from error
