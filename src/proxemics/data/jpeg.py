"""The fast road for plain JPEG files: a header walk in Python, then libjpeg-turbo through ``simplejpeg``.

Only files that both decoders read alike take this road: 8-bit, grey or YCbCr, one Exif block at most. Everything else
(CMYK, RGB-coded, arithmetic coding, odd Exif) is left to Pillow, and so is every file that ``simplejpeg`` objects to,
so that Pillow alone decides what counts as broken.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor

_FRAMES = {0xC0, 0xC1, 0xC2}  # baseline, extended sequential, progressive; all Huffman coded
_OTHER_FRAMES = {0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF}
_BARE = {0x00, 0x01, *range(0xD0, 0xDA), 0xFF}  # markers without a length, out of place in a header
_ORIENTATION_TAG, _SHORT = 0x0112, 3


class JpegHeader(NamedTuple):
    """What the header of a plain JPEG says; ``height`` and ``width`` are those of the stored pixels."""

    height: int
    width: int
    orientation: int


def read_header(data: bytes) -> JpegHeader | None:
    """Read size and Exif orientation of a plain JPEG without decoding it.

    Args:
        data: the bytes of the file.

    Returns:
        The header, or None when this is not a JPEG that the fast road may take.

    Example:
        >>> read_header(b"not a jpeg") is None
        True
    """
    if data[:2] != b"\xff\xd8":
        return None
    try:
        return _walk(data)
    except (struct.error, IndexError):
        return None


def _walk(data: bytes) -> JpegHeader | None:
    size: tuple[int, int] | None = None
    turn: int | None = None
    xmp_turn = False
    for marker, segment in _segments(data):
        if marker in _FRAMES:
            size = _frame_size(segment)
        elif marker == 0xE1 and segment.startswith(b"Exif\0\0"):
            if turn is not None:  # Pillow joins several blocks
                return None
            turn = _exif_orientation(segment[6:])
            if turn is None:
                return None
        elif marker == 0xE1:
            xmp_turn = xmp_turn or b"tiff:Orientation" in segment
        elif marker in _OTHER_FRAMES or (marker == 0xEE and not _is_ycbcr(segment)):
            return None
    if size is None or (xmp_turn and not turn):  # Pillow also looks for the orientation in XMP
        return None
    return JpegHeader(*size, turn or 1)


def _segments(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield marker and payload of each segment up to the first scan; stop by IndexError where there is no marker."""
    at = 2
    while True:
        marker = data[at + 1]
        (length,) = struct.unpack_from(">H", data, at + 2)
        if data[at] != 0xFF or length < 2 or marker in _BARE:
            raise IndexError(at)
        if marker == 0xDA:
            return
        yield marker, data[at + 4 : at + 2 + length]
        at += 2 + length


def _frame_size(segment: bytes) -> tuple[int, int] | None:
    precision, height, width, components = struct.unpack_from(">BHHB", segment)
    return (height, width) if precision == 8 and height and width and components in (1, 3) else None


def _is_ycbcr(segment: bytes) -> bool:
    return not segment.startswith(b"Adobe") or (len(segment) >= 12 and segment[11] == 1)


def _exif_orientation(tiff: bytes) -> int | None:
    """Return 0 when the tag is absent and None when the block is one that Pillow should judge."""
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(tiff[:4])
    if order is None:
        return None
    (directory,) = struct.unpack_from(order + "I", tiff, 4)
    (entries,) = struct.unpack_from(order + "H", tiff, directory)
    for entry in range(entries):
        tag, kind, count, value = struct.unpack_from(order + "HHIH", tiff, directory + 2 + 12 * entry)
        if tag == _ORIENTATION_TAG:
            return value if kind == _SHORT and count == 1 else None
    return 0


def decode(data: bytes, header: JpegHeader) -> Tensor | None:
    """Decode a plain JPEG and turn it upright.

    Args:
        data: the bytes of the file.
        header: what :func:`read_header` returned for it.

    Returns:
        (3, H, W) uint8 over interleaved memory, or None when ``simplejpeg`` is absent or finds anything odd.

    Example:
        >>> import io
        >>> from PIL import Image
        >>> file = io.BytesIO(); Image.new("RGB", (8, 6), "red").save(file, "JPEG")
        >>> header = read_header(file.getvalue()); header
        JpegHeader(height=6, width=8, orientation=1)
        >>> picture = decode(file.getvalue(), header)
        >>> picture is None or picture.shape == (3, 6, 8)
        True
    """
    library = _simplejpeg()
    if library is None:
        return None
    try:
        pixels = library.decode_jpeg(data, colorspace="RGB", strict=True)
    except (ValueError, RuntimeError):
        return None
    return upright(torch.from_numpy(pixels), header.orientation).permute(2, 0, 1)


def upright(pixels: Tensor, orientation: int) -> Tensor:
    """Undo an Exif orientation.

    Args:
        pixels: (H, W, 3) stored pixels.
        orientation: the Exif value; anything outside 2..8 leaves the picture alone.

    Returns:
        (H, W, 3) or (W, H, 3), contiguous.

    Example:
        >>> upright(torch.arange(6).reshape(2, 3, 1), 6)[..., 0].tolist()
        [[3, 0], [4, 1], [5, 2]]
    """
    flips: dict[int, tuple[int, ...]] = {2: (1,), 3: (0, 1), 4: (0,), 5: (), 6: (1,), 7: (0, 1), 8: (0,)}
    if orientation not in flips:
        return pixels
    if orientation >= 5:
        pixels = pixels.transpose(0, 1)
    return pixels.contiguous().flip(flips[orientation])


@cache
def _simplejpeg() -> Any | None:
    try:
        return import_module("simplejpeg")
    except ImportError:
        return None
