"""One rule for every pixel mode: what comes out is upright 8-bit RGB.

===========================  =========================================================================================
mode                         rule
===========================  =========================================================================================
1, L, P, YCbCr, HSV, LAB     Pillow's conversion
CMYK                         Pillow's conversion (no colour profile is applied, in any mode)
any alpha or transparency    composited on white
16-bit grey (I;16*)          value / 257, rounded: 0..65535 to 0..255, whatever the picture holds
32-bit grey (I) and float    the smallest of 0..1 (float only), 0..255, 0..65535 that holds all values is mapped to
(F)                          0..255; otherwise smallest..largest is. Not-a-number is black. 16-bit PNG that an older
                             Pillow opens as I counts as 16-bit grey
animated                     the first frame
===========================  =========================================================================================
"""

from __future__ import annotations

import numpy as np
from PIL import Image

_ORIENTATION_TAG = 0x0112
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def to_rgb(image: Image.Image) -> Image.Image:
    """Turn any Pillow image into upright 8-bit RGB by the rules at the top of this file.

    Args:
        image: any mode, any size; it is loaded but not changed.

    Returns:
        Mode RGB without an Exif orientation, so that a second call changes nothing.

    Example:
        >>> to_rgb(Image.new("RGBA", (1, 1), (255, 0, 0, 0))).getpixel((0, 0))
        (255, 255, 255)
        >>> to_rgb(Image.new("I;16", (1, 1), 65535)).getpixel((0, 0))
        (255, 255, 255)
    """
    image.load()
    turn = turn_of(image)
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        rgb = Image.fromarray(deep_to_grey(np.asarray(image), sixteen=_is_sixteen_bit(image))).convert("RGB")
    elif image.has_transparency_data:
        rgba = image.convert("LA").convert("RGBA") if image.mode == "La" else image.convert("RGBA")
        rgb = Image.new("RGB", image.size, "white")
        rgb.paste(rgba, mask=rgba.getchannel("A"))
    else:
        rgb = image if image.mode == "RGB" else image.convert("RGB")
    if turn is not None:
        rgb = rgb.transpose(turn)
        rgb.info = {}  # the copied Exif block would turn the picture again
    return rgb


def deep_to_grey(values: np.ndarray, *, sixteen: bool) -> np.ndarray:
    """Map grey values of more than 8 bits to 0..255.

    Args:
        values: (H, W), integer or float.
        sixteen: the values fill 0..65535 by definition.

    Returns:
        (H, W) uint8.

    Example:
        >>> deep_to_grey(np.array([[0.0, 0.5, 1.0]]), sixteen=False).tolist()
        [[0, 128, 255]]
        >>> deep_to_grey(np.array([[-10, 0, 10]]), sixteen=False).tolist()
        [[0, 128, 255]]
    """
    exact = values.astype(np.float64)
    known = exact[np.isfinite(exact)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 0.0)
    if sixteen:
        low, high = 0.0, 65535.0
    else:
        tops = (1.0, 255.0, 65535.0) if np.issubdtype(values.dtype, np.floating) else (255.0, 65535.0)
        top = next((top for top in tops if high <= top), None)
        if low >= 0 and top is not None:
            low, high = 0.0, top
    span = (high - low) or 1.0
    scaled = np.nan_to_num((exact - low) / span, nan=0.0, posinf=1.0, neginf=0.0)
    return np.floor(scaled * 255 + 0.5).clip(0, 255).astype(np.uint8)


def turn_of(image: Image.Image) -> Image.Transpose | None:
    """Return how the stored pixels must be turned to be upright; None for not at all."""
    return _TURNS.get(_orientation(image))


def _is_sixteen_bit(image: Image.Image) -> bool:
    return image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG")


def _orientation(image: Image.Image) -> int:
    try:
        value = image.getexif().get(_ORIENTATION_TAG, 1)
    except Exception:  # a broken Exif block raises whatever its parser meets; the pixels are still good
        return 1
    return value if isinstance(value, int) else 1
