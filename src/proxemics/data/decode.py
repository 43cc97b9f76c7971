"""From a file or bytes to upright 8-bit RGB, with an error that names the file.

Two roads lead to the same pixels: :func:`read_image` (Pillow, the reference) and :func:`decode_tensor` (libjpeg-turbo
for plain JPEG, Pillow for the rest). What each pixel mode becomes is written at the top of
:mod:`proxemics.data.modes`. The size in the header is compared with ``max_pixels`` before any pixel is decoded.
"""

from __future__ import annotations

import io
from functools import cache
from os import PathLike
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from proxemics.core.errors import ImageError
from proxemics.data import jpeg
from proxemics.data.modes import to_rgb

MAX_PIXELS = 178_956_970
"""Largest picture that is decoded unless the caller says otherwise (Pillow's own limit)."""

# Formats that hold photographs and are decoded inside the process; EPS, for one, would start another program.
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "MPO", "AVIF", "HEIF", "JPEG2000", "PPM", "TGA", "QOI")


def read_image(path: str | PathLike[str], *, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Read a picture file as upright RGB; the reference for every other reader.

    Args:
        path: the file.
        max_pixels: refuse pictures with more pixels than this, by their header.

    Returns:
        Mode RGB, Exif orientation applied, alpha composited on white, first frame of an animation.

    Raises:
        ImageError: absent, empty, truncated, too large or not a picture; the message names the path.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "dot.png"
        >>> Image.new("LA", (2, 3), (0, 0)).save(file)
        >>> read_image(file).getpixel((0, 0))
        (255, 255, 255)
    """
    return open_image(_read_bytes(path), name=str(path), max_pixels=max_pixels)


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
        raise _unreadable(name, "the file is empty (0 bytes)")
    try:
        with Image.open(io.BytesIO(data), formats=_formats()) as image:
            _check_pixels(name, image.width, image.height, max_pixels)
            rgb = to_rgb(image)
            _check_pixels(name, rgb.width, rgb.height, max_pixels)
            return rgb
    except ImageError:
        raise
    except UnidentifiedImageError:
        raise _unreadable(name, "it is not a picture in a known format (JPEG, PNG, WebP, ...)") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _unreadable(name, f"PIL.Image.MAX_IMAGE_PIXELS refuses it ({_one_line(error)})") from None
    except Exception as error:  # decoders raise whatever a damaged file leads them to
        raise _unreadable(name, _one_line(error)) from error


def decode_tensor(path: str | PathLike[str], *, max_pixels: int = MAX_PIXELS) -> Tensor:
    """Read a picture file as a tensor by the fastest road.

    Plain JPEG goes through ``simplejpeg`` when it is installed, everything else through :func:`read_image`; both
    decode with libjpeg-turbo, and their pixels differ by one grey level at most (none was seen).

    Args:
        path: the file.
        max_pixels: as in :func:`read_image`.

    Returns:
        (3, H, W) uint8 in RGB order; the memory is interleaved (channels last), which the resizers want.

    Raises:
        ImageError: as :func:`read_image`.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "dot.jpg"
        >>> Image.new("RGB", (4, 2), "white").save(file)
        >>> decode_tensor(file).shape
        torch.Size([3, 2, 4])
    """
    data = _read_bytes(path)
    header = jpeg.read_header(data)
    if header is not None:
        _check_pixels(str(path), header.width, header.height, max_pixels)
        pixels = jpeg.decode(data, header)
        if pixels is not None:
            return pixels
    return to_tensor(open_image(data, name=str(path), max_pixels=max_pixels))


def to_tensor(image: Image.Image) -> Tensor:
    """Copy an RGB Pillow image into a (3, H, W) uint8 tensor over interleaved memory.

    Example:
        >>> to_tensor(Image.new("RGB", (4, 2), (1, 2, 3)))[:, 0, 0].tolist()
        [1, 2, 3]
    """
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def image_size(path: str | PathLike[str], *, max_pixels: int = MAX_PIXELS) -> tuple[int, int]:
    """Read height and width of the stored pixels (before any Exif turn) from the header alone.

    Raises:
        ImageError: absent, empty, too large or not a picture; a truncated file may still have a good header.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "dot.png"
        >>> Image.new("L", (4, 2)).save(file)
        >>> image_size(file)
        (2, 4)
    """
    name = str(path)
    try:
        with Path(path).open("rb") as file, Image.open(file, formats=_formats()) as image:
            width, height = image.size
    except Exception:
        width, height = read_image(path, max_pixels=max_pixels).size  # raises with the right words
    _check_pixels(name, width, height, max_pixels)
    return height, width


def _read_bytes(path: str | PathLike[str]) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        raise _unreadable(str(path), "there is no such file") from None
    except (OSError, ValueError) as error:
        raise _unreadable(str(path), _one_line(error)) from error


def _check_pixels(name: str, width: int, height: int, max_pixels: int) -> None:
    if width * height > max_pixels:
        raise ImageError(
            f"{name} cannot be read: {width} x {height} = {width * height} pixels is over the limit of {max_pixels}. "
            "Shrink it, or raise max_pixels if you trust the file."
        )


def _unreadable(name: str, reason: str) -> ImageError:
    return ImageError(f"{name} cannot be read: {reason}. Replace the file or take it out of the table.")


def _one_line(error: BaseException) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(text).split()).rstrip(".")


@cache
def _formats() -> tuple[str, ...]:
    Image.init()
    return tuple(name for name in _FORMATS if name in Image.OPEN)
