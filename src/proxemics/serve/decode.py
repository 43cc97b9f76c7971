"""From an upload to what the model sees; limits are checked before a pixel is decoded."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from proxemics.core.errors import ImageError
from proxemics.data import jpeg
from proxemics.data.decode import open_image, to_tensor
from proxemics.data.preprocess import Preprocess
from proxemics.runtime.pictures import ADVICE
from proxemics.serve.errors import Refusal

R = TypeVar("R")
FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")
"""What an upload may be, in Pillow's names (MPO is how some phones write JPEG)."""


def check_picture(data: bytes, *, max_pixels: int) -> None:
    """Look at the format and the size in the header, and at the structure of the file.

    Args:
        data: the upload.
        max_pixels: width times height at most.

    Raises:
        Refusal: 400 for nothing, 413 for too many pixels, 415 for another format, 422 for a damaged file.
    """
    if not data:
        raise Refusal(400, "no_picture", "There is no picture in the request; send one as the field `picture`.")
    try:
        with Image.open(io.BytesIO(data), formats=_formats()) as image:
            width, height = image.size
            if width * height > max_pixels:
                raise _too_many(f"{width} x {height}", max_pixels)
            image.verify()
    except Refusal:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise _too_many("Its header", max_pixels) from None
    except UnidentifiedImageError:
        raise Refusal(
            415, "no_known_format", "This is no picture that can be read; send JPEG, PNG, WebP, GIF, BMP, TIFF or AVIF."
        ) from None
    except Exception as error:  # the parsers of damaged files raise whatever they trip over
        raise damaged(str(error) or type(error).__name__) from error


def _too_many(what: str, max_pixels: int) -> Refusal:
    return Refusal(
        413,
        "too_many_pixels",
        f"The picture has too many pixels ({what}); {max_pixels / 1e6:g} megapixels are allowed, shrink it.",
    )


def damaged(reason: str) -> Refusal:
    """Return the refusal of a file that cannot be decoded, with its reason in one line."""
    text = " ".join(reason.replace(ADVICE, "").split()).removeprefix("The picture cannot be read: ").rstrip(".")
    return Refusal(422, "damaged_picture", f"The picture cannot be read: {text[:200]}.")


def prepare(data: bytes, preprocess: Preprocess, *, max_pixels: int) -> NDArray[np.float32]:
    """Decode and prepare one picture on the roads that training and evaluation take.

    Args:
        data: the encoded picture; its Exif orientation is honoured.
        preprocess: of the model.
        max_pixels: as in :func:`check_picture`.

    Returns:
        (3, size, size) float32.

    Raises:
        Refusal: as :func:`check_picture`.

    Example:
        >>> buffer = io.BytesIO()
        >>> Image.new("RGB", (8, 6), "red").save(buffer, "PNG")
        >>> prepare(buffer.getvalue(), Preprocess(size=4, resize=4), max_pixels=100).shape
        (3, 4, 4)
    """
    check_picture(data, max_pixels=max_pixels)
    try:
        header = jpeg.read_header(data)
        pixels = jpeg.decode(data, header) if header is not None else None
        if pixels is None:
            pixels = to_tensor(open_image(data, name="The picture", max_pixels=max_pixels))
        return np.ascontiguousarray(preprocess.batch([pixels])[0].numpy())
    except (ImageError, MemoryError) as error:
        raise damaged(str(error) or "it needs too much memory") from error


class Decoder:
    """Runs work on pictures in a few threads, each piece within a time limit.

    Args:
        threads: pictures that are decoded at a time.
        timeout_s: after which a client is told that its picture takes too long. A thread cannot be stopped, so its
            place stays taken until the decoder returns; the limit on pixels bounds how long that is.
    """

    def __init__(self, threads: int, timeout_s: float) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="decode")
        self._timeout_s = timeout_s

    async def run(self, work: Callable[[], R]) -> R:
        """Run ``work`` in a thread.

        Raises:
            Refusal: 503, it takes too long.
        """
        future = asyncio.get_running_loop().run_in_executor(self._pool, work)
        try:
            return await asyncio.wait_for(future, self._timeout_s)
        except (TimeoutError, asyncio.TimeoutError):
            raise Refusal(
                503, "slow_picture", "The picture takes too long to decode; send a smaller one.", retry_after=5
            ) from None

    def close(self) -> None:
        """Let the threads end."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _formats() -> tuple[str, ...]:
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)
