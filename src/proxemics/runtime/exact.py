"""The exact engine of the preprocessing: resize the short side, crop the centre, normalise; Pillow and NumPy only.

The picture is resized along its width and then along its height, each pass rounded to 8 bits. One call of Pillow leaves
the order of the passes to its version, which moves bicubic results by several grey levels; written out, every version
gives the same pixels. :class:`proxemics.data.preprocess.Preprocess` runs this code too.

A picture more than 8 times as long as it is wide is cut to the crop while it is resized, so that a sliver cannot ask
for gigabytes.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from proxemics.core.errors import ConfigError, ImageError
from proxemics.runtime.modes import to_rgb
from proxemics.runtime.pictures import read_image

FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
MAX_ASPECT = 8
"""Pictures longer than this many times their width are cut while they are resized."""
Triple = tuple[float, float, float]


@dataclass(frozen=True)
class ExactPreprocess:
    """Resize the short side to ``resize``, crop the central ``size`` square, map grey level g to (g/255 - mean)/std.

    Attributes:
        size: side of the square that the trunk sees, in pixels.
        resize: short side before the crop, in pixels.
        mean: of R, G, B, in units of full scale.
        std: of R, G, B, in units of full scale.
        interpolation: ``bilinear`` or ``bicubic``, antialiased when shrinking.

    Example:
        >>> prepare = ExactPreprocess(size=4, resize=5, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
        >>> x = prepare(Image.new("RGB", (10, 20), "white"))
        >>> x.shape, x.dtype, float(x.min())
        ((3, 4, 4), dtype('float32'), 1.0)
    """

    size: int
    resize: int
    mean: Triple = (0.485, 0.456, 0.406)
    std: Triple = (0.229, 0.224, 0.225)
    interpolation: str = "bilinear"

    def __call__(self, image: Image.Image | str | PathLike[str]) -> NDArray[np.float32]:
        """Prepare one picture.

        Args:
            image: a path or a Pillow image of any mode; Exif orientation is applied.

        Returns:
            (3, size, size) float32.

        Raises:
            ImageError: the picture cannot be read.
        """
        scale, shift = self.affine()
        pixels = self.crop(image).transpose(2, 0, 1).astype(np.float32)
        return np.ascontiguousarray(pixels * scale[:, None, None] + shift[:, None, None])

    def crop(self, image: Image.Image | str | PathLike[str]) -> NDArray[np.uint8]:
        """Return the (size, size, 3) uint8 pixels before normalisation."""
        rgb = as_rgb(image)
        height, width = resized_shape(rgb.height, rgb.width, self.resize)
        top, left = round((height - self.size) / 2), round((width - self.size) / 2)
        how = FILTERS[self.interpolation]
        if max(rgb.size) > MAX_ASPECT * min(rgb.size):
            x, y = rgb.width / width, rgb.height / height
            part = rgb.resize((self.size, rgb.height), how, box=(left * x, 0, (left + self.size) * x, rgb.height))
            box = (0, top * y, self.size, (top + self.size) * y)
            return np.asarray(part.resize((self.size, self.size), how, box=box))
        resized = rgb.resize((width, rgb.height), how).resize((width, height), how)
        return np.asarray(resized.crop((left, top, left + self.size, top + self.size)))

    def affine(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return (3,) scale and (3,) shift: what the trunk sees of grey level g is ``g * scale + shift``."""
        mean, std = np.array(self.mean), np.array(self.std)
        return (1 / (255 * std)).astype(np.float32), (-mean / std).astype(np.float32)

    @classmethod
    def from_json(cls, text: str) -> ExactPreprocess:
        """Read a ``preprocess.json``.

        Raises:
            ConfigError: a field is missing, unknown or out of range.

        Example:
            >>> ExactPreprocess.from_json('{"size": 9, "resize": 8}')
            Traceback (most recent call last):
            proxemics.core.errors.ConfigError: The preprocessing is not usable: size=9 is larger than resize=8...
        """
        try:
            fields = json.loads(text)
        except json.JSONDecodeError as error:
            raise _unusable(f"invalid JSON ({error})") from None
        known = cls.__dataclass_fields__
        if not isinstance(fields, dict) or set(fields) - set(known) or not {"size", "resize"} <= set(fields):
            raise _unusable(f"its fields are {', '.join(known)}, of which size and resize must be there")
        for name in ("size", "resize"):
            if type(fields[name]) is not int or fields[name] < 1:
                raise _unusable(f"{name}={fields[name]!r} is no positive whole number")
        for name in ("mean", "std"):
            if name in fields:
                fields[name] = _triple(name, fields[name])
        if fields.get("interpolation", "bilinear") not in FILTERS:
            raise _unusable(f"interpolation={fields['interpolation']!r}; allowed are {', '.join(FILTERS)}")
        if fields["size"] > fields["resize"]:
            raise _unusable(f"size={fields['size']} is larger than resize={fields['resize']}; the crop must fit")
        return cls(**fields)


def resized_shape(height: int, width: int, short_side: int) -> tuple[int, int]:
    """Return the size after the short side became ``short_side``; the long side is rounded down.

    Example:
        >>> resized_shape(333, 500, 256)
        (256, 384)
    """
    if height <= width:
        return short_side, max(short_side, width * short_side // height)
    return max(short_side, height * short_side // width), short_side


def as_rgb(image: Image.Image | str | PathLike[str]) -> Image.Image:
    """Read a path, or turn a Pillow image of any mode into upright RGB.

    Raises:
        ImageError: it cannot be read or converted.
    """
    if not isinstance(image, Image.Image):
        return read_image(image)
    try:
        return to_rgb(image)
    except (OSError, ValueError, SyntaxError) as error:
        raise ImageError(f"A Pillow image of mode {image.mode} cannot be converted to RGB: {error}.") from error


def _triple(name: str, values: Any) -> Triple:
    good = isinstance(values, list) and len(values) == 3 and all(_is_number(value) for value in values)
    if not good or (name == "std" and min(values) <= 0):
        raise _unusable(f"{name}={values!r}; give three numbers{', above 0' if name == 'std' else ''}")
    return float(values[0]), float(values[1]), float(values[2])


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _unusable(reason: str) -> ConfigError:
    return ConfigError(f"The preprocessing is not usable: {reason}. Export the model again.")
