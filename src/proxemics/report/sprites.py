"""Thumbnails of thousands of pictures: sheets of equal tiles, which a page decodes only when one is looked at.

A sheet is small (about a thousand pixels a side), so that looking at one picture decodes a few hundred, and no browser
comes near the size at which it refuses a picture (some do from 8,192 pixels on). The quality is the best of a few that
fits the budget.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from PIL import Image, features

from proxemics.core.errors import ProxemicsError
from proxemics.data import jpeg
from proxemics.report.thumbnails import square
from proxemics.runtime.modes import to_rgb
from proxemics.runtime.pictures import MAX_PIXELS, check_pixels, known_formats, open_image, read_bytes

SHEET_SIDE = 1024  # at most, pixels
_SIDES = ((2_000, 64), (8_000, 56), (20_000, 48))  # tiles for at most so many pictures
_SMALLEST_SIDE = 40
_QUALITIES = (60, 50, 40, 30, 20)


@dataclass(frozen=True)
class Sprites:
    """Tiles in sheets; the tile of picture i is the (i mod per_sheet)-th of sheet i // per_sheet, row by row.

    Attributes:
        side: of a tile, pixels.
        columns: tiles in a row of a sheet.
        per_sheet: tiles in a sheet.
        kind: ``webp`` or ``jpeg``.
        sheets: base64 text of each encoded sheet; empty where it was left out.
        missing: rows whose picture could not be read; their tiles are empty.
        left_out: pictures without a tile because of the budget.
        bytes: of all encoded sheets.
    """

    side: int
    columns: int
    per_sheet: int
    kind: str
    sheets: tuple[str, ...]
    missing: tuple[int, ...]
    left_out: int
    bytes: int


def tile_side(count: int) -> int:
    """Return the side of the tiles of so many pictures.

    Example:
        >>> tile_side(100), tile_side(20_000)
        (64, 48)
    """
    return next((side for most, side in _SIDES if count <= most), _SMALLEST_SIDE)


def make_sprites(paths: Sequence[str], *, budget: int, workers: int = 4) -> Sprites:
    """Read pictures and put them into sheets.

    Args:
        paths: N files; those that cannot be read get an empty tile.
        budget: largest sum of the encoded sheets, bytes.
        workers: threads that decode.

    Example:
        >>> sprites = make_sprites(["/no/such/file.png"], budget=1000)
        >>> sprites.missing, len(sprites.sheets)
        ((0,), 1)
    """
    side = tile_side(len(paths))
    columns = max(1, min(SHEET_SIDE // side, len(paths)))
    per_sheet = columns * (SHEET_SIDE // side)
    kind = "webp" if features.check("webp") else "jpeg"
    starts = range(0, len(paths), per_sheet)
    missing: list[int] = []
    pages: list[Image.Image] = []
    with ThreadPoolExecutor(workers) as pool:
        for start in starts:
            part = paths[start : start + per_sheet]
            tiles = list(pool.map(lambda path: read_tile(path, side), part))
            missing += [start + place for place, tile in enumerate(tiles) if tile is None]
            pages.append(_sheet(tiles, side, columns))
        quality = _choose_quality(pages, kind, budget)
        encoded = list(pool.map(lambda page: _encode(page, kind, quality), pages))
    sheets, used, left_out = [], 0, 0
    for start, data in zip(starts, encoded, strict=True):
        if used + len(data) > budget:
            sheets.append("")
            left_out += min(per_sheet, len(paths) - start)
        else:
            sheets.append(base64.b64encode(data).decode("ascii"))
            used += len(data)
    return Sprites(side, columns, per_sheet, kind, tuple(sheets), tuple(missing), left_out, used)


def read_tile(path: str, side: int) -> Image.Image | None:
    """Read a picture as an upright RGB square of at most ``side`` pixels; None when it cannot be read.

    A large plain JPEG is decoded at an eighth, a quarter or a half of its size, which is many times faster.

    Args:
        path: the file.
        side: in pixels.
    """
    try:
        data = read_bytes(path)
        header = jpeg.read_header(data)
        if header is None:
            return square(open_image(data, name=path), side)
        check_pixels(path, header.width, header.height, MAX_PIXELS)
        with Image.open(io.BytesIO(data), formats=known_formats()) as image:
            image.draft(None, (2 * side, 2 * side))  # the next larger size that the decoder has
            return square(to_rgb(image), side)
    except (ProxemicsError, OSError, ValueError, SyntaxError):
        return None


def _sheet(tiles: Sequence[Image.Image | None], side: int, columns: int) -> Image.Image:
    rows = -(-len(tiles) // columns)
    page = Image.new("RGB", (columns * side, rows * side), (232, 232, 232))
    for place, tile in enumerate(tiles):
        if tile is not None:
            left, top = place % columns * side, place // columns * side
            page.paste(tile, (left + (side - tile.width) // 2, top + (side - tile.height) // 2))
    return page


def _choose_quality(pages: Sequence[Image.Image], kind: str, budget: int) -> int:
    """Return the best quality at which all sheets fit, judged by a few of them."""
    sample = pages[:: max(1, len(pages) // 4)]
    area = sum(page.width * page.height for page in pages)
    seen = sum(page.width * page.height for page in sample)
    for quality in _QUALITIES:
        size = sum(len(_encode(page, kind, quality)) for page in sample)
        if seen and size * area / seen <= 0.97 * budget:
            return quality
    return _QUALITIES[-1]


def _encode(page: Image.Image, kind: str, quality: int) -> bytes:
    buffer = io.BytesIO()
    page.save(buffer, kind.upper(), quality=quality)
    return buffer.getvalue()
