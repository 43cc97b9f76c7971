"""From a file or bytes to upright 8-bit RGB, with an error that names the file; the reference for every other reader.

Pillow and NumPy are enough. What each pixel mode becomes is written at the top of :mod:`proxemics.runtime.modes`. The
size in the header is compared with ``max_pixels`` before any pixel is decoded.
"""

from __future__ import annotations

import io
from functools import cache
from os import PathLike
from typing import BinaryIO

from PIL import Image, UnidentifiedImageError

from proxemics.core.errors import ImageError
from proxemics.runtime.modes import to_rgb

MAX_PIXELS = 178_956_970
"""Largest picture that is decoded unless the caller says otherwise (Pillow's own limit)."""

ADVICE = " Replace the file or take it out of the table (`proxemics doctor` lists all such files)."
"""How a message about a picture that cannot be read ends."""

# Formats that hold photographs and are decoded inside the process; EPS, for one, would start another program.
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "MPO", "AVIF", "HEIF", "JPEG2000", "PPM", "TGA", "QOI")


def read_image(path: str | PathLike[str], *, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Read a picture file as upright RGB.

    Args:
        path: the file.
        max_pixels: refuse pictures with more pixels than this, by their header.

    Returns:
        Mode RGB, Exif orientation applied, alpha composited on white, first frame of an animation.

    Raises:
        ImageError: absent, empty, truncated, too large or not a picture; the message names the path.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> file = Path(tempfile.mkdtemp()) / "dot.png"
        >>> Image.new("LA", (2, 3), (0, 0)).save(file)
        >>> read_image(file).getpixel((0, 0))
        (255, 255, 255)
    """
    return open_image(read_bytes(path), name=str(path), max_pixels=max_pixels)


def open_image(source: bytes | BinaryIO, *, name: str = "<bytes>", max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Read a picture from bytes or an open binary file as upright RGB.

    Args:
        source: the encoded picture.
        name: what to call it in an error.
        max_pixels: as in :func:`read_image`.

    Returns:
        As :func:`read_image`.

    Raises:
        ImageError: as :func:`read_image`.

    Example:
        >>> open_image(b"hello", name="upload.jpg")
        Traceback (most recent call last):
        proxemics.core.errors.ImageError: upload.jpg cannot be read: it is not a picture in a known format...
    """
    data = source if isinstance(source, bytes) else source.read()
    if not data:
        raise unreadable(name, "the file is empty (0 bytes)")
    try:
        with Image.open(io.BytesIO(data), formats=known_formats()) as image:
            check_pixels(name, image.width, image.height, max_pixels)
            rgb = to_rgb(image)
            check_pixels(name, rgb.width, rgb.height, max_pixels)
            return rgb
    except ImageError:
        raise
    except UnidentifiedImageError:
        raise unreadable(name, "it is not a picture in a known format (JPEG, PNG, WebP, ...)") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise unreadable(name, f"PIL.Image.MAX_IMAGE_PIXELS refuses it ({_one_line(error)})") from None
    except Exception as error:  # decoders raise whatever a damaged file leads them to
        raise unreadable(name, _one_line(error)) from error


def read_bytes(path: str | PathLike[str]) -> bytes:
    """Read a picture file without decoding it.

    Raises:
        ImageError: it is absent or cannot be read; the message names it.
    """
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        raise unreadable(str(path), "there is no such file") from None
    except (OSError, ValueError) as error:
        raise unreadable(str(path), _one_line(error)) from error


def check_pixels(name: str, width: int, height: int, max_pixels: int) -> None:
    """Refuse a picture of too many pixels.

    Raises:
        ImageError: ``width * height`` is over ``max_pixels``.
    """
    if width * height > max_pixels:
        raise ImageError(
            f"{name} cannot be read: {width} x {height} = {width * height} pixels is over the limit of {max_pixels}. "
            "Shrink it, or raise max_pixels if you trust the file."
        )


def unreadable(name: str, reason: str) -> ImageError:
    """Return the error for a picture that cannot be read."""
    return ImageError(f"{name} cannot be read: {reason}.{ADVICE}")


@cache
def known_formats() -> tuple[str, ...]:
    """Return the formats that are decoded, as far as this Pillow has them."""
    Image.init()
    return tuple(name for name in _FORMATS if name in Image.OPEN)


def _one_line(error: BaseException) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(text).split()).rstrip(".")
