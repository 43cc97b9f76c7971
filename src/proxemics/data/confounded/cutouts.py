"""Cut-outs: any RGBA pictures, or pictures with masks, on any backgrounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from PIL import Image

from proxemics.core.errors import DataError
from proxemics.core.seeds import numpy_generator
from proxemics.data.confounded.backgrounds import Crop, cut_crop
from proxemics.data.confounded.compose import Composite, Light, Pose, compose

Picture = Image.Image | np.ndarray
"""A PIL picture, or (H, W), (H, W, 3) or (H, W, 4) uint8."""


def cut_out(picture: Picture, mask: Picture | None = None) -> Image.Image:
    """Turn an RGBA picture, or a picture and its mask, into a cut-out without margin.

    Args:
        picture: RGBA (its alpha is the mask) or RGB together with ``mask``.
        mask: grey, same height and width, 255 on the object; booleans work too.

    Returns:
        Premultiplied RGBa picture, cropped to the object.

    Raises:
        DataError: no mask at all, another size, or an empty mask.

    Example:
        >>> cut_out(Image.new("RGB", (8, 8), "red"), np.eye(8, dtype=bool)).size
        (8, 8)
    """
    whole = _with_alpha(picture, mask)
    box = whole.getchannel("A").getbbox()
    if box is None:
        raise DataError(
            "The mask is empty, so there is no object to cut out. Leave this picture out, or give its mask."
        )
    return whole.crop(box).convert("RGBa")


def _with_alpha(picture: Picture, mask: Picture | None) -> Image.Image:
    image = picture if isinstance(picture, Image.Image) else Image.fromarray(picture)
    if mask is None:
        if "A" not in image.getbands() and "transparency" not in image.info:
            raise DataError(
                f"A {image.mode} picture of {image.width} x {image.height} has no transparency, so the object's place "
                "is unknown. Give an RGBA cut-out, or the mask of each picture in masks=."
            )
        return image.convert("RGBA")
    alpha = _as_mask(mask)
    if alpha.size != image.size:
        raise DataError(
            f"The mask is {alpha.width} x {alpha.height} and its picture {image.width} x {image.height}; "
            "they must have the same size."
        )
    image = image.convert("RGB")
    image.putalpha(alpha)
    return image


def _as_mask(mask: Picture) -> Image.Image:
    if isinstance(mask, Image.Image):
        return mask.convert("L")
    values = np.asarray(mask)
    return Image.fromarray(values.astype(np.uint8) * 255 if values.dtype == bool else values).convert("L")


def composite(
    objects: Sequence[Picture],
    backgrounds: Sequence[Picture],
    *,
    masks: Sequence[Picture] | None = None,
    pairing: Sequence[int] | None = None,
    size: int | None = 96,
    rotation: float = 0.0,
    translation: float = 0.0,
    scale: tuple[float, float] = (0.6, 0.6),
    illumination: float = 0.0,
    seed: int = 0,
) -> Iterator[Composite]:
    """Put any cut-outs, or pictures with masks, onto any backgrounds; each result depends on its place and ``seed``.

    Args:
        objects: RGBA cut-outs, or pictures with ``masks``.
        backgrounds: pictures; a random square crop of the chosen one is used.
        masks: one mask a picture; None takes the pictures' own alpha.
        pairing: index of the background of each object; None draws it uniformly.
        size: side of the square results. None swaps the background only: each result has the size of its picture and
            the object stays where it is, with the background cropped to that shape (pose options are then not used).
        rotation: largest turn, degrees, either way.
        translation: share in [0, 1] of the free room that the object's centre may use.
        scale: smallest and largest longer side of the object as a share of ``size``.
        illumination: strength in [0, 1] of gain and gradient.
        seed: first part of every random number.

    Yields:
        One :class:`Composite` an object, in order.

    Raises:
        DataError: lengths differ, nothing to composite, or a picture without mask.

    Example:
        >>> disc = Image.new("RGBA", (16, 16), (255, 0, 0, 255))
        >>> result = next(composite([disc], [Image.new("RGB", (40, 30), "blue")], size=32))
        >>> result.picture.shape, result.picture[16, 16].tolist(), result.picture[0, 0].tolist()
        ((32, 32, 3), [255, 0, 0], [0, 0, 255])
    """
    _check_lengths(len(objects), len(backgrounds), masks, pairing)
    for index, item in enumerate(objects):
        draw = numpy_generator(seed, "composite", index)
        chosen = int(draw.integers(len(backgrounds))) if pairing is None else pairing[index]
        behind = _as_rgb(backgrounds[chosen])
        left, top, zoom, flip, turn, x, y, factor, gain, slope, angle = draw.random(11).tolist()
        crop = Crop(left, top, zoom, flip < 0.5)
        light = Light(1 + illumination * (gain - 0.5), illumination * slope, 360 * angle)
        mask = None if masks is None else masks[index]
        if size is None:
            whole = _with_alpha(item, mask)
            yield compose(whole, _cover(behind, whole.size, crop), pose=None, light=light)
        else:
            pose = Pose(
                rotation * (2 * turn - 1),
                scale[0] + (scale[1] - scale[0]) * factor,
                translation * (2 * x - 1),
                translation * (2 * y - 1),
            )
            yield compose(cut_out(item, mask), cut_crop(behind, crop, size), pose=pose, light=light)


def _check_lengths(
    objects: int, backgrounds: int, masks: Sequence[Picture] | None, pairing: Sequence[int] | None
) -> None:
    if objects and not backgrounds:
        raise DataError("There are objects and no background; give at least one background picture.")
    for name, given in (("masks", masks), ("pairing", pairing)):
        if given is not None and len(given) != objects:
            raise DataError(f"{name} has {len(given)} entries for {objects} objects; give one for each.")
    wrong = [number for number in pairing or () if not 0 <= number < backgrounds]
    if wrong:
        raise DataError(f"pairing names background {wrong[0]}; allowed are 0 to {backgrounds - 1}.")


def _as_rgb(picture: Picture) -> Image.Image:
    image = picture if isinstance(picture, Image.Image) else Image.fromarray(picture)
    return image.convert("RGB")


def _cover(picture: Image.Image, size: tuple[int, int], crop: Crop) -> np.ndarray:
    """Cut the largest region with the aspect of ``size`` at the crop's place, and scale it."""
    width, height = size
    factor = min(picture.width / width, picture.height / height)
    left, top = (picture.width - factor * width) * crop.x, (picture.height - factor * height) * crop.y
    box = (left, top, left + factor * width, top + factor * height)
    cut = np.asarray(picture.resize(size, Image.Resampling.BILINEAR, box=box))
    return cut[:, ::-1] if crop.flip else cut
