"""The one truth of what the trunk sees: resize the short side, crop the centre, normalise.

Evaluation, export and serving share this object. It has two engines with the same geometry:

* calling it is the exact one, Pillow and NumPy only: :mod:`proxemics.runtime.exact`, which a machine without torch
  runs as well;
* :meth:`Preprocess.batch` is the fast one on torch tensors. Its filter weights have 16 bits where Pillow's have 22, so
  a value near a half may be rounded the other way. Measured on photographs: 99.9 % of the values are equal (92 % or
  more where the two sizes are in a simple ratio such as 2:5, which makes halves), the rest is one grey level off, and
  a few in a million are two off because both passes rounded the other way. More cannot happen.

A picture more than 8 times as long as it is wide is cut to the crop while it is resized, by the exact engine in both
cases, so that a sliver cannot ask for gigabytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from os import PathLike
from typing import Annotated, Literal

import numpy as np
import torch
from PIL import Image
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from torch import Tensor

from proxemics.core.errors import ConfigError, ImageError
from proxemics.runtime.exact import MAX_ASPECT, ExactPreprocess, Triple, resized_shape

Interpolation = Literal["bilinear", "bicubic"]
PositiveTriple = tuple[Annotated[float, Field(gt=0)], Annotated[float, Field(gt=0)], Annotated[float, Field(gt=0)]]

__all__ = ["Interpolation", "PositiveTriple", "Preprocess", "Triple", "resize", "resized_shape"]


class Preprocess(BaseModel):
    """Resize the short side to ``resize``, crop the central ``size`` square, map grey level g to (g/255 - mean)/std.

    Attributes:
        size: side of the square that the trunk sees, in pixels.
        resize: short side before the crop, in pixels; at least ``size``. The long side is rounded down, and the crop
            starts at half of what is left over, rounded to even (both as torchvision does).
        mean: of R, G, B, in units of full scale.
        std: of R, G, B, in units of full scale.
        interpolation: antialiased when shrinking, as in Pillow.

    Example:
        >>> preprocess = Preprocess(size=4, resize=5, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
        >>> x = preprocess(Image.new("RGB", (10, 20), "white"))
        >>> x.shape, x.dtype, float(x.min())
        ((3, 4, 4), dtype('float32'), 1.0)
        >>> Preprocess.from_json(preprocess.to_json()) == preprocess
        True
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    size: int = Field(ge=1)
    resize: int = Field(ge=1)
    mean: Triple = (0.485, 0.456, 0.406)
    std: PositiveTriple = (0.229, 0.224, 0.225)
    interpolation: Interpolation = "bilinear"

    @model_validator(mode="after")
    def _crop_fits(self) -> Preprocess:
        if self.size > self.resize:
            raise ValueError(f"size={self.size} is larger than resize={self.resize}; the crop must fit, raise resize")
        return self

    def __call__(self, image: Image.Image | str | PathLike[str]) -> np.ndarray:
        """Prepare one picture with the exact engine.

        Args:
            image: a path or a Pillow image of any mode; Exif orientation is applied.

        Returns:
            (3, size, size) float32.

        Raises:
            ImageError: the picture cannot be read; see :func:`proxemics.runtime.pictures.read_image`.
        """
        return self._exact()(image)

    def crop_exact(self, image: Image.Image | str | PathLike[str]) -> np.ndarray:
        """Return the (size, size, 3) uint8 pixels of the exact engine, before normalisation."""
        return self._exact().crop(image)

    def crop(self, image: Tensor) -> Tensor:
        """Return the pixels of the fast engine, before normalisation.

        Args:
            image: (3, H, W) uint8.

        Returns:
            (3, size, size) uint8, within one grey level of :meth:`crop_exact` but for a few values in a million.
        """
        _check_picture(image)
        rows, columns = int(image.shape[1]), int(image.shape[2])
        if max(rows, columns) > MAX_ASPECT * min(rows, columns):
            sliver = Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())
            return torch.from_numpy(self.crop_exact(sliver).copy()).permute(2, 0, 1)
        height, width = resized_shape(rows, columns, self.resize)
        top, left = round((height - self.size) / 2), round((width - self.size) / 2)
        resized = resize(image, height, width, interpolation=self.interpolation)
        return resized[:, top : top + self.size, left : left + self.size]

    def batch(self, images: Sequence[Tensor]) -> Tensor:
        """Prepare pictures with the fast engine.

        Args:
            images: B pictures (3, H, W) uint8 of any sizes.

        Returns:
            (B, 3, size, size) float32 in channels-last memory.
        """
        pixels = torch.empty((len(images), self.size, self.size, 3), dtype=torch.uint8).permute(0, 3, 1, 2)
        for row, image in enumerate(images):
            pixels[row] = self.crop(image)
        return self.normalize(pixels)

    def normalize(self, pixels: Tensor) -> Tensor:
        """Map grey levels to what the trunk expects.

        Args:
            pixels: (B, 3, H, W) or (3, H, W), uint8 or float, in grey levels 0..255; any device.

        Returns:
            The same shape and memory format, float32.
        """
        scale, shift = (torch.from_numpy(part).to(pixels.device) for part in self._exact().affine())
        values = pixels.to(torch.float32, copy=True)
        interleaved = values.movedim(-3, -1)
        if interleaved.is_contiguous():  # whole rows at once: six times as fast as broadcasting over three channels
            width = values.shape[-1]
            interleaved.flatten(-2).mul_(scale.repeat(width)).add_(shift.repeat(width))
            return values
        return values.mul_(scale[:, None, None]).add_(shift[:, None, None])

    def denormalize(self, values: Tensor) -> Tensor:
        """Undo :meth:`normalize`: (..., 3, H, W) float to grey levels 0..255, float32."""
        scale, shift = (torch.from_numpy(part).to(values.device)[:, None, None] for part in self._exact().affine())
        return (values.to(torch.float32) - shift) / scale

    def to_json(self) -> str:
        """Return the fields as JSON text."""
        return self.model_dump_json(indent=2)

    @classmethod
    def from_json(cls, text: str) -> Preprocess:
        """Read what :meth:`to_json` wrote.

        Raises:
            ConfigError: a field is missing, unknown or out of range.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "preprocess"
            raise ConfigError(f"The preprocessing is not usable: {where}: {first['msg']}.") from error

    def fingerprint(self) -> str:
        """Return 16 hex digits that change when any field does; an index stores them."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:16]

    def _exact(self) -> ExactPreprocess:
        return ExactPreprocess(self.size, self.resize, self.mean, self.std, self.interpolation)


def resize(image: Tensor, height: int, width: int, *, interpolation: Interpolation) -> Tensor:
    """Resize with antialiasing; each pass is rounded to 8 bits.

    Args:
        image: (3, H, W) uint8; interleaved memory is the fast case.
        height: of the result, in pixels.
        width: of the result, in pixels.
        interpolation: the filter.

    Returns:
        (3, height, width) uint8 over interleaved memory; the top of this file says how near to Pillow it is.

    Example:
        >>> resize(torch.full((3, 8, 8), 7, dtype=torch.uint8), 3, 5, interpolation="bicubic").unique().tolist()
        [7]
    """
    if image.shape[1:] == (height, width):
        return image
    interleaved = image.permute(1, 2, 0)
    if interleaved.is_contiguous():  # image[None] would have the same memory, but strides that hide it from torch
        batch = interleaved[None].permute(0, 3, 1, 2)
    else:
        batch = image[None].contiguous(memory_format=torch.channels_last)
    return torch.nn.functional.interpolate(batch, (height, width), mode=interpolation, antialias=True)[0]


def _check_picture(image: Tensor) -> None:
    if image.ndim != 3 or image.shape[0] != 3 or image.dtype != torch.uint8 or image.numel() == 0:
        raise ImageError(
            f"A picture is a (3, H, W) uint8 tensor, not {tuple(image.shape)} {image.dtype}; "
            "use proxemics.data.decode.decode_tensor to read one."
        )
