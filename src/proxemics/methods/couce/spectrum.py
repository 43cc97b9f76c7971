"""Frequencies of a map in bands: which cell of the half spectrum belongs to which band, and what it weighs.

The real Fourier transform of an (H, W) map has H x (W//2+1) cells. A cell with frequencies (f_y, f_x), in cycles per
cell of the map, has the radius r = √(f_y² + f_x²) / √½ in [0, 1]: 0 is the mean, 1 the finest chequerboard. Bands are
rings of that radius.

Source: our reading of "multi-scale" in the abstract of CouCE (arXiv 2606.30365).
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from proxemics.core.errors import LossError
from proxemics.losses.checks import check_number

Bands = tuple[float, ...]


def check_bands(bands: Bands) -> None:
    """Refuse edges that do not rise from 0 to 1.

    Raises:
        LossError: with the edges.

    Example:
        >>> check_bands((0, 0.5))
        Traceback (most recent call last):
        ...
        proxemics.core.errors.LossError: bands=(0, 0.5): the edges must rise from 0 to 1, as in (0, 0.5, 1).
    """
    for edge in bands:
        check_number("an edge of bands", edge, low=0, high=1)
    rising = len(bands) >= 2 and all(low < high for low, high in pairwise(bands))
    if not rising or bands[0] != 0 or bands[-1] != 1:
        raise LossError(f"bands={tuple(bands)}: the edges must rise from 0 to 1, as in (0, 0.5, 1).")


def radius(height: int, width: int) -> Tensor:
    """Return the radius r of every cell of the half spectrum.

    Args:
        height: H >= 1.
        width: W >= 1.

    Returns:
        (H, W//2+1) float64 in [0, 1].

    Example:
        >>> radius(2, 2)
        tensor([[0.0000, 0.7071],
                [0.7071, 1.0000]], dtype=torch.float64)
    """
    rows = torch.fft.fftfreq(height, dtype=torch.float64)[:, None]
    columns = torch.fft.rfftfreq(width, dtype=torch.float64)
    squared: Tensor = (rows**2 + columns**2) * 2
    return squared.sqrt()


def band_index(height: int, width: int, bands: Bands) -> Tensor:
    """Return the number of the band of every cell; a band has its lower edge, the last one both.

    Args:
        height: H >= 1.
        width: W >= 1.
        bands: edges from 0 to 1, n_b + 1 of them.

    Returns:
        (H, W//2+1) int64 in 0..n_b-1.

    Example:
        >>> torch.bincount(band_index(8, 8, (0, 1 / 3, 2 / 3, 1)).flatten()).tolist()
        [6, 20, 14]
    """
    check_bands(bands)
    inner = torch.tensor(bands[1:-1], dtype=torch.float64)
    return torch.bucketize(radius(height, width), inner, right=True)


def band_masks(height: int, width: int, bands: Bands) -> Tensor:
    """Return the bands as masks that sum to one in every cell.

    Returns:
        (n_b, H, W//2+1) float64, 0 or 1.

    Example:
        >>> band_masks(7, 7, (0, 0.5, 1)).sum(0).unique()
        tensor([1.], dtype=torch.float64)
    """
    index = band_index(height, width, bands)
    return (index == torch.arange(len(bands) - 1)[:, None, None]).double()


def energy_weights(height: int, width: int) -> Tensor:
    """Return how often a cell of the half spectrum stands in the whole one: ``|F|² = Σ weight · |X|²`` (orthonormal).

    Args:
        height: H >= 1.
        width: W >= 1.

    Returns:
        (H, W//2+1) float64, 1 in the first column and in the last of an even width, else 2.

    Example:
        >>> energy_weights(1, 4).tolist(), energy_weights(1, 5).tolist()
        ([[1.0, 2.0, 1.0]], [[1.0, 2.0, 2.0]])
    """
    weights = torch.full((height, width // 2 + 1), 2.0, dtype=torch.float64)
    weights[:, 0] = 1
    if width % 2 == 0:
        weights[:, -1] = 1
    return weights


def noise_floor(power: Tensor) -> Tensor:
    """Return the power under which a coefficient of a map is rounding noise and has no phase.

    Args:
        power: (..., H, W//2+1) float32 or float64, squared amplitudes.

    Returns:
        (..., 1, 1), at least 1e-24: amplitudes of 8 machine epsilons of their root mean square, and of 1e-12.

    Example:
        >>> float(noise_floor(torch.zeros(1, 4, 3)))
        1.0000000...e-24
    """
    return power.mean((-2, -1), keepdim=True).mul_((8 * torch.finfo(power.dtype).eps) ** 2).clamp_min_(1e-24)
