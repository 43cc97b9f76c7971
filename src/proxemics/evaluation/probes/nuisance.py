"""Nuisance sensitivity: R@1 and drift as pictures change in ways that leave the object what it is.

Every change is a function of the pictures and a level alone (amplitude mixing also of a partner picture), so that two
models are asked about the same pixels. The curve begins with the unchanged picture; its area is the mean over equal
steps, by trapezoids, so that 1 (for R@1 over that of unchanged pictures) means: not affected at any level.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from proxemics.core.seeds import numpy_generator
from proxemics.evaluation.probes.background import mean
from proxemics.evaluation.probes.measure import (
    BATCH,
    Advance,
    Embed,
    Rows,
    drift,
    embed_all,
    recall_hits,
    to_bytes,
)
from proxemics.methods.couce.randomization import amplitude_randomization, amplitudes

Change = Callable[[Tensor, float, Tensor], Tensor]


@dataclass(frozen=True)
class Nuisance:
    """A change of pictures in growing levels.

    Attributes:
        name: short name.
        title: for people.
        unit: what a level counts.
        levels: from weak to strong.
        apply: pictures (B, 3, S, S) uint8, a level and partners (B, 3, S, S) uint8 to pictures of the same shape.
    """

    name: str
    title: str
    unit: str
    levels: tuple[float, ...]
    apply: Change


@dataclass(frozen=True)
class Curve:
    """What a nuisance does to a model.

    Attributes:
        nuisance: which.
        recall: R@1 at level 0 (unchanged) and at each level.
        drift: mean 1 - cos to the unchanged picture, likewise; the first is 0.
        middle: (Q, D) embeddings at the middle level.
    """

    nuisance: Nuisance
    recall: tuple[float, ...]
    drift: tuple[float, ...]
    middle: Tensor

    @property
    def kept(self) -> float:
        """Area under R@1 over R@1 of the unchanged pictures; NaN where that is 0."""
        return area(self.recall) / self.recall[0] if self.recall[0] else math.nan

    @property
    def moved(self) -> float:
        """Area under the drift."""
        return area(self.drift)


def area(values: Sequence[float]) -> float:
    """Mean of a curve over equal steps, by trapezoids.

    Example:
        >>> area((1.0, 0.5, 0.0))
        0.5
    """
    return float(np.mean([(a + b) / 2 for a, b in pairwise(values)]))


def nuisance_curves(
    embed: Embed,
    pictures: Tensor,
    classes: Rows,
    rows: Rows,
    clean: Tensor,
    *,
    nuisances: Sequence[Nuisance] | None = None,
    seed: int = 0,
    advance: Advance | None = None,
) -> list[Curve]:
    """Measure R@1 of changed queries in the unchanged gallery, and drift, at each level of each nuisance.

    Args:
        embed: the model.
        pictures: (N, 3, S, S) uint8.
        classes: (N,) class codes.
        rows: (Q,) which pictures are queries.
        clean: (N, D) embeddings of the unchanged pictures.
        nuisances: default :data:`NUISANCES`.
        seed: of the partners in amplitude mixing, which are of other classes where that can be.
        advance: called with the number of pictures embedded.

    Example:
        >>> pictures = torch.randint(0, 256, (4, 3, 8, 8), dtype=torch.uint8, generator=torch.manual_seed(0))
        >>> blind = lambda batch: torch.ones(len(batch), 2)
        >>> curves = nuisance_curves(blind, pictures, np.array([0, 0, 1, 1]), np.arange(4), torch.ones(4, 2))
        >>> {round(curve.moved, 6) for curve in curves}
        {0.0}
    """
    partners = _partners(classes, rows, seed)
    start = mean(recall_hits(clean[rows], clean, classes, rows))
    curves = []
    for nuisance in NUISANCES if nuisances is None else nuisances:
        recall, moved, kept = [start], [0.0], clean[rows]
        for number, level in enumerate(nuisance.levels):
            batches = (
                nuisance.apply(pictures[rows[at : at + BATCH]], level, pictures[partners[at : at + BATCH]])
                for at in range(0, len(rows), BATCH)
            )
            found = embed_all(embed, batches, advance)
            recall.append(mean(recall_hits(found, clean, classes, rows)))
            moved.append(drift(found, clean[rows]))
            if number == len(nuisance.levels) // 2:
                kept = found
        curves.append(Curve(nuisance, tuple(recall), tuple(moved), kept))
    return curves


def _partners(classes: Rows, rows: Rows, seed: int) -> Rows:
    draw = numpy_generator(seed, "partners")
    chosen = np.empty(len(rows), dtype=np.int64)
    for place, row in enumerate(rows):
        others = np.flatnonzero(classes != classes[row])
        chosen[place] = others[draw.integers(len(others))] if len(others) else row
    return chosen


def mix_amplitudes(pictures: Tensor, level: float, partners: Tensor) -> Tensor:
    """Keep the phases of the spectrum and move the amplitudes by ``level`` towards those of the partners."""
    strengths = torch.full((len(pictures), 1), level)
    mixed = amplitude_randomization(
        pictures.float(), bands=(0, 1), mode="mix", eta=(1.0,), strengths=strengths,
        partner_amplitudes=amplitudes(partners.float()),
    )  # fmt: skip
    return to_bytes(mixed)


def darken(pictures: Tensor, level: float, partners: Tensor) -> Tensor:
    """Take ``level`` of the light away, at the right edge; at the left edge half as much."""
    slope = torch.linspace(1 - level / 2, 1 - level, pictures.shape[-1])
    return to_bytes(pictures.float() * slope)


def turn_hue(pictures: Tensor, level: float, partners: Tensor) -> Tensor:
    """Turn the colours by ``level`` degrees about the grey axis; brightness (mean of R, G, B) stays."""
    angle = math.radians(level)
    along, across = math.cos(angle), math.sin(angle) / math.sqrt(3)
    rest = (1 - along) / 3
    matrix = torch.tensor(
        [
            [along + rest, rest - across, rest + across],
            [rest + across, along + rest, rest - across],
            [rest - across, rest + across, along + rest],
        ]
    )
    return to_bytes(torch.einsum("ij,bjhw->bihw", matrix, pictures.float()))


def blur(pictures: Tensor, level: float, partners: Tensor) -> Tensor:
    """Blur by a Gaussian whose standard deviation is ``level`` per cent of the side."""
    sigma = level / 100 * pictures.shape[-1]
    reach = min(max(1, math.ceil(3 * sigma)), min(pictures.shape[2:]) - 1)
    kernel = torch.exp(-0.5 * (torch.arange(-reach, reach + 1) / max(sigma, 1e-6)) ** 2)
    kernel = (kernel / kernel.sum()).repeat(3, 1)
    values = functional.pad(pictures.float(), (reach, reach, reach, reach), mode="reflect")
    values = functional.conv2d(values, kernel[:, None, :, None], groups=3)
    return to_bytes(functional.conv2d(values, kernel[:, None, None, :], groups=3))


def shrink(pictures: Tensor, level: float, partners: Tensor) -> Tensor:
    """Shrink the picture to ``level`` of its side; the room around it has its mean colour."""
    rows, columns = (max(1, round(level * side)) for side in pictures.shape[2:])
    small = functional.interpolate(
        pictures.float(), (rows, columns), mode="bilinear", antialias=True, align_corners=False
    )
    framed = pictures.float().mean((2, 3), keepdim=True).repeat(1, 1, *pictures.shape[2:])
    top, left = (pictures.shape[2] - rows) // 2, (pictures.shape[3] - columns) // 2
    framed[:, :, top : top + rows, left : left + columns] = small
    return to_bytes(framed)


def rotate(pictures: Tensor, level: float, partners: Tensor) -> Tensor:
    """Turn the picture by ``level`` degrees; the corners show its reflection."""
    angle = math.radians(level)
    cosine, sine = math.cos(angle), math.sin(angle)
    return _warp(pictures, [[cosine, -sine, 0], [sine, cosine, 0]])


def crop(pictures: Tensor, level: float, partners: Tensor) -> Tensor:
    """Keep the central ``level`` of the area, enlarged to the size of the picture."""
    side = math.sqrt(level)
    return _warp(pictures, [[side, 0, 0], [0, side, 0]])


def compress(pictures: Tensor, level: float, partners: Tensor) -> Tensor:
    """Write and read the picture as JPEG of quality ``level``."""
    found = torch.empty_like(pictures)
    for row, picture in enumerate(pictures):
        file = io.BytesIO()
        Image.fromarray(picture.permute(1, 2, 0).contiguous().numpy()).save(file, "JPEG", quality=int(level))
        with Image.open(file) as image:
            found[row] = torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)
    return found


def _warp(pictures: Tensor, affine: Sequence[Sequence[float]]) -> Tensor:
    values = pictures.float()
    matrix = torch.tensor(affine, dtype=torch.float32).expand(len(pictures), 2, 3)
    grid = functional.affine_grid(matrix, list(pictures.shape), align_corners=False)
    return to_bytes(
        functional.grid_sample(values, grid, mode="bilinear", padding_mode="reflection", align_corners=False)
    )


NUISANCES: tuple[Nuisance, ...] = (
    Nuisance("amplitude", "Amplitude mixing", "share of another picture", (0.25, 0.5, 0.75, 1), mix_amplitudes),
    Nuisance("light", "Less light", "share of the light taken away", (0.2, 0.4, 0.6, 0.8), darken),
    Nuisance("hue", "Hue", "degrees", (30, 60, 120, 180), turn_hue),
    Nuisance("blur", "Blur", "standard deviation, % of the side", (0.5, 1, 2, 4), blur),
    Nuisance("scale", "Smaller", "side of the shrunk picture", (0.9, 0.75, 0.6, 0.45), shrink),
    Nuisance("rotation", "Rotation", "degrees", (10, 20, 45, 90), rotate),
    Nuisance("crop", "Central crop", "share of the area kept", (0.9, 0.7, 0.5, 0.3), crop),
    Nuisance("jpeg", "JPEG", "quality", (75, 50, 25, 10), compress),
)  # fmt: skip
"""What pictures are put through."""
