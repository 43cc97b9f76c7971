"""From a file or bytes to upright 8-bit RGB, with an error that names the file.

Two roads lead to the same pixels: :func:`read_image` (Pillow, the reference, which lives in
:mod:`proxemics.runtime.pictures` because it needs no torch) and :func:`decode_tensor` (libjpeg-turbo for plain JPEG,
Pillow for the rest). What each pixel mode becomes is written at the top of :mod:`proxemics.runtime.modes`. The size in
the header is compared with ``max_pixels`` before any pixel is decoded.
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from proxemics.data import jpeg
from proxemics.runtime.pictures import MAX_PIXELS, check_pixels, known_formats, open_image, read_bytes, read_image

__all__ = ["MAX_PIXELS", "decode_tensor", "image_size", "open_image", "read_image", "to_tensor"]


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
    data = read_bytes(path)
    header = jpeg.read_header(data)
    if header is not None:
        check_pixels(str(path), header.width, header.height, max_pixels)
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
        with Path(path).open("rb") as file, Image.open(file, formats=known_formats()) as image:
            width, height = image.size
    except Exception:
        width, height = read_image(path, max_pixels=max_pixels).size  # raises with the right words
    check_pixels(name, width, height, max_pixels)
    return height, width
