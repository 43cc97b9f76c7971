"""Files of rows that are only ever appended to: written with a sync, read through a memory map."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from proxemics.core.errors import SearchError


def map_rows(path: Path, rows: int, dim: int, dtype: type[np.generic]) -> NDArray[np.generic]:
    """Map the first ``rows`` rows of a file as (rows, dim); memory is used for what is read only.

    Raises:
        SearchError: the file is shorter, which no stopped process can cause.
        FileNotFoundError: there is none.
    """
    size = path.stat().st_size
    if rows == 0:
        return np.empty((0, dim), dtype)
    if size < rows * dim * np.dtype(dtype).itemsize:
        raise SearchError(
            f"{path} holds {size} bytes where {rows} rows of {dim} numbers are committed; it was cut from outside. "
            "Restore the folder from a copy, or build the index again."
        )
    # Copy-on-write, because torch warns about arrays that it may not write; nobody does.
    return np.memmap(path, dtype=dtype, mode="c", shape=(rows, dim)).view(np.ndarray)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on disk."""
    if os.name == "nt" and path.is_dir():
        return  # Windows keeps names by itself
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Appender:
    """The writer's end of such a file.

    Args:
        path: created when absent.
        rows: committed rows; what is behind them was never committed and is cut off.
        dim: numbers a row.
        dtype: of the numbers.
    """

    def __init__(self, path: Path, rows: int, dim: int, dtype: type[np.generic]) -> None:
        self.path = path
        self._width = dim * np.dtype(dtype).itemsize
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
        if os.fstat(self._handle).st_size < rows * self._width:
            self.close()
            map_rows(path, rows, dim, dtype)
        else:
            os.ftruncate(self._handle, rows * self._width)

    def write(self, row: int, block: NDArray[np.generic]) -> None:
        """Write rows at position ``row`` and wait until they are on disk."""
        os.lseek(self._handle, row * self._width, os.SEEK_SET)
        data = np.ascontiguousarray(block).reshape(-1).view(np.uint8).data
        while data:
            data = data[os.write(self._handle, data) :]
        getattr(os, "fdatasync", os.fsync)(self._handle)

    def cut(self, rows: int) -> None:
        """Drop what is behind ``rows`` rows."""
        os.ftruncate(self._handle, rows * self._width)

    def close(self) -> None:
        """Close the file; twice is no error."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
