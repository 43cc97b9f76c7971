"""Small pictures inside the page: data URIs within a budget, and a placeholder for what cannot be read."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from PIL import Image

from proxemics.core.errors import ProxemicsError
from proxemics.data.decode import read_image

Key = tuple[str, int]


class Thumbnails:
    """Makes each wanted thumbnail once and hands out its data URI.

    Args:
        budget: largest sum of encoded bytes; thumbnails beyond it are left out.
        workers: threads that decode.

    Attributes:
        missing: paths that could not be read.
        left_out: thumbnails left out for the budget.
        bytes: of all thumbnails that were kept, encoded.

    Example:
        >>> thumbnails = Thumbnails()
        >>> thumbnails.prepare([("/no/such/picture.png", 64)])
        >>> thumbnails.get("/no/such/picture.png", 64), thumbnails.missing
        (None, ['/no/such/picture.png'])
    """

    def __init__(self, *, budget: int = 8_000_000, workers: int = 4) -> None:
        self.budget = budget
        self.workers = workers
        self.missing: list[str] = []
        self.left_out = 0
        self._uris: dict[Key, str] = {}
        self.bytes = 0

    def prepare(self, wanted: Iterable[Key]) -> None:
        """Decode pictures in threads, in the order of importance.

        Args:
            wanted: (path, side) pairs; repeated ones are made once.
        """
        keys = [key for key in dict.fromkeys(wanted) if key not in self._uris]
        sides: dict[str, list[int]] = {}
        for path, side in keys:
            sides.setdefault(path, []).append(side)
        with ThreadPoolExecutor(self.workers) as pool:  # each file is decoded once for all its sides
            encoded = dict(zip(sides, pool.map(_encode, sides, sides.values()), strict=True))
        for path, side in keys:
            self._keep((path, side), encoded[path].get(side))

    def _keep(self, key: Key, data: bytes | None) -> None:
        if data is None:
            if key[0] not in self.missing:
                self.missing.append(key[0])
        elif self.bytes + len(data) > self.budget:
            self.left_out += 1
        else:
            self.bytes += len(data)
            self._uris[key] = _uri("jpeg", data)

    def get(self, path: str, side: int) -> str | None:
        """Return the data URI of a prepared thumbnail, or None."""
        return self._uris.get((path, side))


def _encode(path: str, sides: Sequence[int]) -> dict[int, bytes]:
    """Return the JPEG of each side, or nothing when the picture cannot be read."""
    try:
        image = read_image(path)
        return {side: _jpeg(square(image, side)) for side in sides}
    except (ProxemicsError, OSError, ValueError):
        return {}


def _jpeg(image: Image.Image, quality: int = 80) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def _uri(kind: str, data: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"


def jpeg_uri(image: Image.Image, *, quality: int = 80) -> str:
    """Return a picture as a data URI.

    Args:
        image: RGB.
        quality: of JPEG.

    Example:
        >>> jpeg_uri(Image.new("RGB", (8, 8)))[:23]
        'data:image/jpeg;base64,'
    """
    return _uri("jpeg", _jpeg(image, quality))


def png_uri(image: Image.Image) -> str:
    """Return a picture, which may have an alpha channel, as a data URI.

    Example:
        >>> png_uri(Image.new("RGBA", (8, 8)))[:22]
        'data:image/png;base64,'
    """
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return _uri("png", buffer.getvalue())


def square(image: Image.Image, side: int) -> Image.Image:
    """Fit a picture into a square without cutting anything off or enlarging it; the rest is light grey.

    Args:
        image: RGB.
        side: of the square at most, pixels.

    Example:
        >>> square(Image.new("RGB", (200, 100), "red"), 50).getpixel((25, 2))
        (232, 232, 232)
    """
    side = min(side, max(image.size))  # the browser enlarges better than we would
    small = image.copy()
    small.thumbnail((side, side), Image.Resampling.LANCZOS, reducing_gap=2.0)
    if small.size == (side, side):
        return small
    page = Image.new("RGB", (side, side), (232, 232, 232))
    page.paste(small, ((side - small.width) // 2, (side - small.height) // 2))
    return page
