"""A small bundle with an ONNX file, and pictures of every awkward kind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from proxemics.data.preprocess import Preprocess
from proxemics.export.onnx import export_onnx
from proxemics.models import Embedder, save_bundle
from proxemics.runtime.layout import ONNX


@pytest.fixture(scope="session")
def embedder() -> Embedder:
    preprocess = Preprocess(
        size=48, resize=56, mean=(0.5, 0.4, 0.3), std=(0.2, 0.25, 0.3), interpolation="bicubic"
    )  # fmt: skip
    return Embedder("test_resnet", dim=8, weights="none", preprocess=preprocess, seed=3).eval()


@pytest.fixture(scope="session")
def bundle(embedder: Embedder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tests that change it copy it first."""
    folder = tmp_path_factory.mktemp("runtime") / "bundle"
    return save_bundle(
        embedder, folder, labels=["owl", "auk"], more=lambda new: export_onnx(embedder, new / ONNX["float32"]) and None
    )


def photo(width: int, height: int, seed: int = 0) -> Image.Image:
    """Smooth blobs with some noise: compresses like a photograph."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC), dtype=np.int16)
    return Image.fromarray((smooth + rng.integers(-6, 7, smooth.shape)).clip(0, 255).astype(np.uint8))


def write_odd_pictures(folder: Path, pictures: list[Image.Image]) -> list[Path]:
    """Write pictures in turn as every kind of file that phones, scanners and designers make.

    Args:
        folder: where to.
        pictures: RGB.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for number, picture in enumerate(pictures):
        kind = KINDS[number % len(KINDS)]
        path = folder / f"{number:03d}{'.' + kind.partition(' ')[0]}"
        _save(picture, path, kind, number)
        found.append(path)
    return found


KINDS = (
    "jpg", "jpg turned", "jpg cmyk", "png sixteen", "png alpha", "png palette", "gif animated", "png grey", "webp",
    "tif cmyk", "tif sixteen", "png turned", "bmp", "png palette alpha", "jpg grey", "jpg progressive",
    "png grey alpha",
)  # fmt: skip


def _save(picture: Image.Image, path: Path, kind: str, number: int) -> None:
    width, height = picture.size
    if "turned" in kind:
        exif = Image.Exif()
        exif[0x0112] = 2 + number % 7
        picture.save(path, exif=exif)
    elif "cmyk" in kind:
        picture.convert("CMYK").save(path)
    elif "sixteen" in kind:
        grey = np.asarray(picture.convert("L"), dtype=np.uint16) * 257
        Image.fromarray(grey + np.arange(width, dtype=np.uint16) % 200).save(path)
    elif kind == "png alpha":
        mask = Image.linear_gradient("L").resize((width, height))
        rgba = picture.convert("RGBA")
        rgba.putalpha(mask)
        rgba.save(path)
    elif kind == "png grey alpha":
        grey = picture.convert("L")
        Image.merge("LA", (grey, Image.linear_gradient("L").resize((width, height)))).save(path)
    elif kind == "png palette alpha":
        picture.quantize(32).save(path, transparency=3)
    elif kind == "png palette":
        picture.quantize(32).save(path)
    elif "animated" in kind:
        picture.save(path, save_all=True, append_images=[picture.transpose(Image.Transpose.ROTATE_180)], duration=50)
    elif "grey" in kind:
        picture.convert("L").save(path)
    else:
        picture.save(path, **({"progressive": True} if "progressive" in kind else {}))


@pytest.fixture(scope="session")
def write_odd() -> Callable[[Path, list[Image.Image]], list[Path]]:
    """The function, for tests with pictures of their own."""
    return write_odd_pictures


@pytest.fixture(scope="session")
def odd_pictures(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    sizes = [(90, 70), (60, 120), (301, 57), (48, 48), (800, 40)]
    pictures = [photo(*sizes[number % len(sizes)], seed=number) for number in range(2 * len(KINDS))]
    return write_odd_pictures(tmp_path_factory.mktemp("odd"), pictures)
