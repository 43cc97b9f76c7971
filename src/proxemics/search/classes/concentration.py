"""How tightly the pictures of a class lie together: the concentration κ of a von Mises-Fisher density.

The mean cosine of two different pictures of one class is A_M(κ)², so the square root of its average over all such pairs
estimates the mean resultant length without the upward bias that the length of the mean itself has for few pictures.
A_M is inverted by Newton's method (Sra 2012) from the starting point of Banerjee et al. (2005).
"""

from __future__ import annotations

import math

import torch

from proxemics.methods.probabilistic import vmf_mean_resultant_length

_STEPS = 50
_LARGEST = 1e9


def concentration(length: float, dim: int) -> float:
    """Return κ with A_M(κ) = ``length``.

    Args:
        length: mean resultant length in [0, 1).
        dim: M >= 2.

    Returns:
        κ >= 0; 1e9 at most.

    Example:
        >>> round(concentration(0.6117, 512), 0), concentration(0.0, 512)
        (500.0, 0.0)
    """
    if length <= 0:
        return 0.0
    if length >= 1:
        return _LARGEST
    kappa = length * (dim - length**2) / (1 - length**2)
    for _ in range(_STEPS):
        here = float(vmf_mean_resultant_length(torch.tensor(kappa, dtype=torch.float64), dim))
        slope = 1 - here**2 - (dim - 1) / kappa * here
        step = (here - length) / slope if slope > 0 else 0.0
        kappa = min(max(kappa - step, kappa / 2), _LARGEST)
        if abs(step) <= 1e-10 * kappa:
            break
    return kappa


def pair_length(square: float, weight: float, squares: float) -> float | None:
    """Return the mean resultant length from the average cosine of different pictures.

    Args:
        square: squared length of the weighted sum of unit embeddings; sums over classes are allowed for all three.
        weight: squared sum of the weights.
        squares: sum of the squared weights.

    Returns:
        In [0, 1]; None with a single picture.

    Example:
        >>> pair_length(2.0, 4.0, 2.0), pair_length(1.0, 1.0, 1.0) # two pictures at a right angle; one
        (0.0, None)
    """
    pairs = weight - squares
    return math.sqrt(min(max((square - squares) / pairs, 0.0), 1.0)) if pairs > 1e-12 * weight else None
