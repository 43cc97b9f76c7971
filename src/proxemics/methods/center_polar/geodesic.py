"""Moving along great circles, away from a centroid.

    θ = angle(z, c),  u = (z - cos θ c) / sin θ,  G(z; Δ) = cos(θ + Δ) c + sin(θ + Δ) u

G has unit length, ⟨G, c⟩ = cos(θ + Δ) and ⟨G, z⟩ = cos Δ. Where sin θ < 1e-3 the outward direction is lost in rounding
and a random tangent takes its place; everything but ⟨G, z⟩ still holds there. Angles come from chords, not from arccos,
so that float32 keeps them near 0 and near π. Source: our reading of "class-centric centrifugal expansion".
"""

from __future__ import annotations

import torch
from torch import Tensor

from proxemics.core.errors import LossError
from proxemics.core.geometry import normalize, upcast

NEAR = 1e-3
"""Sine of the angle to the centroid (or to its antipode) below which the tangent is random."""


def angles_between(left: Tensor, right: Tensor) -> Tensor:
    """Return the angles between unit vectors, in radians.

    Args:
        left: (..., M) floating, unit length.
        right: (..., M) floating, unit length.

    Returns:
        (...) in [0, π], float32 or float64: 2 atan2(|a - b|, |a + b|), with finite gradients everywhere.

    Example:
        >>> a, b = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
        >>> round(float(angles_between(a, b)), 6), float(angles_between(a, a))
        (1.570796, 0.0)
    """
    left, right = upcast(left), upcast(right)
    return 2 * torch.atan2(
        torch.linalg.vector_norm(left - right, dim=-1), torch.linalg.vector_norm(left + right, dim=-1)
    )


def outward_tangents(embeddings: Tensor, centroids: Tensor, noise: Tensor | None = None) -> Tensor:
    """Return the unit tangents at the centroids that point to the embeddings.

    Args:
        embeddings: (B, M) floating, unit length.
        centroids: (B, M) floating, unit length: one for each embedding.
        noise: (B, M), its tangent part is taken where an embedding lies on its centroid or opposite; None: zeros there.

    Returns:
        (B, M) in float32 or float64, orthogonal to the centroids.

    Example:
        >>> outward_tangents(torch.tensor([[0.6, 0.8]]), torch.tensor([[1.0, 0.0]]))
        tensor([[0., 1.]])
    """
    z, c = upcast(embeddings), upcast(centroids)
    # Starting from z - c near the centroid, and from z + c near its antipode, keeps the digits that z itself has lost.
    chord = torch.where((z * c).sum(-1, keepdim=True) < 0, z + c, z - c)
    across = _tangent_part(chord, c)
    near = torch.linalg.vector_norm(across, dim=-1, keepdim=True) < NEAR
    spare = torch.zeros_like(across) if noise is None else normalize(_tangent_part(noise.to(across), c.detach()))
    return torch.where(near, spare, normalize(across))


def _tangent_part(vectors: Tensor, centroids: Tensor) -> Tensor:
    return vectors - (vectors * centroids).sum(-1, keepdim=True) * centroids


def on_circle(centroids: Tensor, tangents: Tensor, angle: Tensor) -> Tensor:
    """Return cos φ c + sin φ u.

    Args:
        centroids: (B, M) c.
        tangents: (B, M) u.
        angle: (B,) φ, radians.

    Example:
        >>> on_circle(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]]), torch.tensor([0.0]))
        tensor([[1., 0.]])
    """
    return torch.cos(angle)[:, None] * centroids + torch.sin(angle)[:, None] * tangents


def centrifugal_step(
    embeddings: Tensor,
    centroids: Tensor,
    angle: float | Tensor,
    generator: torch.Generator | None = None,
    *,
    noise: Tensor | None = None,
) -> Tensor:
    """Move each embedding by ``angle`` along the great circle that leads away from its centroid.

    Args:
        embeddings: (B, M) floating, unit length, M >= 2.
        centroids: (B, M) floating, unit length: one for each embedding.
        angle: Δ, radians; one number, or (B,). Where it is 0 the embedding is returned as it is.
        generator: draws the tangents where sin θ < 1e-3; on the device of the embeddings.
        noise: (B, M) normal numbers to use in place of the generator.

    Returns:
        (B, M) in float32 or float64, unit length, differentiable.

    Raises:
        LossError: shapes that do not fit, or M = 1, where there is no direction to go.

    Example:
        >>> z, c = torch.tensor([[1.0, 2, 2]]) / 3, torch.tensor([[2.0, 1, 2]]) / 3
        >>> print(centrifugal_step(z, c, 0.2).numpy().round(4))
        [[0.1661 0.7658 0.6213]]
    """
    if embeddings.ndim != 2 or embeddings.shape != centroids.shape or embeddings.shape[1] < 2:
        raise LossError(
            f"Embeddings and centroids must both be (B, M) with M >= 2, got {tuple(embeddings.shape)} and "
            f"{tuple(centroids.shape)}. Take the centroid of each row: centroids[labels]."
        )
    z, c = upcast(embeddings), upcast(centroids)
    step = torch.as_tensor(angle, dtype=z.dtype, device=z.device)
    if step.ndim and step.shape != (len(z),):
        raise LossError(f"Angles must be one number or ({len(z)},), got {tuple(step.shape)}. Give one angle a row.")
    if noise is None:
        noise = torch.randn(z.shape, generator=generator, device=z.device, dtype=z.dtype)
    moved = on_circle(c, outward_tangents(z, c, noise), angles_between(z, c) + step)
    return torch.where((step == 0).expand(len(z))[:, None], z, moved)
