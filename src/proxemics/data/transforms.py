"""Augmentation for training: a random crop resized to a square, a flip; on request colour jitter, grey and erasing.

Every random number comes from the NumPy generator that the caller hands over, so that a picture's augmentation can
depend on (seed, epoch, row) alone. Source of the crop: the recipe table of the proxy papers, that is torchvision's
``RandomResizedCrop`` with scale (0.08, 1) and ratio (3/4, 4/3), then a flip with probability 1/2. Options that are off
draw nothing, so that runs without them stay the same, bit for bit, whatever options are added.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from proxemics.core.errors import ConfigError, did_you_mean
from proxemics.data.preprocess import Interpolation, resize

_ATTEMPTS = 10
_ERASED_SHARE = (0.02, 0.2)
_ERASED_RATIO = (0.3, 3.3)


@dataclass(frozen=True)
class TrainTransform:
    """Random resized crop, horizontal flip; optional colour jitter, grey and random erasing, in this order.

    Attributes:
        size: side of the result, in pixels.
        scale: smallest and largest part of the picture's area that a crop covers, in (0, 1].
        ratio: smallest and largest width / height of a crop; drawn uniformly on a log scale.
        flip: probability of a horizontal flip.
        interpolation: "bilinear" (proxy papers) or "bicubic" (ViT papers); antialiased.
        jitter: strength of brightness, contrast, saturation (factors drawn from 1 ± strength) and hue (shift drawn
            from ± strength, at most 0.5); all zero is off.
        jitter_probability: probability that a picture is jittered at all.
        grayscale: probability that a picture loses its colour; it keeps three channels.
        erase: probability that one rectangle is filled with noise; see :func:`random_erase`.

    Raises:
        ConfigError: a value is out of range.

    Example:
        >>> import torch
        >>> from proxemics.core.seeds import numpy_generator
        >>> transform = TrainTransform(size=8)
        >>> picture = torch.randint(0, 256, (3, 20, 30), dtype=torch.uint8)
        >>> crop = transform(picture, numpy_generator(0, "augment", 3, 17))
        >>> crop.shape, torch.equal(crop, transform(picture, numpy_generator(0, "augment", 3, 17)))
        (torch.Size([3, 8, 8]), True)
    """

    size: int
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    interpolation: Interpolation = "bilinear"
    jitter: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    jitter_probability: float = 1.0
    grayscale: float = 0.0
    erase: float = 0.0

    @classmethod
    def strong(
        cls,
        size: int,
        *,
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
        flip: float = 0.5,
        interpolation: Interpolation = "bilinear",
    ) -> TrainTransform:
        """Return the strong setting: jitter (0.4, 0.4, 0.4, 0.1) at 0.8, grey at 0.2, erasing at 0.25.

        Jitter and grey are those of the contrastive recipes (MoCo v2, SimSiam); the erasing probability is timm's
        usual one. This is the plain opponent that a method with generated views has to beat.

        Args:
            size: side of the result, in pixels.
            scale: as in the class.
            ratio: as in the class.
            flip: as in the class.
            interpolation: as in the class.

        Returns:
            The transform.

        Raises:
            ConfigError: a value is out of range.

        Example:
            >>> transform = TrainTransform.strong(112)
            >>> transform.jitter, transform.jitter_probability, transform.grayscale, transform.erase
            ((0.4, 0.4, 0.4, 0.1), 0.8, 0.2, 0.25)
        """
        return cls(
            size,
            scale=scale,
            ratio=ratio,
            flip=flip,
            interpolation=interpolation,
            jitter=(0.4, 0.4, 0.4, 0.1),
            jitter_probability=0.8,
            grayscale=0.2,
            erase=0.25,
        )

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ConfigError(f"size={self.size} is not a picture size; give at least 1 pixel.")
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise ConfigError(f"scale={self.scale} must be two rising fractions of the area in (0, 1], e.g. (0.08, 1).")
        if not 0 < self.ratio[0] <= self.ratio[1]:
            raise ConfigError(f"ratio={self.ratio} must be two rising positive numbers, e.g. (0.75, 1.333).")
        for name in ("flip", "jitter_probability", "grayscale", "erase"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name}={getattr(self, name)} is not a probability; give a number in [0, 1].")
        if self.interpolation not in ("bilinear", "bicubic"):
            hint = did_you_mean(self.interpolation, ("bilinear", "bicubic"))
            raise ConfigError(f"interpolation={self.interpolation!r} must be 'bilinear' or 'bicubic'.{hint}")
        if not all(0 <= strength <= limit for strength, limit in zip(self.jitter, (1, 1, 1, 0.5), strict=True)):
            raise ConfigError(f"jitter={self.jitter} must lie in [0, 1], the last one (hue) in [0, 0.5].")

    def __call__(self, image: Tensor, generator: np.random.Generator) -> Tensor:
        """Augment one picture.

        Args:
            image: (3, H, W) uint8.
            generator: where all random numbers come from.

        Returns:
            (3, size, size) uint8.
        """
        top, left, height, width = crop_box(
            int(image.shape[1]), int(image.shape[2]), generator, scale=self.scale, ratio=self.ratio
        )
        crop = image[:, top : top + height, left : left + width]
        result = resize(crop, self.size, self.size, interpolation=self.interpolation)
        if generator.random() < self.flip:
            result = result.permute(1, 2, 0).flip(1).permute(2, 0, 1)  # keeps the memory interleaved
        if any(self.jitter) and _happens(self.jitter_probability, generator):
            result = color_jitter(result, generator, self.jitter)
        if self.grayscale and _happens(self.grayscale, generator):
            result = to_grayscale(result)
        return random_erase(result, generator) if self.erase and _happens(self.erase, generator) else result


def _happens(probability: float, generator: np.random.Generator) -> bool:
    """Draw whether an option acts; certainty draws nothing."""
    return probability == 1 or generator.random() < probability


def crop_box(
    height: int, width: int, generator: np.random.Generator, *, scale: tuple[float, float], ratio: tuple[float, float]
) -> tuple[int, int, int, int]:
    """Draw a crop by area and aspect ratio; after ten misses take the largest central crop the ratio allows.

    Args:
        height: of the picture, in pixels.
        width: of the picture, in pixels.
        generator: where the random numbers come from.
        scale: range of the area, as a part of the picture's.
        ratio: range of width / height.

    Returns:
        top, left, height, width in pixels, inside the picture.

    Example:
        >>> crop_box(10, 10, np.random.default_rng(0), scale=(1, 1), ratio=(1, 1))
        (0, 0, 10, 10)
        >>> crop_box(4, 100, np.random.default_rng(0), scale=(1, 1), ratio=(1, 1))
        (0, 48, 4, 4)
    """
    low, high = math.log(ratio[0]), math.log(ratio[1])
    for _ in range(_ATTEMPTS):
        area = height * width * (scale[0] + (scale[1] - scale[0]) * generator.random())
        aspect = math.exp(low + (high - low) * generator.random())
        crop_height, crop_width = round(math.sqrt(area / aspect)), round(math.sqrt(area * aspect))
        if 0 < crop_height <= height and 0 < crop_width <= width:
            top = int(generator.integers(height - crop_height + 1))
            left = int(generator.integers(width - crop_width + 1))
            return top, left, crop_height, crop_width
    aspect = min(max(width / height, ratio[0]), ratio[1])
    crop_height, crop_width = min(height, max(1, round(width / aspect))), min(width, max(1, round(height * aspect)))
    return (height - crop_height) // 2, (width - crop_width) // 2, crop_height, crop_width


def color_jitter(image: Tensor, generator: np.random.Generator, jitter: tuple[float, float, float, float]) -> Tensor:
    """Change brightness, contrast, saturation and hue, in an order drawn at random.

    Args:
        image: (3, H, W) uint8.
        generator: where the random numbers come from.
        jitter: strengths as in :class:`TrainTransform`; needs torchvision.

    Returns:
        The same shape, uint8.

    Example:
        >>> import torch
        >>> grey = torch.full((3, 2, 2), 100, dtype=torch.uint8)
        >>> bool((color_jitter(grey, np.random.default_rng(0), (0.5, 0, 0, 0)) != grey).any())
        True
    """
    from torchvision.transforms.v2 import functional as vision  # several seconds to import, needed here only

    steps = (vision.adjust_brightness, vision.adjust_contrast, vision.adjust_saturation, vision.adjust_hue)
    draws = 2 * generator.random(4) - 1
    for step in generator.permutation(4):
        if jitter[step] > 0:
            amount = float(draws[step]) * jitter[step]
            image = steps[step](image, amount if step == 3 else 1 + amount)
    return image


def to_grayscale(image: Tensor) -> Tensor:
    """Replace the colours by their luma (ITU-R BT.601: 0.299 R + 0.587 G + 0.114 B), rounded.

    Args:
        image: (3, H, W) uint8.

    Returns:
        (3, H, W) uint8, three equal channels.

    Example:
        >>> import torch
        >>> to_grayscale(torch.tensor([255, 0, 0], dtype=torch.uint8).reshape(3, 1, 1)).flatten().tolist()
        [76, 76, 76]
    """
    red, green, blue = (image[channel].int() for channel in range(3))
    luma = (299 * red + 587 * green + 114 * blue + 500) // 1000
    return luma.to(image.dtype).expand(3, -1, -1).contiguous()


def random_erase(image: Tensor, generator: np.random.Generator) -> Tensor:
    """Fill one rectangle with noise: every value uniform on 0..255, the variant RE-R of Zhong et al. 2020.

    The share of the area is uniform on (0.02, 0.2); width / height is uniform on a log scale on (0.3, 3.3), as in
    torchvision; the place is uniform. Such a rectangle always fits a square. In other pictures a side that would stick
    out is cut to the picture's, so that the share comes out smaller.

    Args:
        image: (3, H, W) uint8; not changed.
        generator: where the random numbers come from.

    Returns:
        (3, H, W) uint8.

    Example:
        >>> import torch
        >>> black = torch.zeros(3, 64, 64, dtype=torch.uint8)
        >>> 0.015 < float((random_erase(black, np.random.default_rng(0)) > 0).float().mean()) < 0.205
        True
    """
    height, width = int(image.shape[1]), int(image.shape[2])
    area = height * width * generator.uniform(*_ERASED_SHARE)
    aspect = math.exp(generator.uniform(math.log(_ERASED_RATIO[0]), math.log(_ERASED_RATIO[1])))
    high = min(height, max(1, round(math.sqrt(area / aspect))))
    wide = min(width, max(1, round(math.sqrt(area * aspect))))
    top, left = int(generator.integers(height - high + 1)), int(generator.integers(width - wide + 1))
    noise = generator.integers(0, 256, (3, high, wide), dtype=np.uint8)
    result = image.clone()
    result[:, top : top + high, left : left + wide] = torch.from_numpy(noise)
    return result
