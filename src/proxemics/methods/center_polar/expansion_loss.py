"""What an expander minimises: come to the angle asked for, and stay in the class.

    L_C3E = mean_i [φ*_i - θ̃_i]₊ + λ_sem mean_i [m + max_{j≠y_i} ⟨z̃_i, c_j⟩ - ⟨z̃_i, c_{y_i}⟩]₊ - λ_div min(d, 1/2)

d is the mean distance of two draws of the generator. Source: our reading; the hinges keep the loss bounded.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from proxemics.core.geometry import upcast
from proxemics.core.ranks import mean_over_ranks
from proxemics.methods.center_polar.geodesic import angles_between

FAR_ENOUGH = 0.5
"""Diversity counts up to here, in units of full scale."""


def expansion_loss(
    units: Tensor,
    labels: Tensor,
    centroids: Tensor,
    targets: Tensor,
    *,
    margin: float = 0.05,
    lambda_sem: float = 1.0,
    known: Tensor | None = None,
) -> Tensor:
    """Return the first two terms of L_C3E.

    Args:
        units: (B, M) floating, unit length: z̃.
        labels: (B,) int64 in 0..C-1.
        centroids: (C, M) floating, unit length.
        targets: (B,) φ*, radians.
        margin: m.
        lambda_sem: λ_sem.
        known: (C,) bool, centroids that count as competitors; None: all.

    Returns:
        Scalar in float32 or float64.

    Example:
        >>> z, c = torch.tensor([[1.0, 0.0]]), torch.eye(2)
        >>> round(float(expansion_loss(z, torch.tensor([0]), c, torch.tensor([0.3]))), 6)
        0.3
    """
    z = upcast(units)
    everyone = centroids.to(z.dtype)
    near = torch.relu(targets.to(z.dtype) - angles_between(z, everyone[labels])).mean()
    if lambda_sem == 0:
        return near
    own, rival = own_and_best_rival(z @ everyone.t(), labels, known)
    return near + lambda_sem * torch.relu(margin + rival - own).mean()


def own_and_best_rival(cosines: Tensor, labels: Tensor, known: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the cosine to the own centroid and the largest to another known one (-inf where there is none).

    Args:
        cosines: (B, C).
        labels: (B,) int64.
        known: (C,) bool; None: all.

    Example:
        >>> own_and_best_rival(torch.tensor([[0.9, 0.5, 0.2]]), torch.tensor([0]))
        (tensor([0.9000]), tensor([0.5000]))
    """
    own = cosines.gather(1, labels[:, None])
    others = cosines if known is None else cosines.masked_fill(~known, -math.inf)
    return own[:, 0], others.scatter(1, labels[:, None], -math.inf).amax(1)


def diversity(left: Tensor, right: Tensor, scale: Tensor) -> Tensor:
    """Return min(mean |x̃ - x̃'|, 1/2) of two draws, in units of full scale; without a gradient once it is reached.

    Args:
        left: (b, 3, H, W) pictures, the own share.
        right: (b, 3, H, W).
        scale: (3, 1, 1) distance from black to white in the units of the pictures.

    Returns:
        Scalar: the mean of the own share, or 1/2 where the mean over all processes reaches it.

    Example:
        >>> float(diversity(torch.zeros(1, 3, 2, 2), torch.ones(1, 3, 2, 2), torch.full((3, 1, 1), 4.0)))
        0.25
    """
    mean = ((left - right).abs() / scale).mean()
    return torch.where(mean_over_ranks(mean) < FAR_ENOUGH, mean, FAR_ENOUGH)
