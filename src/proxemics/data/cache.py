"""Pictures decoded once: one flat file of pixels, mapped into memory and shared by all workers.

A folder holds ``index.json`` (paths, stamps and sizes) and ``pixels-<key>.bin`` (the pictures one after the other,
each (H, W, 3) uint8). The index is replaced atomically after the pixels are on disk, so a build that is killed leaves
the old cache or none. An index is used again when it covers the paths that are asked for and each file still has the
size and time stamp it had; otherwise everything is rebuilt.

What holds for evaluation: a picture that was stored whole, and one that was reduced to exactly the short side and with
the filter that evaluation asks for, gives the same pixels as its file. Any other reduced picture would be resized
twice; :meth:`PixelCache.exact_for` says which it is, and :class:`~proxemics.data.dataset.ImageDataset` then reads the
file instead. Training crops use reduced pictures as they are.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from proxemics.core.errors import DataError, ImageError
from proxemics.core.files import atomic_path, read_json, write_text
from proxemics.data.decode import MAX_PIXELS, decode_tensor, image_size
from proxemics.data.preprocess import Interpolation, Preprocess, resize, resized_shape

_VERSION = 1
_ABANDONED_S = 3600
_INDEX = "index.json"


class PixelCache:
    """Decoded pictures by position; get one from :meth:`build` or :meth:`open`.

    Attributes:
        folder: where the cache lives.
        paths: the pictures, in the order of their positions.
        short_side: pictures with a longer short side were reduced to this, in pixels.
        interpolation: the filter they were reduced with.
        failures: position to error text of the files that could not be read (``on_error="skip"`` only).

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> folder = Path(tempfile.mkdtemp())
        >>> Image.new("RGB", (40, 20), "white").save(folder / "a.png")
        >>> cache = PixelCache.build([folder / "a.png"], folder / "cache", short_side=10)
        >>> cache.get(0).shape, cache.num_bytes
        (torch.Size([3, 10, 20]), 600)
    """

    def __init__(self, folder: str | PathLike[str], index: dict[str, Any]) -> None:
        self.folder = Path(folder)
        self.paths: tuple[str, ...] = tuple(index["paths"])
        self.short_side: int = index["short_side"]
        self.interpolation: Interpolation = index["interpolation"]
        self.failures: dict[int, str] = {int(row): text for row, text in index["failures"].items()}
        self._index = index
        self._shapes = np.array(index["shapes"], dtype=np.int64).reshape(-1, 2)
        self._offsets = np.concatenate([[0], np.cumsum(3 * self._shapes.prod(axis=1))])
        self._position = {path: row for row, path in enumerate(self.paths)}
        self._map()

    @classmethod
    def build(
        cls,
        paths: Sequence[str | PathLike[str]],
        folder: str | PathLike[str],
        *,
        short_side: int,
        interpolation: Interpolation = "bilinear",
        workers: int = 1,
        on_error: str = "raise",
        max_pixels: int = MAX_PIXELS,
    ) -> PixelCache:
        """Decode pictures into ``folder``, or open what is there when it still fits.

        Args:
            paths: the pictures; duplicates are stored once.
            folder: created; holds one cache, an older one that does not fit is replaced.
            short_side: reduce pictures to this short side, in pixels; smaller ones are stored whole.
            interpolation: filter of the reduction.
            workers: threads that decode.
            on_error: "raise", or "skip" to note unreadable files, whose :meth:`get` raises.
            max_pixels: as in :func:`proxemics.data.decode.read_image`.

        Returns:
            The open cache.

        Raises:
            DataError: the disk has too little space (checked before anything is decoded), or an argument is wrong.
            ImageError: a picture cannot be read and ``on_error`` is "raise".
        """
        if short_side < 1 or workers < 1 or on_error not in ("raise", "skip"):
            raise DataError(
                f"short_side={short_side}, workers={workers}, on_error={on_error!r}: give short_side >= 1, "
                "workers >= 1 and on_error 'raise' or 'skip'."
            )
        target = Path(folder)
        wanted = list(dict.fromkeys(str(path) for path in paths))
        stamps = [_stamp(path) for path in wanted]
        old = _load_index(target)
        if old is not None and _covers(old, wanted, stamps, short_side, interpolation, keep=on_error == "skip"):
            return cls(target, old)
        target.mkdir(parents=True, exist_ok=True)
        _check_space(target, wanted, short_side, max_pixels)
        key = hashlib.sha256(repr((wanted, stamps, short_side, interpolation)).encode()).hexdigest()[:16]
        index: dict[str, Any] = {
            "version": _VERSION,
            "short_side": short_side,
            "interpolation": interpolation,
            "pixels": f"pixels-{key}.bin",
            "paths": wanted,
            "stamps": stamps,
        }

        def one(path: str) -> np.ndarray | ImageError:
            return _decode(path, short_side, interpolation, max_pixels)

        with atomic_path(target / index["pixels"]) as temporary, temporary.open("wb") as file:
            index["shapes"], index["failures"] = _write(file, _in_order(one, wanted, workers), on_error)
        write_text(target / _INDEX, json.dumps(index))
        _clean(target, keep=index["pixels"])
        return cls(target, index)

    @classmethod
    def open(cls, folder: str | PathLike[str]) -> PixelCache:
        """Open a finished cache without looking at the files it was made from.

        Raises:
            DataError: there is none, or it is damaged.
        """
        index = _load_index(Path(folder))
        if index is None:
            raise DataError(f"{folder} holds no finished pixel cache; make one with PixelCache.build.")
        return cls(folder, index)

    def __len__(self) -> int:
        return len(self.paths)

    def get(self, position: int) -> Tensor:
        """Return one picture.

        Args:
            position: in ``paths``.

        Returns:
            (3, H, W) uint8, a view of the mapped file; writing to it changes this process's copy only.

        Raises:
            ImageError: the file could not be read when the cache was built.
        """
        if position in self.failures:
            raise ImageError(self.failures[position])
        height, width = (int(side) for side in self._shapes[position])
        start = int(self._offsets[position])
        pixels = self._pixels[start : start + 3 * height * width]
        return torch.from_numpy(pixels.reshape(height, width, 3)).permute(2, 0, 1)

    def positions(self, paths: Sequence[str | PathLike[str]]) -> np.ndarray:
        """Look up where pictures are stored.

        Returns:
            (len(paths),) int64.

        Raises:
            DataError: a path is not in the cache.
        """
        try:
            return np.array([self._position[str(path)] for path in paths], dtype=np.int64)
        except KeyError as error:
            raise DataError(
                f"{error.args[0]} is not in the pixel cache {self.folder}; build the cache from all paths of the table."
            ) from None

    def exact_for(self, position: int, preprocess: Preprocess) -> bool:
        """Say whether the cached picture gives ``preprocess`` the same pixels as its file."""
        if self._shapes[position].min() < self.short_side:
            return True
        return preprocess.resize == self.short_side and preprocess.interpolation == self.interpolation

    @property
    def num_bytes(self) -> int:
        """Size of the pixels, in bytes."""
        return int(self._offsets[-1])

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": str(self.folder), "index": self._index}

    def __setstate__(self, state: dict[str, Any]) -> None:
        PixelCache.__init__(self, state["folder"], state["index"])

    def _map(self) -> None:
        path = self.folder / self._index["pixels"]
        size = path.stat().st_size if path.exists() else -1
        if size != self.num_bytes:
            found = "missing" if size < 0 else f"{size} bytes"
            raise DataError(
                f"{path} is {found}, {self.num_bytes} bytes are expected; delete {self.folder} and build it again."
            )
        self._pixels = np.memmap(path, dtype=np.uint8, mode="c") if size else np.zeros(0, dtype=np.uint8)


def _write(
    file: BinaryIO, pictures: Generator[np.ndarray | ImageError, None, None], on_error: str
) -> tuple[list[list[int]], dict[str, str]]:
    # Closed here, error or not: left to the garbage collector, the generator would end its threads from wherever
    # the collector happens to run, which can deadlock inside the start of another thread.
    with closing(pictures):
        return _append(file, pictures, on_error)


def _append(
    file: BinaryIO, pictures: Iterator[np.ndarray | ImageError], on_error: str
) -> tuple[list[list[int]], dict[str, str]]:
    shapes, failures = [], {}
    for row, pixels in enumerate(pictures):
        if isinstance(pixels, ImageError):
            if on_error == "raise":
                raise pixels
            failures[str(row)] = str(pixels)
            shapes.append([0, 0])
        else:
            shapes.append([int(side) for side in pixels.shape[:2]])
            file.write(pixels.data)
    return shapes, failures


def _decode(path: str, short_side: int, interpolation: Interpolation, max_pixels: int) -> np.ndarray | ImageError:
    try:
        image = decode_tensor(path, max_pixels=max_pixels)
    except ImageError as error:
        return error
    height, width = int(image.shape[1]), int(image.shape[2])
    if min(height, width) > short_side:
        image = resize(image, *resized_shape(height, width, short_side), interpolation=interpolation)
    return image.permute(1, 2, 0).contiguous().numpy()


def _in_order(function: Any, items: Sequence[str], workers: int) -> Generator[Any, None, None]:
    """Map in threads, in order, with a bounded number of results waiting."""
    with ThreadPoolExecutor(workers) as pool:
        rest = iter(items)
        waiting = [pool.submit(function, item) for item in islice(rest, 4 * workers)]
        while waiting:
            yield waiting.pop(0).result()
            waiting.extend(pool.submit(function, item) for item in islice(rest, 1))


def _clean(folder: Path, *, keep: str) -> None:
    """Remove older pixels, and what a killed build left behind; one that is still running writes all the time."""
    for stale in folder.glob("pixels-*.bin"):
        if stale.name != keep:
            stale.unlink(missing_ok=True)
    for left in folder.glob(".pixels-*.bin"):
        if time.time() - left.stat().st_mtime > _ABANDONED_S:
            left.unlink(missing_ok=True)


def _stamp(path: str) -> list[int]:
    try:
        status = Path(path).stat()
    except OSError:
        return [-1, -1]
    return [status.st_size, status.st_mtime_ns]


def _load_index(folder: Path) -> dict[str, Any] | None:
    if not (folder / _INDEX).exists():
        return None
    index = read_json(folder / _INDEX)
    return index if isinstance(index, dict) and index.get("version") == _VERSION else None


def _covers(
    index: dict[str, Any], paths: list[str], stamps: list[list[int]], short_side: int, interpolation: str, *, keep: bool
) -> bool:
    if index["short_side"] != short_side or index["interpolation"] != interpolation or (index["failures"] and not keep):
        return False
    known = dict(zip(index["paths"], index["stamps"], strict=True))
    return all(known.get(path) == stamp for path, stamp in zip(paths, stamps, strict=True))


def _check_space(folder: Path, paths: list[str], short_side: int, max_pixels: int) -> None:
    needed = 0
    for path in paths:
        try:
            height, width = image_size(path, max_pixels=max_pixels)
        except ImageError:
            continue  # told by name when it is decoded
        if min(height, width) > short_side:
            height, width = resized_shape(height, width, short_side)
        needed += 3 * height * width
    free = shutil.disk_usage(folder).free
    if needed > 0.95 * free:
        raise DataError(
            f"The pixel cache needs {needed / 2**30:.2f} GiB in {folder}, but only {free / 2**30:.2f} GiB are free; "
            f"free some space, choose another folder, or lower short_side={short_side}."
        )
