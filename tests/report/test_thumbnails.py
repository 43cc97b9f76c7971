"""Thumbnails: small, within the budget, and never a reason to fail."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np
from PIL import Image

from proxemics.report.thumbnails import Thumbnails, square


def make(folder: Path, count: int, size: tuple[int, int] = (200, 120)) -> list[str]:
    draw = np.random.default_rng(0)
    paths = []
    for number in range(count):
        path = folder / f"{number}.png"
        Image.fromarray(draw.integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)).save(path)
        paths.append(str(path))
    return paths


def test_thumbnails_are_square_data_uris(tmp_path: Path) -> None:
    (path,) = make(tmp_path, 1)
    thumbnails = Thumbnails()
    thumbnails.prepare([(path, 64), (path, 64), (path, 32)])
    for side in (64, 32):
        uri = thumbnails.get(path, side)
        assert uri is not None
        head, _, body = uri.partition(",")
        assert head == "data:image/jpeg;base64"
        assert Image.open(io.BytesIO(base64.b64decode(body))).size == (side, side)


def test_unreadable_pictures_are_counted_once(tmp_path: Path) -> None:
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"\xff\xd8 not a picture")
    thumbnails = Thumbnails()
    thumbnails.prepare([(str(broken), 64), (str(broken), 32), (str(tmp_path / "absent.png"), 64)])
    assert thumbnails.missing == [str(broken), str(tmp_path / "absent.png")]
    assert thumbnails.get(str(broken), 64) is None


def test_the_budget_keeps_the_first_ones(tmp_path: Path) -> None:
    paths = make(tmp_path, 6)
    whole = Thumbnails()
    whole.prepare((path, 64) for path in paths)
    size = max(len(base64.b64decode((whole.get(path, 64) or ",").partition(",")[2])) for path in paths)
    few = Thumbnails(budget=3 * size)
    few.prepare((path, 64) for path in paths)
    assert [few.get(path, 64) is not None for path in paths[:3]] == [True] * 3
    assert few.left_out >= 2


def test_small_pictures_are_not_enlarged() -> None:
    assert square(Image.new("RGB", (20, 10)), 64).size == (20, 20)
    assert square(Image.new("RGB", (3, 900)), 64).size == (64, 64)
