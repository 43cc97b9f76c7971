"""Pictures of the index, shown small. Which file that is, the index alone says; a request only names an id."""

from __future__ import annotations

import io
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeAlias

from PIL import Image

from proxemics.core.errors import ConfigError, ImageError
from proxemics.data.decode import read_image
from proxemics.runtime.modes import to_rgb
from proxemics.runtime.pictures import check_pixels, known_formats
from proxemics.search.items import Meta

Size: TypeAlias = Literal["small", "large"]
SIDES: dict[Size, int] = {"small": 240, "large": 720}
"""Longest side of a thumbnail, pixels."""


class PictureStore:
    """Makes thumbnails and remembers the latest; may be called from several threads.

    Args:
        root: the folder that paths in the index lead into, or None.
        stored: returns the thumbnail that the index keeps of an id, encoded, or None; asked when there is no root.
        max_pixels: larger files are not decoded.
        cache_bytes: of remembered thumbnails.

    Attributes:
        root: resolved, or None.

    Raises:
        ConfigError: the root is no folder.
    """

    def __init__(
        self,
        root: Path | None,
        *,
        stored: Callable[[str], bytes | None] | None = None,
        max_pixels: int = 178_956_970,
        cache_bytes: int = 64_000_000,
    ) -> None:
        if root is not None and not root.is_dir():
            raise ConfigError(f"--pictures {root} is no folder; name the one that the paths in the index lead into.")
        self.root = root.resolve() if root is not None else None
        self._stored, self._max_pixels, self._cache_bytes = stored, max_pixels, cache_bytes
        self._cache: OrderedDict[tuple[str, Size], bytes] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    @property
    def available(self) -> bool:
        """Whether there is any source of pictures."""
        return self.root is not None or self._stored is not None

    def file(self, meta: Meta) -> Path | None:
        """Return the file of a row, or None when there is none inside the root."""
        path = meta.get("path")
        return inside(self.root, path) if self.root is not None and isinstance(path, str) else None

    def picture(self, name: str, meta: Meta, *, side: int | None = None) -> Image.Image | None:
        """Return the picture of a row as upright RGB: the file, else the stored thumbnail, else None.

        Args:
            name: the id.
            meta: what the index says about it.
            side: longest side that will be shown; a large JPEG is then decoded at a fraction of its size.
        """
        try:
            file = self.file(meta)
            if file is not None and side is not None:
                return read_small(file, side, max_pixels=self._max_pixels)
            if file is not None:
                return read_image(file, max_pixels=self._max_pixels)
            kept = self._stored(name) if self._stored is not None else None
            return Image.open(io.BytesIO(kept)).convert("RGB") if kept else None
        except (ImageError, OSError, ValueError):
            return None

    def thumbnail(self, name: str, meta: Meta, size: Size) -> bytes | None:
        """Return a JPEG of a row, or None when there is no picture that can be read.

        Args:
            name: the id, under which it is remembered.
            meta: what the index says about it.
            size: see :data:`SIDES`.
        """
        key = (name, size)
        with self._lock:
            if key in self._cache:
                self._cache.move_to_end(key)
                return self._cache[key]
        image = self.picture(name, meta, side=SIDES[size])
        if image is None:
            return None
        data = encode(image, SIDES[size])
        with self._lock:
            self._bytes += len(data) - len(self._cache.pop(key, b""))
            self._cache[key] = data
            while self._bytes > self._cache_bytes:
                self._bytes -= len(self._cache.popitem(last=False)[1])
        return data

    def forget(self, name: str) -> None:
        """Drop what is remembered of an id whose row changed."""
        with self._lock:
            for size in SIDES:
                self._bytes -= len(self._cache.pop((name, size), b""))


def inside(root: Path, path: str) -> Path | None:
    """Resolve a path and return it only when it is a file inside the root, links followed.

    Args:
        root: resolved.
        path: relative to the root, or absolute.

    Example:
        >>> import tempfile
        >>> root = Path(tempfile.mkdtemp()).resolve(); _ = (root / "a.jpg").write_bytes(b"")
        >>> inside(root, "a.jpg") == root / "a.jpg", inside(root, "../../etc/passwd"), inside(root, "/etc/passwd")
        (True, None, None)
    """
    try:
        resolved = (root / path).resolve()
        return resolved if resolved.is_relative_to(root) and resolved.is_file() else None
    except (OSError, ValueError, RuntimeError):  # a name that is too long, a zero byte, links in a circle
        return None


def read_small(file: Path, side: int, *, max_pixels: int) -> Image.Image:
    """Read a picture as upright RGB, at least ``side`` long where it is; JPEG skips the detail beyond twice that.

    Raises:
        ImageError: it cannot be read, or has too many pixels.
    """
    try:
        with Image.open(file, formats=known_formats()) as image:
            check_pixels(str(file), image.width, image.height, max_pixels)
            image.draft("RGB" if image.mode in ("RGB", "YCbCr") else image.mode, (2 * side, 2 * side))
            return to_rgb(image)
    except ImageError:
        raise
    except Exception as error:  # decoders raise whatever a damaged file leads them to
        raise ImageError(f"{file} cannot be read: {' '.join(str(error).split())}.") from error


def encode(image: Image.Image, side: int) -> bytes:
    """Shrink a picture to a longest side, never enlarging it, and encode it as JPEG."""
    small = image.copy()
    small.thumbnail((side, side), Image.Resampling.LANCZOS, reducing_gap=2.0)
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=85, optimize=True)
    return buffer.getvalue()


def short_meta(meta: Meta, root: Path | None) -> Meta:
    """Return metadata without the folders of this machine: an absolute path keeps what follows the root, or its name.

    Example:
        >>> short_meta({"path": "/data/birds/a/1.jpg", "label": "a"}, Path("/data/birds"))
        {'path': 'a/1.jpg', 'label': 'a'}
        >>> short_meta({"path": "/data/birds/a/1.jpg"}, None)
        {'path': '1.jpg'}
    """
    path = meta.get("path")
    if not isinstance(path, str) or not Path(path).is_absolute():
        return dict(meta)
    place = Path(path)
    kept = place.relative_to(root) if root is not None and place.is_relative_to(root) else Path(place.name)
    return {**meta, "path": kept.as_posix()}
