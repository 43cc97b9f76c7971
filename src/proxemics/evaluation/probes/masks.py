"""Where the object is: masks from a column, the alpha channel, boxes, or, when none is given, estimated.

=============  =========================================================================================================
source         what it is
=============  =========================================================================================================
``mask``       a column ``mask`` with the path of a picture of the same shape, light on the object. Relative paths are
               looked for in the folders above the picture, the nearest first
``alpha``      the alpha channel of the picture file itself
``boxes``      columns ``box_left, box_top, box_right, box_bottom``, in pixels of the upright picture
``automatic``  what is unlike the border of the picture in the features of a trunk
               (:func:`proxemics.methods.couce.border_gate`): an estimate
=============  =========================================================================================================

Masks go through the geometry of the model's preprocessing, as the pictures do.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional

from proxemics.core.errors import ImageError
from proxemics.data.decode import image_size, read_image, to_tensor
from proxemics.data.preprocess import Preprocess
from proxemics.evaluation.probes.measure import in_batches
from proxemics.methods.couce.gates import border_gate
from proxemics.runtime.modes import turn_of

if TYPE_CHECKING:
    import pandas as pd

    from proxemics.models.embedder import Embedder

Source = Literal["mask", "alpha", "boxes", "automatic"]
BOX = ("box_left", "box_top", "box_right", "box_bottom")
SMALLEST, LARGEST = 0.002, 0.95
"""Masks that cover less or more than these shares of the picture leave no object or no background to probe."""
_ALPHA = {".png", ".webp", ".gif", ".tif", ".tiff", ".avif"}
_PARENTS = 8
_STRIDE = 16  # the gate needs a map: the deepest one with a place for every 16 pixels


@dataclass(frozen=True)
class Masks:
    """Masks of pictures.

    Attributes:
        values: (N, S, S) float32 in [0, 1], 1 on the object; zeros where there is none.
        rows: (Q,) int64, the pictures with a usable mask.
        source: where they are from.
        stage: of automatic masks: where in which trunk they were read; empty otherwise.
    """

    values: Tensor
    rows: NDArray[np.int64]
    source: Source
    stage: str = ""

    @property
    def sentence(self) -> str:
        """What a reader must know about these masks."""
        if self.source == "automatic":
            return (
                "No masks were given, so the object was estimated: what is unlike the border of the picture at "
                f"{self.stage}. The estimate is rough, so some object stays in the background and the reverse."
            )
        where = {"mask": "the column mask", "alpha": "the alpha channel of the files", "boxes": "the box columns"}
        text = f"Objects are known from {where[self.source]}."
        if self.source == "boxes":
            text += " A box holds some background, which is kept with the object."
        left_out = len(self.values) - len(self.rows)
        return text + (f" {left_out} pictures without a usable mask are no queries here." if left_out else "")


def read_masks(rows: pd.DataFrame, preprocess: Preprocess, *, max_pixels: int) -> Masks | None:
    """Read the masks that come with pictures; the first source that any picture has serves for all.

    Args:
        rows: with ``path`` and perhaps ``mask`` or the box columns.
        preprocess: of the model.
        max_pixels: larger masks are refused.

    Returns:
        The masks, or None when no source gives a usable one.

    Raises:
        ImageError: a mask that is named cannot be read or has another shape than its picture.
    """
    paths = [str(path) for path in rows["path"]]
    for source in ("mask", "alpha", "boxes"):
        found: list[Image.Image | None]
        if source == "mask":
            names = [str(name) for name in rows["mask"].fillna("")] if "mask" in rows.columns else []
            found = [_named(name, path, max_pixels) for name, path in zip(names, paths, strict=bool(names))]
        elif source == "alpha":
            found = [_alpha(path, max_pixels) for path in paths]
        else:
            found = _boxes(rows, max_pixels) if set(BOX) <= set(rows.columns) else []
        if any(one is not None for one in found):
            return _prepared(found, preprocess, source)
    return None


def _named(name: str, path: str, max_pixels: int) -> Image.Image | None:
    """Open the mask of a picture; None where the cell is empty."""
    if not name:
        return None
    places = [Path(name)] if Path(name).is_absolute() else [p / name for p in list(Path(path).parents)[:_PARENTS]]
    file = next((place for place in places if place.is_file()), None)
    if file is None:
        raise ImageError(
            f"The mask {name!r} of {path} was not found in the folders above the picture; "
            "write its path relative to one of them, or absolute."
        )
    mask = read_image(file, max_pixels=max_pixels).convert("L")
    height, width = _upright(path, max_pixels)
    # A mask may be smaller or larger than its picture, but not of another shape.
    if abs(mask.width * height - mask.height * width) > max(mask.width + height, mask.height + width):
        raise ImageError(f"The mask {file} is {mask.width} x {mask.height}, its picture {width} x {height} pixels.")
    return mask if mask.size == (width, height) else mask.resize((width, height), Image.Resampling.BILINEAR)


def _upright(path: str, max_pixels: int) -> tuple[int, int]:
    with Image.open(path) as image:
        turned = image.getexif().get(0x0112, 1) in (5, 6, 7, 8)
    height, width = image_size(path, max_pixels=max_pixels)
    return (width, height) if turned else (height, width)


def _alpha(path: str, max_pixels: int) -> Image.Image | None:
    """Return the alpha channel, as upright as the picture; None where there is none."""
    if Path(path).suffix.lower() not in _ALPHA:
        return None
    try:
        image_size(path, max_pixels=max_pixels)
        with Image.open(path) as image:
            if not image.has_transparency_data:
                return None
            turn = turn_of(image)
            alpha = image.convert("RGBA").getchannel("A")
            alpha = alpha if turn is None else alpha.transpose(turn)
    except (ImageError, OSError, ValueError, SyntaxError):
        return None  # whoever reads the picture will say so
    return alpha if alpha.getextrema() != (255, 255) else None


def _boxes(rows: pd.DataFrame, max_pixels: int) -> list[Image.Image | None]:
    import pandas as pd

    found: list[Image.Image | None] = []
    corners = rows[list(BOX)].apply(pd.to_numeric, errors="coerce").to_numpy(dtype=np.float64)
    for path, (left, top, right, bottom) in zip(rows["path"], corners, strict=True):
        if not np.isfinite([left, top, right, bottom]).all() or right <= left or bottom <= top:
            found.append(None)
            continue
        height, width = _upright(str(path), max_pixels)
        mask = Image.new("L", (width, height))
        mask.paste(255, (round(left), round(top), round(right), round(bottom)))
        found.append(mask)
    return found


def _prepared(found: list[Image.Image | None], preprocess: Preprocess, source: Source) -> Masks:
    side = preprocess.size
    values = torch.zeros(len(found), side, side)
    for row, mask in enumerate(found):
        if mask is not None:
            values[row] = preprocess.crop(to_tensor(mask.convert("RGB")))[0].float() / 255
    return usable(values, source)


def usable(values: Tensor, source: Source, stage: str = "") -> Masks:
    """Keep the masks that leave both an object and a background.

    Example:
        >>> usable(torch.stack([torch.zeros(4, 4), torch.eye(4), torch.ones(4, 4)]), "mask").rows.tolist()
        [1]
    """
    share = values.mean((1, 2))
    rows = torch.nonzero((share >= SMALLEST) & (share <= LARGEST)).flatten()
    return Masks(values, rows.numpy(), source, stage)


@torch.no_grad()
def estimate_masks(embedder: Embedder, pictures: Tensor, *, name: str, device: torch.device | str = "cpu") -> Masks:
    """Estimate where the object is: places unlike the border of the picture at a stage of a trunk.

    Args:
        embedder: its trunk is looked into; on ``device``, in evaluation mode.
        pictures: (N, 3, S, S) uint8.
        name: what the trunk is called in the sentence about the masks.
        device: of the embedder.

    Returns:
        Masks from the border gate at a half, with soft edges.

    Raises:
        ModelError: no stage of the trunk forms a map.
        LossError: likewise.
    """
    stage = gate_stage(embedder, pictures[:1], device)
    values = []
    for batch in in_batches(pictures):
        maps = embedder.features_at(embedder.preprocess.normalize(batch.to(device)), stage).as_map()
        grid = (int(maps.shape[2]), int(maps.shape[3]))
        gate = border_gate(maps.flatten(2).transpose(1, 2), grid).view(-1, 1, *grid)
        wide = functional.interpolate(1 - gate, pictures.shape[2:], mode="bilinear", align_corners=False)
        values.append(((wide[:, 0] - 0.5) * 4 + 0.5).clamp(0, 1).cpu())
    return usable(torch.cat(values), "automatic", f"{stage} of {name}")


def gate_stage(embedder: Embedder, picture: Tensor, device: torch.device | str = "cpu") -> str:
    """Choose the stage for automatic masks: the deepest with a place for every 16 pixels; two thirds up a flat trunk.

    Args:
        embedder: the model.
        picture: (1, 3, S, S) uint8.
        device: of the embedder.
    """
    stages = [stage for stage in embedder.stages if stage != "pixel"]
    features = embedder.encode_with(embedder.preprocess.normalize(picture.to(device)), stages)[1]
    sides = {}
    for stage, one in features.items():
        if one.value.ndim == 4 or not stage.startswith("stem"):
            sides[stage] = min(one.as_map().shape[2:])
    fine = [stage for stage, side in sides.items() if side * _STRIDE >= picture.shape[-1] and side >= 3]
    chosen = fine or [max(sides, key=lambda stage: sides[stage])]
    blocks = [stage for stage in chosen if stage.startswith("block")]
    return blocks[2 * len(blocks) // 3] if blocks else chosen[-1]
