"""Objects, scenes and the nuisance shift of the controlled study; see controlled_data.py."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image

from proxemics.core.errors import DataError
from proxemics.core.seeds import numpy_generator
from proxemics.data.confounded import SOURCES, Composite, ConfoundedSpec, Scene, cut_out
from proxemics.data.confounded import Causes as GlyphCauses
from proxemics.data.confounded.backgrounds import Crop, cut_crop
from proxemics.data.confounded.compose import Light, Pose, compose, relight

STYLES = ("noto", "twemoji", "openmoji", "fluent-emoji-flat")
"""The four styles that are drawn in colour."""
SHIFTS = ("light", "hue", "amplitude")
"""Kinds of shift: gain and gradient; hue; contrast and tilt of the Fourier amplitudes."""


@dataclass(frozen=True)
class Nuisance:
    """A change of the whole picture that leaves object and scene alone; the defaults change nothing.

    Attributes:
        gain: factor of all grey values.
        slope: change of the gain from one edge to the other.
        angle: direction of the slope, degrees.
        hue: turn of all colours around the grey axis, degrees.
        contrast: factor of all Fourier amplitudes but the mean's.
        tilt: exponent t of the further factor (f / 4)^t of the amplitudes at f cycles a picture, with f / 4 held in
            [1/4, 8]: below 0 pictures get soft and blotchy, above 0 crisp.
    """

    gain: float = 1.0
    slope: float = 0.0
    angle: float = 0.0
    hue: float = 0.0
    contrast: float = 1.0
    tilt: float = 0.0

    @classmethod
    def draw(cls, generator: np.random.Generator, strength: float = 1.0, kinds: tuple[str, ...] = SHIFTS) -> Nuisance:
        """Draw a clear shift: no value of the named kinds lies near the neutral one except the tilt.

        Args:
            generator: eight numbers are taken from it, whatever the kinds.
            strength: factor of all of them; 0 is neutral.
            kinds: some of ``SHIFTS``; what is not named stays neutral.
        """
        side, gain, slope, angle, way, hue, contrast, tilt = generator.random(8).tolist()
        light, colour, amplitude = (strength * (kind in kinds) for kind in SHIFTS)
        return cls(
            gain=math.exp(light * (1 if side < 0.5 else -1) * (0.25 + 0.35 * gain)),
            slope=light * (0.3 + 0.6 * slope),
            angle=360 * angle if light else 0.0,
            hue=colour * (1 if way < 0.5 else -1) * (25 + 50 * hue),
            contrast=math.exp(-amplitude * (0.2 + 0.4 * contrast)),
            tilt=amplitude * 0.35 * (2 * tilt - 1),
        )


def shift(picture: np.ndarray, nuisance: Nuisance) -> np.ndarray:
    """Change the amplitudes, then the hue, then the light of a picture.

    Args:
        picture: (H, W, 3) uint8.
        nuisance: what to change.

    Returns:
        (H, W, 3) uint8; the picture itself where nothing changes.

    Example:
        >>> grey = np.full((8, 8, 3), 100, np.uint8)
        >>> shift(grey, Nuisance(hue=60, contrast=0.5, tilt=0.3, gain=1.5))[0, 0].tolist()
        [150, 150, 150]
    """
    if nuisance == Nuisance():
        return picture
    pixels = picture.astype(np.float32)
    if nuisance.contrast != 1 or nuisance.tilt:
        pixels = _amplitudes(pixels, nuisance.contrast, nuisance.tilt)
    if nuisance.hue:
        pixels = pixels @ _turn(nuisance.hue).T
    return relight(np.clip(pixels, 0, 255), Light(nuisance.gain, nuisance.slope, nuisance.angle))


def _amplitudes(pixels: np.ndarray, contrast: float, tilt: float) -> np.ndarray:
    height, width = pixels.shape[:2]
    cycles = np.hypot(np.fft.fftfreq(height)[:, None] * height, np.fft.rfftfreq(width)[None] * width)
    factor = contrast * np.clip(cycles / 4, 0.25, 8) ** tilt
    factor[0, 0] = 1
    spectrum = np.fft.rfft2(pixels, axes=(0, 1)) * factor[..., None]
    return np.fft.irfft2(spectrum, s=(height, width), axes=(0, 1)).astype(np.float32)


def _turn(degrees: float) -> np.ndarray:
    """Return the rotation of RGB around the grey axis."""
    cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees)) / math.sqrt(3)
    third = (1 - cosine) / 3
    turn = np.full((3, 3), third) + np.diag([cosine] * 3)
    return (turn + sine * np.array([[0, -1, 1], [1, 0, -1], [-1, 1, 0]])).astype(np.float32)


@dataclass(frozen=True)
class Causes:
    """What one picture is made of.

    Attributes:
        split: train, val or test.
        label: class.
        domain: style.
        copy: number of the composite of this cut-out.
        home: scene tied to the class; empty in test.
        tied: the scene was taken because of the class.
        scene: the scene behind the object.
        photo: which photograph of the scene.
        crop: place in the photograph.
        pose: place and scale of the object.
        hue: of a glyph, in [0, 1); emoji keep their own colours.
        shade: saturation of a glyph.
        nuisance: the shift.
        condition: plain or shifted.
    """

    split: str
    label: str
    domain: str
    copy: int
    home: str
    tied: bool
    scene: str
    photo: str
    crop: Crop
    pose: Pose
    hue: float
    shade: float
    nuisance: Nuisance
    condition: str = "plain"

    def row(self, cutout: str) -> dict[str, Any]:
        """Return the table row; ``path`` and ``mask`` are filled in by who writes them."""
        shift = self.nuisance
        return {
            "path": "", "label": self.label, "domain": self.domain, "split": self.split, "condition": self.condition,
            "scene": self.scene, "home": self.home, "tied": self.tied, "photo": self.photo, "cutout": cutout,
            "copy": self.copy, "pair": f"{self.label}/{self.domain}/{self.copy}", "mask": "", "x": self.pose.x,
            "y": self.pose.y, "scale": self.pose.scale, "crop_x": self.crop.x, "crop_y": self.crop.y,
            "crop_zoom": self.crop.zoom, "crop_flip": self.crop.flip, "hue": self.hue, "shade": self.shade,
            "gain": shift.gain, "slope": shift.slope, "angle": shift.angle, "hue_shift": shift.hue,
            "contrast": shift.contrast, "tilt": shift.tilt,
        }  # fmt: skip


@dataclass(frozen=True)
class Parts:
    """What sets are put together from.

    Attributes:
        classes: class names by split (train, val, test), in the order drawn.
        styles: of every class.
        scenes: scene names, ``train`` (also of val) and ``test``.
        photos: photographs of each scene.
        cutout: (label, style) to the name of the cut-out.
        draw: causes to picture and mask, without the shift.
    """

    classes: dict[str, list[str]]
    styles: tuple[str, ...]
    scenes: dict[str, list[str]]
    photos: dict[str, list[str]]
    cutout: Callable[[str, str], str]
    draw: Callable[[Causes], Composite]


def emoji_parts(root: Path, seed: int, counts: tuple[int, int, int], train_scenes: int, size: int) -> Parts:
    """Choose emoji classes (train and val of the training classes, test of the test classes) and grocery scenes."""
    index = root / "index.csv"
    if not index.is_file():
        raise DataError(f"{index} does not exist; give the folder with the emoji and grocery pictures.")
    table = pd.read_csv(index, dtype=str, keep_default_na=False)
    emoji = table[(table["dataset"] == "emoji") & table["path"].str.endswith("/default.webp")]
    emoji = emoji[emoji["domain"].isin(STYLES)]
    files = {(label, style): path for label, style, path in emoji[["label", "domain", "path"]].itertuples(index=False)}
    complete = emoji.groupby("label")["domain"].nunique()
    emoji = emoji[emoji["label"].isin(complete[complete == len(STYLES)].index)]
    seen = _shuffled(emoji[emoji["split"] == "train"]["label"], seed, "seen")
    unseen = _shuffled(emoji[emoji["split"] == "test"]["label"], seed, "unseen")
    train, val, test = counts
    _enough("training and validation classes", len(seen), train + val)
    _enough("test classes", len(unseen), test)
    grocery = table[(table["dataset"] == "grocery") & (table["domain"] == "natural")]
    scenes = _shuffled(grocery["label"], seed, "scenes")
    _enough("scenes", len(scenes), train_scenes + 1)
    photos = {str(label): sorted(part["path"]) for label, part in grocery.groupby("label")}

    @lru_cache(maxsize=4)
    def photograph(name: str) -> Image.Image:
        with Image.open(root / name) as opened:
            return opened.convert("RGB")

    @lru_cache(maxsize=4096)
    def layer(name: str) -> Image.Image:
        with Image.open(root / name) as opened:
            return cut_out(opened.convert("RGBA"))

    def draw(causes: Causes) -> Composite:
        behind = cut_crop(photograph(causes.photo), causes.crop, size)
        return compose(layer(files[causes.label, causes.domain]), behind, pose=causes.pose)

    return Parts(
        classes={"train": seen[:train], "val": seen[train : train + val], "test": unseen[:test]},
        styles=STYLES,
        scenes={"train": scenes[:train_scenes], "test": scenes[train_scenes:]},
        photos=photos,
        cutout=lambda label, style: files[label, style],
        draw=draw,
    )


def glyph_parts(seed: int, counts: tuple[int, int, int], train_scenes: int, size: int) -> Parts:
    """Choose glyphs and regions of photographs; no photograph has regions in both training and test."""
    train, val, test = counts
    spec = ConfoundedSpec(
        train_classes=train + val, test_classes=test, size=size, seed=seed, rotation=0.0, illumination=0.0
    )
    scene = Scene(spec)
    numbers = {name: number for number, name in enumerate(scene.names)}
    train_names: list[str] = []
    test_names: list[str] = []
    for photograph in _shuffled(pd.Series([source.photograph for source in SOURCES.values()]), seed, "scenes"):
        regions = [name for name, source in SOURCES.items() if source.photograph == photograph]
        (train_names if len(train_names) + len(regions) <= train_scenes else test_names).extend(regions)
    _enough("test scenes", len(test_names), 1)
    _enough("training scenes", len(train_names), 2)

    def draw(causes: Causes) -> Composite:
        split = "test" if causes.split == "test" else "train"
        return scene.draw(
            GlyphCauses(
                0, numbers[causes.label], split, causes.domain, causes.scene, causes.tied, causes.crop, causes.pose,
                Light(), causes.hue, causes.shade,
            )
        )  # fmt: skip

    return Parts(
        classes={
            "train": scene.names[:train],
            "val": scene.names[train : train + val],
            "test": scene.names[train + val :],
        },
        styles=spec.domains,
        scenes={"train": train_names, "test": test_names},
        photos={name: [name] for name in SOURCES},
        cutout=lambda label, style: f"{style}/{label}",
        draw=draw,
    )


def _shuffled(names: pd.Series, seed: int, purpose: str) -> list[str]:
    known = sorted(set(names))
    return [known[n] for n in numpy_generator(seed, "controlled", purpose).permutation(len(known))]


def _enough(what: str, there: int, needed: int) -> None:
    if there < needed:
        raise DataError(f"The data hold {there} {what} and {needed} are asked for; ask for fewer.")
