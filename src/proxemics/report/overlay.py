"""Similarity maps and other heat laid over pictures: a dark veil that is clear where the map is high.

A veil shows what stands at the places that matter in its own colours, which a coloured heat map would hide, and it
reads the same to people who tell few colours apart.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

VEIL, DARKEST = (14, 16, 28), 212


def relative_heat(values: NDArray[np.floating]) -> NDArray[np.float32]:
    """Scale a map to [0, 1]: its largest value becomes 1; what is 0 or speaks against becomes 0.

    Args:
        values: (h, w).

    Example:
        >>> relative_heat(np.array([[0.2, -0.1], [0.1, 0.0]])).tolist()
        [[1.0, 0.0], [0.5, 0.0]]
    """
    heat = np.maximum(np.nan_to_num(np.asarray(values, np.float64)), 0)
    return (heat / (heat.max(initial=0) or 1)).astype(np.float32)


def veil(heat: NDArray[np.floating], side: int) -> Image.Image:
    """Return a veil to lay over a square picture: clear where the heat is 1, dark where it is 0.

    Args:
        heat: (h, w) in [0, 1].
        side: of the veil, pixels.

    Returns:
        An RGBA picture, (side, side).
    """
    grown = Image.fromarray(np.asarray(heat, np.float32)).resize((side, side), Image.Resampling.BILINEAR)
    pixels = np.empty((side, side, 4), np.uint8)
    pixels[..., :3] = VEIL
    pixels[..., 3] = np.round(DARKEST * (1 - np.asarray(grown).clip(0, 1)))
    return Image.fromarray(pixels, "RGBA")


def overlay(picture: Image.Image | NDArray[np.uint8], values: NDArray[np.floating]) -> Image.Image:
    """Lay a similarity map over the picture it belongs to.

    Args:
        picture: as the model saw it, such as ``SimilarityMaps.query_picture``: (S, S, 3) uint8, or an RGB picture. The
            map is stretched over all of it, so a picture that was not cropped would get it in the wrong place.
        values: (h, w), such as ``SimilarityMaps.query``; negative parts are as dark as none.

    Returns:
        An RGB picture of the same size; the places with the largest part in their own colours, the others darkened.

    Example:
        >>> shown = overlay(Image.new("RGB", (8, 8), "white"), np.array([[1.0, 0.0]]))
        >>> shown.getpixel((0, 4)), shown.getpixel((7, 4))[0] < 80
        ((255, 255, 255), True)
    """
    base = picture if isinstance(picture, Image.Image) else Image.fromarray(np.ascontiguousarray(picture))
    dark = veil(relative_heat(values), max(base.size)).resize(base.size)
    return Image.alpha_composite(base.convert("RGBA"), dark).convert("RGB")
