"""Composition: a cut-out object, posed and lit, on a background. The same few steps serve glyphs and real objects."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from PIL import Image


class Composite(NamedTuple):
    """What composition gives.

    Attributes:
        picture: (H, W, 3) uint8 RGB.
        mask: (H, W) uint8, 255 where the object covers the background.
    """

    picture: np.ndarray
    mask: np.ndarray


@dataclass(frozen=True)
class Pose:
    """Where and how large the object is.

    Attributes:
        rotation: degrees, counter-clockwise.
        scale: longer side of the upright object (without outline) as a share of the picture's side.
        x: horizontal place in [-1, 1] of the free room; 0 is the middle.
        y: vertical place in [-1, 1] of the free room.
    """

    rotation: float = 0.0
    scale: float = 0.6
    x: float = 0.0
    y: float = 0.0


@dataclass(frozen=True)
class Light:
    """How the finished picture is lit.

    Attributes:
        gain: factor of all grey values.
        slope: change from one edge to the other, as a share of the gain.
        angle: direction of the slope, degrees.
    """

    gain: float = 1.0
    slope: float = 0.0
    angle: float = 0.0


def place(layer: Image.Image, pose: Pose, size: int, *, margin: int = 0) -> Image.Image:
    """Draw a cut-out, rotated and scaled, into an empty square.

    The object stays inside the picture: ``pose.x`` and ``pose.y`` use the room that the turned object leaves.

    Args:
        layer: any mode; transparent black outside.
        pose: place, turn and scale.
        size: side of the square in pixels.
        margin: pixels around the object in ``layer`` (outline, shadow) that ``pose.scale`` does not count.

    Returns:
        The square, in the mode of ``layer``.

    Example:
        >>> place(Image.new("L", (20, 10), 255), Pose(scale=0.5), 64).getbbox()
        (16, 24, 48, 40)
    """
    width, height = layer.size
    factor = pose.scale * size / (max(width, height) - 2 * margin)  # picture pixels per layer pixel
    cosine, sine = math.cos(math.radians(pose.rotation)), math.sin(math.radians(pose.rotation))
    room_x = max(0.0, size - factor * (width * abs(cosine) + height * abs(sine))) / 2
    room_y = max(0.0, size - factor * (width * abs(sine) + height * abs(cosine))) / 2
    centre_x, centre_y = size / 2 + pose.x * room_x, size / 2 + pose.y * room_y
    a, b, d, e = cosine / factor, -sine / factor, sine / factor, cosine / factor
    inverse = (a, b, width / 2 - a * centre_x - b * centre_y, d, e, height / 2 - d * centre_x - e * centre_y)
    return layer.transform((size, size), Image.Transform.AFFINE, inverse, Image.Resampling.BILINEAR)


def relight(pixels: np.ndarray, light: Light) -> np.ndarray:
    """Multiply by a gain and a linear gradient, and round.

    Args:
        pixels: (H, W, 3) float32 in [0, 255].
        light: gain and slope.

    Returns:
        (H, W, 3) uint8.

    Example:
        >>> relight(np.full((1, 1, 3), 100, np.float32), Light(gain=1.5)).tolist()
        [[[150, 150, 150]]]
    """
    factor: np.ndarray | np.float32 = np.float32(light.gain)
    if light.slope:
        height, width = pixels.shape[:2]
        across = np.linspace(-0.5, 0.5, width, dtype=np.float32) * np.float32(math.cos(math.radians(light.angle)))
        down = np.linspace(-0.5, 0.5, height, dtype=np.float32) * np.float32(math.sin(math.radians(light.angle)))
        factor = factor * (1 + np.float32(light.slope) * (across + down[:, None]))[..., None]
    lit: np.ndarray = np.clip(pixels * factor + np.float32(0.5), 0, 255).astype(np.uint8)
    return lit


def blend(under: np.ndarray, colour: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """Lay ``colour`` over ``under``: ``under + alpha * (colour - under)``.

    Args:
        under: (H, W, 3) float32.
        colour: (H, W, 3) or (3,) float32.
        alpha: (H, W, 1) float32 in [0, 1].

    Returns:
        (H, W, 3) float32.
    """
    mixed: np.ndarray = under + alpha * (colour - under)
    return mixed


def compose(cutout: Image.Image, background: np.ndarray, *, pose: Pose | None, light: Light | None = None) -> Composite:
    """Put one cut-out on one background.

    Args:
        cutout: RGBa (premultiplied) or RGBA picture.
        background: (H, W, 3) uint8; square when ``pose`` is given.
        pose: place and scale; None keeps the cut-out where it is, which then must have the background's size.
        light: lighting of the result; None leaves it.

    Returns:
        Picture and mask of the background's size.
    """
    layer = cutout if cutout.mode == "RGBa" else cutout.convert("RGBa")
    if pose is not None:
        layer = place(layer, pose, background.shape[0])
    over = np.asarray(layer)  # premultiplied: colour * alpha
    alpha = over[..., 3]
    clear = (255 - alpha.astype(np.float32)) * np.float32(1 / 255)
    mixed = background * clear[..., None] + over[..., :3]
    return Composite(relight(mixed, light or Light()), alpha)
