"""What the doctor knows about one file: size, header, whether its pixels can be read, and a tiny picture of it."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from proxemics.core.errors import ImageError
from proxemics.data.decode import MAX_PIXELS, open_image
from proxemics.data.modes import to_rgb

Problem = Literal["", "missing", "empty", "unreadable", "truncated", "too_large"]
THUMB_SIZE = 16
_ORIENTATION = 0x0112
_CHUNK = 256
_EXPECTED_SUFFIXES = {
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "MPO": (".jpg", ".jpeg", ".jpe", ".jfif", ".mpo"),
    "TIFF": (".tif", ".tiff"),
    "PPM": (".ppm", ".pgm", ".pbm"),
}


@dataclass(frozen=True)
class FileFacts:
    """Facts about one file.

    Attributes:
        path: as given.
        problem: empty when nothing is wrong; ``unreadable`` has no picture header, ``truncated`` has one but its
            pixels cannot be decoded.
        detail: the reason in the decoder's words.
        num_bytes: file size.
        width: of the stored pixels, 0 when unknown.
        height: likewise.
        mode: Pillow's pixel mode, such as ``CMYK``.
        format: such as ``JPEG``.
        orientation: the Exif tag, 1 when absent.
        animated: has more than one frame.
        thumb: (16, 16, 3) uint8, upright, or None when the pixels were not decoded.
    """

    path: str
    problem: Problem = ""
    detail: str = ""
    num_bytes: int = 0
    width: int = 0
    height: int = 0
    mode: str = ""
    format: str = ""
    orientation: int = 1
    animated: bool = False
    thumb: npt.NDArray[np.uint8] | None = None

    @property
    def suffix_is_wrong(self) -> bool:
        """Whether the name promises another format than the content has."""
        suffix = Path(self.path).suffix.lower()
        return bool(self.format) and suffix not in _EXPECTED_SUFFIXES.get(self.format, (f".{self.format.lower()}",))


def inspect_file(path: str, *, decode: bool = True, max_pixels: int = MAX_PIXELS) -> FileFacts:
    """Look at one file; never raises for what is wrong with it.

    Args:
        path: the file.
        decode: also decode all pixels. JPEG is decoded at reduced size, which still reads all of its data.
        max_pixels: a picture with more, by its header, is not decoded.

    Example:
        >>> inspect_file("/nowhere/a.jpg").problem
        'missing'
    """
    try:
        size = Path(path).stat().st_size
        if size == 0:
            return FileFacts(path, "empty", "the file has 0 bytes")
        with open(path, "rb") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's notes about odd Exif blocks and big pictures
            data = io.BytesIO(file.read()) if decode else file
            return _look(path, size, data, decode, max_pixels)
    except FileNotFoundError:
        return FileFacts(path, "missing", "there is no such file")
    except OSError as error:
        return FileFacts(path, "unreadable", error.strerror or str(error))


def _look(path: str, size: int, file: io.BytesIO | io.BufferedReader, decode: bool, max_pixels: int) -> FileFacts:
    try:
        image = Image.open(file)
    except Image.DecompressionBombError as error:
        return FileFacts(path, "too_large", str(error), size)
    except UnidentifiedImageError:
        return FileFacts(path, "unreadable", "not a picture in a known format", size)
    except Exception as error:  # a damaged header leads decoders anywhere
        return FileFacts(path, "unreadable", _one_line(error), size)
    problem: Problem = ""
    detail, thumb = "", None
    orientation, animated = _read_header(image)
    width, height, mode, kind = *image.size, image.mode, image.format or ""
    if width * height > max_pixels:
        problem, detail = "too_large", f"{width} x {height} pixels are over the limit of {max_pixels}"
    elif isinstance(file, io.BytesIO) and decode:
        try:
            thumb = _thumb(image, file, path, max_pixels)
        except Exception as error:  # as above
            problem, detail = "truncated", _one_line(error)
    return FileFacts(path, problem, detail, size, width, height, mode, kind, orientation, animated, thumb)


def _read_header(image: Image.Image) -> tuple[int, bool]:
    try:
        orientation = image.getexif().get(_ORIENTATION, 1)
        animated = image.format != "JPEG" and bool(getattr(image, "is_animated", False))
    except Exception:  # damage shows when the pixels are decoded
        return 1, False
    return orientation if isinstance(orientation, int) else 1, animated


def _thumb(image: Image.Image, file: io.BytesIO, path: str, max_pixels: int) -> npt.NDArray[np.uint8]:
    if image.format == "JPEG":
        image.draft("RGB", (4 * THUMB_SIZE, 4 * THUMB_SIZE))
        rgb = to_rgb(image)
    else:
        rgb = open_image(file.getvalue(), name=path, max_pixels=max_pixels)
    return np.asarray(rgb.resize((THUMB_SIZE, THUMB_SIZE), Image.Resampling.BOX))


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text.split(" cannot be read: ")[-1] if isinstance(error, ImageError) else text


def inspect_files(
    paths: Sequence[str],
    *,
    decode: bool = True,
    max_pixels: int = MAX_PIXELS,
    workers: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> list[FileFacts]:
    """Look at many files, in threads.

    Args:
        paths: the files.
        decode: as in :func:`inspect_file`.
        max_pixels: as in :func:`inspect_file`.
        workers: threads; 0 for one a core, at most 8.
        progress: called with (done, total) now and then, from this thread.

    Returns:
        Facts in the order of ``paths``.
    """
    facts: list[FileFacts] = []
    threads = workers or min(os.cpu_count() or 1, 8)

    def look(path: str) -> FileFacts:
        return inspect_file(path, decode=decode, max_pixels=max_pixels)

    with ThreadPoolExecutor(threads) as pool:
        for chunk in _chunks(paths):
            facts.extend(pool.map(look, chunk))
            if progress is not None:
                progress(len(facts), len(paths))
    return facts


def _chunks(paths: Sequence[str]) -> Iterator[Sequence[str]]:
    for begin in range(0, len(paths), _CHUNK):
        yield paths[begin : begin + _CHUNK]
