"""Backgrounds: named regions of photographs that scikit-image ships inside its wheel, all CC0 or public domain."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from PIL import Image

from proxemics.core.errors import DataError
from proxemics.data.confounded.glyphs import package_folder


@dataclass(frozen=True)
class Photograph:
    """A file inside ``skimage/data`` and why it may be used.

    Attributes:
        file: name in the folder.
        licence: ``CC0`` or ``public domain``, as scikit-image's documentation of the picture states.
        credit: who made it.
    """

    file: str
    licence: str
    credit: str


PHOTOGRAPHS: dict[str, Photograph] = {
    "astronaut": Photograph("astronaut.png", "public domain", "NASA"),
    "brick": Photograph("brick.png", "CC0", "CC0Textures"),
    "camera": Photograph("camera.png", "CC0", "Lav Varshney"),
    "cat": Photograph("chelsea.png", "CC0", "Stefan van der Walt"),
    "coffee": Photograph("coffee.png", "CC0", "Rachel Michetti"),
    "grass": Photograph("grass.png", "CC0", "linked from CC0Textures by scikit-image"),
    "gravel": Photograph("gravel.png", "CC0", "CC0Textures"),
    "hubble": Photograph("hubble_deep_field.jpg", "public domain", "NASA"),
    "retina": Photograph("retina.jpg", "CC0", "Mikael Häggström"),
    "rocket": Photograph("rocket.jpg", "public domain", "SpaceX"),
}


@dataclass(frozen=True)
class Source:
    """A background source: the crops of one region of one photograph, tinted when the photograph is grey.

    Attributes:
        photograph: key of ``PHOTOGRAPHS``.
        box: left, top, right, bottom in pixels of the photograph.
        tint: factors for red, green and blue.
    """

    photograph: str
    box: tuple[int, int, int, int]
    tint: tuple[float, float, float] = (1.0, 1.0, 1.0)


_WHOLE = (0, 0, 512, 512)
SOURCES: dict[str, Source] = {
    "flag": Source("astronaut", (0, 0, 110, 280)),
    "suit": Source("astronaut", (40, 250, 300, 505)),
    "helmet": Source("astronaut", (280, 330, 512, 512)),
    "shuttle": Source("astronaut", (330, 0, 512, 240)),
    "brick-red": Source("brick", _WHOLE, (1.35, 0.72, 0.55)),
    "brick-sand": Source("brick", _WHOLE, (1.35, 1.2, 0.85)),
    "brick-slate": Source("brick", _WHOLE, (0.62, 0.78, 1.0)),
    "meadow": Source("camera", (320, 250, 512, 500), (0.72, 0.95, 0.5)),
    "coat": Source("camera", (60, 130, 260, 440)),
    "skyline": Source("camera", (300, 60, 512, 260), (0.85, 0.97, 1.1)),
    "fur": Source("cat", (60, 0, 280, 110)),
    "eyes": Source("cat", (110, 50, 370, 230)),
    "whiskers": Source("cat", (0, 150, 250, 300)),
    "sofa": Source("cat", (330, 0, 451, 300)),
    "wood": Source("coffee", (440, 60, 600, 400)),
    "cup": Source("coffee", (170, 20, 400, 210)),
    "saucer": Source("coffee", (80, 200, 320, 380)),
    "spoon": Source("coffee", (290, 180, 430, 350)),
    "grass-green": Source("grass", _WHOLE, (0.75, 1.15, 0.5)),
    "grass-straw": Source("grass", _WHOLE, (1.4, 1.2, 0.65)),
    "gravel-grey": Source("gravel", _WHOLE),
    "gravel-ochre": Source("gravel", _WHOLE, (1.35, 0.95, 0.55)),
    "gravel-blue": Source("gravel", _WHOLE, (0.6, 0.85, 1.25)),
    "galaxies": Source("hubble", (0, 0, 1000, 872)),
    "vessels": Source("retina", (280, 150, 830, 620)),
    "disc": Source("retina", (90, 480, 480, 900)),
    "fovea": Source("retina", (520, 480, 950, 920)),
    "rim": Source("retina", (930, 820, 1411, 1411)),
    "dusk": Source("rocket", (85, 0, 300, 180)),
    "tower": Source("rocket", (0, 0, 110, 360)),
    "lamps": Source("rocket", (60, 310, 480, 427)),
    "rocket": Source("rocket", (260, 120, 390, 427)),
}
"""Source name to region. A crop never leaves its region, so pictures of one source look alike and are never equal."""

_ZOOM = (0.55, 0.95)  # side of a crop as a share of the region's shorter side


@dataclass(frozen=True)
class Crop:
    """Where a crop lies inside its region, in numbers that mean the same in every region.

    Attributes:
        x: horizontal place in [0, 1] of the free room.
        y: vertical place in [0, 1] of the free room.
        zoom: size in [0, 1], from 55 to 95 % of the region's shorter side.
        flip: mirrored left to right.
    """

    x: float = 0.5
    y: float = 0.5
    zoom: float = 0.5
    flip: bool = False


@lru_cache(maxsize=4)
def _photograph(name: str) -> Image.Image:
    entry = PHOTOGRAPHS[name]
    path = package_folder("skimage") / "data" / entry.file
    try:
        with Image.open(path) as opened:
            return opened.convert("RGB")
    except FileNotFoundError as error:
        raise DataError(
            f"scikit-image has no file data/{entry.file} (background {name!r}). Install the wheel from PyPI: "
            "pip install 'proxemics[demo]'."
        ) from error


def load_source(name: str) -> Image.Image:
    """Return the region of a background source.

    Args:
        name: a key of ``SOURCES``.

    Returns:
        RGB picture of the region, tinted, in the photograph's own resolution.

    Example:
        >>> load_source("brick-red").size
        (512, 512)
    """
    source = SOURCES[name]
    region = _photograph(source.photograph).crop(source.box)
    if source.tint == (1.0, 1.0, 1.0):
        return region
    tinted = np.asarray(region, dtype=np.float32) * np.asarray(source.tint, dtype=np.float32)
    return Image.fromarray(np.minimum(tinted + 0.5, 255).astype(np.uint8))


def load_sources(names: Iterable[str]) -> dict[str, Image.Image]:
    """Return several regions by name; see :func:`load_source`."""
    return {name: load_source(name) for name in names}


def cut_crop(region: Image.Image, crop: Crop, size: int) -> np.ndarray:
    """Cut a square crop and scale it.

    Args:
        region: RGB picture.
        crop: place and size.
        size: side of the result in pixels.

    Returns:
        (size, size, 3) uint8.

    Example:
        >>> cut_crop(Image.new("RGB", (64, 48), "red"), Crop(), 16).shape
        (16, 16, 3)
    """
    side = min(region.size) * (_ZOOM[0] + (_ZOOM[1] - _ZOOM[0]) * crop.zoom)
    left, top = (region.width - side) * crop.x, (region.height - side) * crop.y
    cut = np.asarray(region.resize((size, size), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side)))
    return cut[:, ::-1] if crop.flip else cut
