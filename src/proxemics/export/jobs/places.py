"""Where the bytes of a picture lie: in a file, in an archive, in a table; and how to get at them.

A place is a few plain values, so that it can be sent to another process or machine and be read there.
"""

from __future__ import annotations

import io
import tarfile
import threading
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import IO, NamedTuple

import numpy as np

from proxemics.core.errors import DataError, ImageError

MAX_BYTES = 1 << 29
"""A picture of more bytes is not read."""
_DAMAGE = (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, RuntimeError, NotImplementedError, OSError)


class Place(NamedTuple):
    """Where one picture lies.

    Attributes:
        kind: ``file``; ``zip``; ``tar`` (not compressed, so that its files can be read in any order); ``stream``
            (a compressed tar, read from the front to the back); ``parquet``.
        container: the file to open.
        name: the name inside an archive, or the column of a table.
        offset: where the bytes start in a tar; the number of the file in a stream; the row group in a table.
        size: how many bytes they are in a tar or stream; the row within the group of a table.
    """

    kind: str
    container: str
    name: str = ""
    offset: int = 0
    size: int = 0

    @property
    def shown(self) -> str:
        """What people call it.

        Example:
            >>> Place("zip", "/data/a.zip", "cat/1.jpg").shown
            '/data/a.zip!/cat/1.jpg'
        """
        if self.kind == "file":
            return self.container
        return f"{self.container}!/{self.name}" if self.kind != "parquet" else f"{self.container}!/{self.offset}"


class PlaceReader:
    """Reads bytes from places; archives stay open. May be used by several threads at once.

    Pictures in files are left to the decoder, which gets their paths.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._zips: dict[str, zipfile.ZipFile] = {}
        self._tars: dict[str, IO[bytes]] = {}
        self._open = ExitStack()
        self._groups: dict[tuple[str, int], Sequence[bytes | None]] = {}

    def read(self, place: Place) -> bytes:
        """Return the bytes of one picture.

        Raises:
            ImageError: the archive is damaged there, is protected by a password, or the picture is too large.
        """
        try:
            data = self._read(place)
        except _DAMAGE as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ImageError(f"{place.shown} cannot be read: {reason}. Make the archive again.") from error
        if data is None:
            raise ImageError(f"{place.shown} cannot be read: the cell is empty. Take the row out of the table.")
        if len(data) > MAX_BYTES:
            raise ImageError(f"{place.shown} cannot be read: it unpacks to more than {MAX_BYTES:,} bytes.")
        return data

    def _read(self, place: Place) -> bytes | None:
        if place.kind == "zip":
            with self._zip(place.container).open(place.name) as stream:
                return stream.read(MAX_BYTES + 1)
        if place.kind == "tar":
            with self._lock:
                archive = self._tar(place.container)
                archive.seek(place.offset)
                return archive.read(min(place.size, MAX_BYTES + 1))
        if place.kind == "parquet":
            return self._group(place)[place.size]
        raise DataError(f"A picture of the kind {place.kind!r} cannot be read on its own.")

    def _zip(self, path: str) -> zipfile.ZipFile:
        with self._lock:
            if path not in self._zips:
                self._zips[path] = self._open.enter_context(zipfile.ZipFile(path))
            return self._zips[path]

    def _tar(self, path: str) -> IO[bytes]:
        if path not in self._tars:
            self._tars[path] = self._open.enter_context(io.BufferedReader(io.FileIO(path)))
        return self._tars[path]

    def _group(self, place: Place) -> Sequence[bytes | None]:
        """Read a row group of a table; the two latest are kept, because pictures come in order."""
        key = (place.container, place.offset)
        with self._lock:
            if key not in self._groups:
                found = read_group(place.container, place.offset, place.name)
                while len(self._groups) > 1:
                    del self._groups[next(iter(self._groups))]
                self._groups[key] = found
            return self._groups[key]

    def close(self) -> None:
        """Close what is open."""
        self._open.close()
        self._zips, self._tars, self._groups = {}, {}, {}


def read_group(file: str, group: int, column: str) -> Sequence[bytes | None]:
    """Return the encoded pictures of one row group of a Parquet file; ``column`` may be ``image.bytes``."""
    import pyarrow.parquet as pq

    table = pq.ParquetFile(file).read_row_group(group, columns=[column])
    values = table.column(0).combine_chunks()
    found: list[bytes | None] = (values.field("bytes") if "." in column else values).to_pylist()
    return found


def stream_bytes(archive: str, wanted: Sequence[int]) -> Iterator[bytes]:
    """Read some files of a compressed tar, from the front to the back.

    Args:
        archive: the file.
        wanted: numbers of its files, rising.

    Yields:
        The bytes of each, in that order; more than the limit is cut off one byte behind it.

    Raises:
        DataError: the archive is damaged.
    """
    numbers = np.asarray(wanted)
    at = 0
    try:
        with tarfile.open(archive, "r|*") as tarred:
            for number, member in enumerate(tarred):
                if at == len(numbers):
                    return
                if number != numbers[at]:
                    continue
                stream = tarred.extractfile(member)
                yield stream.read(MAX_BYTES + 1) if stream is not None else b""
                at += 1
    except _DAMAGE as error:
        raise DataError(f"{archive} cannot be read to its end: {error}. Make the archive again.") from error
