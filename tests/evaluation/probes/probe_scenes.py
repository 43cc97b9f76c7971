"""Pictures whose object and background are known, and models that read one of them only."""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import Tensor

SIDE, EDGE = 32, 8
"""The object fills the square between EDGE and SIDE - EDGE."""


def make_scenes(
    classes: int = 10, each: int = 6, *, scenes: int = 6, tied: bool = False, seed: int = 0
) -> tuple[Tensor, Tensor, np.ndarray, np.ndarray]:
    """Draw pictures (N, 3, S, S), masks (N, S, S), classes and background codes; ``tied``: a background a class."""
    draw = torch.Generator().manual_seed(seed)
    inner = SIDE - 2 * EDGE
    patterns = torch.rand(classes, 3, 4, 4, generator=draw) * 255
    grounds = torch.rand(max(scenes, classes), 3, 3, 3, generator=draw) * 255
    labels = torch.arange(classes).repeat_interleave(each)
    where = labels.clone() if tied else torch.randint(scenes, (len(labels),), generator=draw)
    pictures = torch.nn.functional.interpolate(grounds[where], (SIDE, SIDE), mode="bilinear")
    objects = torch.nn.functional.interpolate(patterns[labels], (inner, inner), mode="nearest")
    pictures[:, :, EDGE:-EDGE, EDGE:-EDGE] = objects
    pictures += torch.randn(pictures.shape, generator=draw) * 4
    masks = torch.zeros(len(labels), SIDE, SIDE)
    masks[:, EDGE:-EDGE, EDGE:-EDGE] = 1
    return pictures.clamp(0, 255).to(torch.uint8), masks, labels.numpy(), where.numpy()


def _centred(values: Tensor) -> Tensor:
    return values - 127


def reads_objects(pictures: Tensor) -> Tensor:
    """The centre alone, inside the object."""
    part = pictures[:, :, EDGE + 1 : -EDGE - 1, EDGE + 1 : -EDGE - 1].float()
    return _centred(torch.nn.functional.adaptive_avg_pool2d(part, 4).flatten(1))


def reads_backgrounds(pictures: Tensor) -> Tensor:
    """The four corners alone."""
    size = 6
    corners = [pictures[:, :, a, b].float().mean((2, 3)) for a in _ends(size) for b in _ends(size)]
    return _centred(torch.cat(corners, 1))


def reads_both(pictures: Tensor) -> Tensor:
    """Object and background, with equal weight."""
    parts = [torch.nn.functional.normalize(read(pictures)) for read in (reads_objects, reads_backgrounds)]
    return torch.cat(parts, 1)


def reads_nothing(pictures: Tensor) -> Tensor:
    """The same for all."""
    return torch.ones(len(pictures), 8)


def reads_noise(pictures: Tensor) -> Tensor:
    """A direction that depends on every pixel and on nothing else: any change gives another one."""
    rows = []
    for picture in pictures:
        digest = hashlib.blake2b(picture.contiguous().numpy().tobytes(), digest_size=7).digest()
        seed = int.from_bytes(digest, "little")
        rows.append(torch.randn(64, generator=torch.Generator().manual_seed(seed)))
    return torch.stack(rows)


def _ends(size: int) -> tuple[slice, slice]:
    return slice(0, size), slice(-size, None)
