"""Thumbnails in sheets: each tile is its picture's, sheets stay small and inside the budget. User-pains 95."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from proxemics.report.sprites import SHEET_SIDE, Sprites, make_sprites, read_tile, tile_side


def colour(number: int) -> tuple[int, int, int]:
    return (40 + 67 * number % 200, 30 + 131 * number % 220, 20 + 41 * number % 230)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """300 pictures of one colour each, of several formats and shapes."""
    folder = tmp_path_factory.mktemp("plain")
    paths = []
    for number in range(300):
        path = folder / f"{number}.{('png', 'jpg', 'webp')[number % 3]}"
        Image.new("RGB", (90 + number % 7, 60 + number % 5), colour(number)).save(path)
        paths.append(str(path))
    return paths


def sheet(sprites: Sprites, number: int) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(sprites.sheets[number]))).convert("RGB")


def tile(sprites: Sprites, row: int) -> Image.Image:
    at = row % sprites.per_sheet
    left, top = at % sprites.columns * sprites.side, at // sprites.columns * sprites.side
    return sheet(sprites, row // sprites.per_sheet).crop((left, top, left + sprites.side, top + sprites.side))


def test_every_tile_shows_its_picture(plain: list[str]) -> None:
    sprites = make_sprites(plain, budget=10_000_000)
    assert len(sprites.sheets) == 2
    assert sprites.missing == ()
    for row in (0, 1, 15, 16, 255, 256, 299):
        middle = tile(sprites, row).getpixel((sprites.side // 2, sprites.side // 2))
        assert np.allclose(middle, colour(row), atol=12), row


def test_sheets_are_far_below_what_browsers_refuse(plain: list[str]) -> None:
    sprites = make_sprites(plain, budget=10_000_000)
    for number in range(len(sprites.sheets)):
        assert max(sheet(sprites, number).size) <= SHEET_SIDE <= 4096
    assert sprites.bytes == sum(len(base64.b64decode(text)) for text in sprites.sheets)


def test_what_cannot_be_read_has_an_empty_tile(plain: list[str], tmp_path: Path) -> None:
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(Path(plain[1]).read_bytes()[:200])
    sprites = make_sprites([plain[0], str(broken), str(tmp_path / "none.png"), plain[2]], budget=1_000_000)
    assert sprites.missing == (1, 2)
    assert tile(sprites, 1).getpixel((30, 30)) == pytest.approx((232, 232, 232), abs=4)
    assert np.allclose(tile(sprites, 3).getpixel((32, 32)), colour(2), atol=12)


def test_a_small_budget_costs_quality_and_then_sheets(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    paths = []
    for number in range(260):
        path = tmp_path / f"{number}.png"
        Image.fromarray(draw.integers(0, 256, (9, 9, 3), dtype=np.uint8)).resize((64, 64)).save(path)
        paths.append(str(path))
    large = make_sprites(paths, budget=100_000_000)
    less = make_sprites(paths, budget=int(0.9 * large.bytes))
    assert less.bytes < large.bytes
    assert less.left_out == 0
    least = make_sprites(paths, budget=1000)
    assert least.left_out == 260
    assert least.bytes == 0
    assert least.sheets == ("", "")


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_large_photographs_are_upright(tmp_path: Path, orientation: int) -> None:
    """They are decoded at reduced size; the Exif orientation still counts."""
    pixels = np.zeros((1200, 1600, 3), np.uint8)
    pixels[:600, :800] = (220, 30, 30)
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(pixels).save(tmp_path / "photo.jpg", exif=exif.tobytes())
    found = read_tile(str(tmp_path / "photo.jpg"), 64)
    assert found is not None
    assert found.size == (64, 64)
    red = np.asarray(found)[..., 0].astype(int) - np.asarray(found)[..., 2]
    corners = {1: (14, 10), 3: (48, 52), 6: (14, 52), 8: (48, 10)}
    corner = {name: red[y, x] for name, (y, x) in corners.items()}
    assert max(corner, key=lambda name: corner[name]) == orientation


@pytest.mark.parametrize("mode", ["CMYK", "L", "RGBA", "I;16", "P"])
def test_any_mode_can_be_read(tmp_path: Path, mode: str) -> None:
    path = tmp_path / ("a.jpg" if mode == "CMYK" else "a.png")
    image = Image.new("RGB", (50, 40), "white")
    image = Image.fromarray(np.full((40, 50), 60_000, np.uint16)) if mode == "I;16" else image.convert(mode)
    image.save(path)
    found = read_tile(str(path), 40)
    assert found is not None
    assert found.mode == "RGB"


def test_more_pictures_have_smaller_tiles() -> None:
    sides = [tile_side(count) for count in (1, 2_000, 8_000, 20_000, 100_000)]
    assert sides == sorted(sides, reverse=True)
    assert make_sprites([], budget=10).sheets == ()
