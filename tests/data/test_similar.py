from __future__ import annotations

import io
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from proxemics.data import similar
from proxemics.data.decode import read_image
from proxemics.data.facts import inspect_file
from proxemics.data.similar import similar_pictures
from proxemics.data.sources import load_table


def by_hand(thumbs: np.ndarray, least: float) -> list[list[int]]:
    """All pairs, in float64, and then the closure."""
    rows = thumbs.reshape(len(thumbs), -1).astype(np.float64)
    rows -= rows.mean(axis=1, keepdims=True)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    near = rows @ rows.T >= least
    groups, seen = [], set()
    for start in range(len(rows)):
        if start in seen:
            continue
        group, todo = {start}, [start]
        while todo:
            new = set(np.flatnonzero(near[todo.pop()]).tolist()) - group
            group |= new
            todo += new
        seen |= group
        if len(group) > 1:
            groups.append(sorted(group))
    return groups


def soft(generator: np.random.Generator, number: int) -> np.ndarray:
    small = generator.integers(0, 256, (number, 3, 4, 3), dtype=np.uint8)
    return np.stack([np.asarray(Image.fromarray(picture).resize((16, 16), 3)) for picture in small])


@pytest.mark.parametrize("least", [0.95, 0.99])
def test_no_pair_is_missed(least: float) -> None:
    """The search equals all-against-all, with noise that puts many pairs on both sides of the threshold."""
    generator = np.random.default_rng(0)
    originals = soft(generator, 300)
    noise = generator.normal(0, generator.uniform(0, 14, (900, 1, 1, 1)), (900, 16, 16, 3))
    copies = np.clip(originals[generator.integers(0, 300, 900)] + noise, 0, 255).astype(np.uint8)
    thumbs = generator.permutation(np.concatenate([originals, copies]))
    expected = by_hand(thumbs, least)
    assert len(expected) > 100
    assert similar_pictures(thumbs, min_correlation=least) == expected


def test_pairs_across_blocks_are_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain of pictures turning from one gradient to another, each 0.13 from the next, where 0.1414 is allowed."""
    monkeypatch.setattr(similar, "_ROWS", 1)
    across = np.linspace(-1, 1, 16)[None, :] * np.ones((16, 1))
    angles = np.arange(12)[:, None, None] * 0.13
    grey = 128 + 80 * (np.cos(angles) * across + np.sin(angles) * across.T)
    thumbs = np.repeat(np.round(grey)[..., None], 3, axis=3).astype(np.uint8)
    assert similar_pictures(thumbs) == [list(range(12))]


def test_brightness_and_contrast_do_not_matter_and_colour_does() -> None:
    picture = soft(np.random.default_rng(1), 1)[0]
    darker = (picture * 0.6 + 20).astype(np.uint8)
    other_colour = picture[:, :, ::-1]
    blank = np.full_like(picture, 90)
    assert similar_pictures(np.stack([blank, picture, blank, other_colour, darker])) == [[1, 4]]
    assert similar_pictures(np.stack([blank, blank])) == []
    assert similar_pictures(np.zeros((0, 16, 16, 3), dtype=np.uint8)) == []
    assert similar_pictures(picture[None]) == []


def test_a_crowd_of_copies_costs_little_memory() -> None:
    """Four thousand scans of nearly the same page are eight million pairs; they must not all be kept."""
    generator = np.random.default_rng(2)
    page = 200 + np.linspace(-30, 30, 16)[None, :, None, None] * np.ones((4_000, 16, 16, 3))
    thumbs = np.clip(page + generator.normal(0, 1, page.shape), 0, 255).astype(np.uint8)
    tracemalloc.start()
    groups = similar_pictures(thumbs)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert groups == [list(range(4_000))]
    assert peak < 150e6


@pytest.mark.data
def test_re_encoded_real_pictures_are_found(shared_data: Path, tmp_path: Path) -> None:
    """user-pains 71: quality 30, half size, other formats; each must be found in at least 58 of 60 pictures."""
    table = load_table(shared_data / "index.csv").sample(60, random_state=0)
    originals = [inspect_file(path).thumb for path in table["path"]]
    ways = {
        "quality 30": lambda image: (image, "JPEG", {"quality": 30}),
        "half": lambda image: (image.resize((image.width // 2, image.height // 2), 3), "JPEG", {"quality": 85}),
        "larger": lambda image: (image.resize((image.width * 3 // 2, image.height * 3 // 2), 3), "PNG", {}),
        "webp": lambda image: (image, "WEBP", {"quality": 50}),
    }
    for name, way in ways.items():
        copies = []
        for path in table["path"]:
            image, kind, options = way(read_image(path))
            buffer = io.BytesIO()
            image.save(buffer, kind, **options)
            (tmp_path / "copy.bin").write_bytes(buffer.getvalue())
            copies.append(inspect_file(str(tmp_path / "copy.bin")).thumb)
        groups = similar_pictures(np.stack(originals + copies))
        found = [row for group in groups for row in group if row % 60 + 60 in group and row % 60 in group]
        assert len(found) >= 2 * 58, name
        strangers = [group for group in groups if len({row % 60 for row in group}) > 1]
        assert len(strangers) <= 2, name
