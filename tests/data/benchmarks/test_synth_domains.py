"""The synthetic domains: what each effect does, that it does it twice the same, and the written set."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from proxemics.core.errors import DataError
from proxemics.data.benchmarks.synth_domains import write_synth_domains
from proxemics.data.benchmarks.synth_effects import EFFECTS, fog, grey_blur, negative, oil, sketch, spectral
from proxemics.data.sources import load_table


def picture(height: int = 24, width: int = 33) -> np.ndarray:
    """Smooth colours with a hard edge and some fine structure; whole numbers only."""
    y, x = np.mgrid[:height, :width]
    red, green, blue = (x * 7) % 256, (y * 9) % 256, np.where(x > width // 2, 220, 30) + (x * y) % 17
    return np.stack([red, green, blue], axis=2).astype(np.uint8)


@pytest.mark.parametrize("name", EFFECTS)
@pytest.mark.parametrize("shape", [(24, 33), (1, 1), (3, 2)])
def test_effects_keep_shape_and_input_and_repeat(name: str, shape: tuple[int, int]) -> None:
    pixels = picture(*shape)
    before = pixels.copy()
    result = EFFECTS[name](pixels)
    assert result.shape == pixels.shape
    assert result.dtype == np.uint8
    assert np.array_equal(pixels, before)
    assert np.array_equal(result, EFFECTS[name](pixels))
    assert np.array_equal(result, EFFECTS[name](np.asfortranarray(pixels)))
    if shape == (24, 33):
        assert not np.array_equal(result, pixels)


def test_effects_in_whole_numbers_are_frozen() -> None:
    digests = {
        name: hashlib.sha256(EFFECTS[name](picture()).tobytes()).hexdigest()[:12] for name in ("oil", "negative")
    }
    assert digests == {"oil": "0153cc1fe822", "negative": "7192a9296d65"}


def test_sketch_is_white_where_nothing_changes() -> None:
    pixels = np.full((9, 9, 3), 90, np.uint8)
    assert (sketch(pixels) == 255).all()
    pixels[:, 5:] = 200
    lines = sketch(pixels)
    assert (lines[:, 4:6] == 0).all()  # the step of 110 gives a Sobel magnitude of 440
    assert (lines[:, :4] == 255).all()
    assert (lines[:, 6:] == 255).all()


def test_cartoon_has_few_colours_and_keeps_edges() -> None:
    pixels = np.full((20, 20, 3), 60, np.uint8)
    pixels[:, 10:] = 200
    pixels = (pixels + np.random.default_rng(0).integers(-6, 7, pixels.shape)).astype(np.uint8)
    result = EFFECTS["cartoon"](pixels)
    assert set(np.unique(result)) <= set(range(16, 256, 32))
    assert np.array_equal(np.unique(result[:, :9]), [48])
    assert np.array_equal(np.unique(result[:, 11:]), [208])


def test_oil_against_a_slow_mode_filter() -> None:
    pixels = picture(13, 11)
    level = (pixels.astype(int) @ np.array([299, 587, 114])) // 32_000
    result = oil(pixels)
    for y in range(13):
        for x in range(11):
            window = (slice(max(0, y - 4), y + 5), slice(max(0, x - 4), x + 5))
            counts = np.bincount(level[window].ravel(), minlength=8)
            inside = pixels[window][level[window] == counts.argmax()].astype(int)
            assert np.array_equal(result[y, x], (2 * inside.sum(axis=0) + len(inside)) // (2 * len(inside)))


def test_negative_twice_is_the_picture() -> None:
    assert np.array_equal(negative(negative(picture())), picture())


def test_grey_blur_is_grey_and_keeps_a_flat_picture() -> None:
    result = grey_blur(picture())
    assert np.ptp(result, axis=2).max() == 0
    flat = np.full((9, 7, 3), 77, np.uint8)
    assert np.array_equal(grey_blur(flat), flat)
    dot = np.zeros((41, 41, 3), np.uint8)
    dot[20, 20] = 255
    grid = np.arange(-6, 7)
    weights = np.exp(-(grid**2) / 8)
    weights /= weights.sum()
    assert np.abs(grey_blur(dot)[14:27, 14:27, 0] - 255 * np.outer(weights, weights)).max() <= 0.51


def test_fog_is_brighter_and_flatter() -> None:
    dark = np.zeros((30, 30, 3), np.uint8)
    veil = fog(dark) / 235
    assert 0.39 < veil.min() < veil.max() < 0.81
    assert fog(picture()).std() < 0.7 * picture().std()


def test_spectral_keeps_phase_mean_and_spread() -> None:
    pixels = np.random.default_rng(0).integers(90, 160, (32, 32, 3)).astype(np.uint8)
    result = spectral(pixels)
    before, after = (np.fft.fft2(p.astype(float), axes=(0, 1)) for p in (pixels, result))
    turn = np.angle(after * before.conj())[1:, 1:]
    strong = np.abs(after[1:, 1:]) > np.median(np.abs(after))
    assert np.abs(turn[strong]).max() < 0.35  # rounding and clipping turn weak waves
    assert np.abs(result.mean(axis=(0, 1)) - pixels.mean(axis=(0, 1))).max() < 2
    other = spectral(np.random.default_rng(1).integers(90, 160, (32, 32, 3)).astype(np.uint8))
    amplitude = [np.abs(np.fft.fft2(p.astype(float), axes=(0, 1)))[1:, 1:].ravel() for p in (result, other)]
    assert np.corrcoef(*amplitude)[0, 1] > 0.95  # two pictures, one texture


def photos(folder: Path) -> pd.DataFrame:
    rows = []
    for label, split in (("001.A b", "train"), ("002.C/d", "test")):
        for part in ("one", "two"):
            path = folder / part / f"{label[:3]}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture(300, 280) if part == "one" else picture(40, 50)).save(path)
            rows.append((str(path), label, "photo", split))
    return pd.DataFrame(rows, columns=["path", "label", "domain", "split"])


def test_the_written_set_is_complete_and_repeatable(tmp_path: Path) -> None:
    frame = photos(tmp_path / "in")
    domains = ("negative", "fog")
    seen = []
    out = write_synth_domains(
        frame, tmp_path / "out", name="cub-synthdomains", domains=domains, progress=lambda *now: seen.append(now)
    )
    table = load_table(out)
    assert seen == [(1, 2), (2, 2)]
    assert table.groupby(["domain", "split"]).size().to_dict() == {
        ("fog", "test"): 2,
        ("negative", "test"): 2,
        ("photo", "test"): 2,
        ("photo", "train"): 2,
    }
    assert set(table[table["split"] == "train"]["label"]) == {"001.A b"}
    large = tmp_path / "out/negative/002.C_d/one-002.jpg"
    with Image.open(large) as opened:
        assert opened.size == (256, 274)
    bytes_before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*.jpg")}
    assert len(bytes_before) == 4
    large.unlink()
    write_synth_domains(frame, tmp_path / "out", name="cub-synthdomains", domains=domains)
    assert {path: path.read_bytes() for path in (tmp_path / "out").rglob("*.jpg")} == bytes_before


def test_wrong_use_is_told(tmp_path: Path) -> None:
    frame = photos(tmp_path / "in")
    with pytest.raises(DataError, match=r"Unknown data set 'CUB Ext.'"):
        write_synth_domains(frame, tmp_path / "out", name="CUB Ext.")
    with pytest.raises(DataError, match="Did you mean 'sketch'"):
        write_synth_domains(frame, tmp_path / "out", name="cub-synthdomains", domains=("sketches",))
    with pytest.raises(DataError, match="no test rows"):
        write_synth_domains(frame.assign(split="train"), tmp_path / "out", name="cub-synthdomains")
    Path(frame["path"][3]).write_text("not a picture")
    with pytest.raises(DataError, match=r"Cannot read .*002.png"):
        write_synth_domains(frame, tmp_path / "out", name="cub-synthdomains", domains=("fog",))
