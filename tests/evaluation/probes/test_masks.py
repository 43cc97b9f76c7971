"""Masks from a column, from alpha, from boxes, and estimated ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from proxemics.core.errors import ImageError
from proxemics.data.decode import MAX_PIXELS, read_image
from proxemics.data.preprocess import Preprocess
from proxemics.evaluation.probes.masks import estimate_masks, gate_stage, read_masks
from proxemics.models.embedder import Embedder

SIDE = 32
WHOLE = Preprocess(size=SIDE, resize=SIDE)


def picture(path: Path, width: int = SIDE, height: int = SIDE) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (width, height), (90, 120, 60)).save(path)
    return path


def mask(path: Path, box: tuple[int, int, int, int], width: int = SIDE, height: int = SIDE) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.new("L", (width, height))
    image.paste(255, box)
    image.save(path)
    return path


def test_relative_and_absolute_masks(tmp_path: Path) -> None:
    pictures = [picture(tmp_path / "pictures" / "train" / f"{n}.png") for n in range(3)]
    mask(tmp_path / "masks" / "0.png", (0, 0, 16, 8))
    other = mask(tmp_path / "elsewhere.png", (16, 16, 32, 32))
    rows = pd.DataFrame({"path": map(str, pictures), "mask": ["masks/0.png", str(other), ""]})
    found = read_masks(rows, WHOLE, max_pixels=MAX_PIXELS)
    assert found is not None
    assert found.source == "mask"
    assert found.rows.tolist() == [0, 1]
    assert found.values.mean((1, 2)).tolist() == [0.125, 0.25, 0.0]
    assert found.values[0, :8, :16].min() == 1
    assert "1 pictures without a usable mask" in found.sentence


def test_masks_go_through_the_crop_of_the_model(tmp_path: Path) -> None:
    wide = picture(tmp_path / "wide.png", 64, 32)
    mask(tmp_path / "m.png", (16, 0, 48, 32), 64, 32)
    rows = pd.DataFrame({"path": [str(wide)], "mask": ["m.png"]})
    found = read_masks(rows, WHOLE, max_pixels=MAX_PIXELS)
    assert found is not None
    assert found.values.min() > 0.99  # the centre crop lies inside the object,
    assert not len(found.rows)  # so that nothing of the background is left
    smaller = mask(tmp_path / "half.png", (8, 0, 16, 16), 32, 16)
    found = read_masks(rows.assign(mask=str(smaller)), WHOLE, max_pixels=MAX_PIXELS)
    assert found is not None
    assert float(found.values.mean()) == pytest.approx(0.5, abs=0.05)


def test_a_wrong_mask_names_itself(tmp_path: Path) -> None:
    rows = pd.DataFrame({"path": [str(picture(tmp_path / "a.png"))], "mask": ["none.png"]})
    with pytest.raises(ImageError, match=r"'none.png' of .*a.png was not found"):
        read_masks(rows, WHOLE, max_pixels=MAX_PIXELS)
    mask(tmp_path / "none.png", (0, 0, 4, 4), 32, 16)
    with pytest.raises(ImageError, match="is 32 x 16, its picture 32 x 32"):
        read_masks(rows, WHOLE, max_pixels=MAX_PIXELS)


def test_alpha_is_the_object(tmp_path: Path) -> None:
    pixels = np.full((SIDE, SIDE, 4), 200, dtype=np.uint8)
    pixels[..., 3] = 0
    pixels[4:12, 4:12, 3] = 255
    Image.fromarray(pixels, "RGBA").save(tmp_path / "cut.png")
    plain = picture(tmp_path / "plain.png")
    rows = pd.DataFrame({"path": [str(plain), str(tmp_path / "cut.png")]})
    found = read_masks(rows, WHOLE, max_pixels=MAX_PIXELS)
    assert found is not None
    assert (found.source, found.rows.tolist()) == ("alpha", [1])
    assert float(found.values[1].sum()) == 64
    assert read_masks(rows[:1], WHOLE, max_pixels=MAX_PIXELS) is None


@pytest.mark.parametrize("suffix", ["png", "webp"])
def test_alpha_is_turned_as_the_picture_is(tmp_path: Path, suffix: str) -> None:
    pixels = np.full((SIDE, 2 * SIDE, 4), 200, dtype=np.uint8)  # stored lying, shown standing
    pixels[..., 3] = 0
    pixels[2:10, 20:28, 3] = 255
    exif = Image.Exif()
    exif[0x0112] = 6
    file = tmp_path / f"cut.{suffix}"
    Image.fromarray(pixels, "RGBA").save(file, exif=exif, lossless=True)
    found = read_masks(pd.DataFrame({"path": [str(file)]}), WHOLE, max_pixels=MAX_PIXELS)
    assert found is not None
    seen = np.asarray(read_image(file).convert("L")) < 255  # on white
    np.testing.assert_array_equal(found.values[0].numpy() > 0.5, seen[SIDE // 2 : SIDE // 2 + SIDE])


def test_boxes_are_of_the_upright_picture(tmp_path: Path) -> None:
    image = Image.new("RGB", (64, 32))  # stored lying, shown standing
    exif = Image.Exif()
    exif[0x0112] = 6
    image.save(tmp_path / "turned.jpg", exif=exif)
    corners = {"box_left": ["0", ""], "box_top": ["24", ""], "box_right": ["16", ""], "box_bottom": ["40", ""]}
    rows = pd.DataFrame({"path": [str(tmp_path / "turned.jpg"), str(picture(tmp_path / "a.png"))], **corners})
    found = read_masks(rows, WHOLE, max_pixels=MAX_PIXELS)
    assert found is not None
    assert (found.source, found.rows.tolist()) == ("boxes", [0])
    assert found.values[0, 8:24, :16].min() == 1  # the crop begins at row 16
    assert float(found.values[0].sum()) == 256
    assert "A box holds some background" in found.sentence


@pytest.mark.parametrize("trunk", ["test_resnet", "test_vit"])
def test_what_is_unlike_the_border_is_estimated_to_be_the_object(trunk: str) -> None:
    embedder = Embedder(trunk, dim=0, weights="none", size=160 if trunk == "test_vit" else 64).eval()
    side = embedder.preprocess.size
    generator = torch.Generator().manual_seed(0)
    pictures = torch.randint(90, 110, (3, 3, side, side), dtype=torch.uint8, generator=generator)
    low, high = side * 3 // 8, side * 5 // 8
    pictures[:, 0, low:high, low:high] = 255
    found = estimate_masks(embedder, pictures, name="a test trunk")
    assert found.source == "automatic"
    assert found.values.shape == (3, side, side)
    inside = found.values[:, low:high, low:high].mean()
    edge = torch.cat([found.values[:, 0], found.values[:, -1]]).mean()
    assert inside > edge + 0.2
    assert "No masks were given" in found.sentence
    assert gate_stage(embedder, pictures[:1]) in found.stage
