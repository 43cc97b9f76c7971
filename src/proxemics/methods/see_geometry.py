"""The geometry of spherical embedding expansion: a simplex around a proxy, with the embedding as one of its corners.

For unit z and w let c = ⟨w, z⟩, r = z - c w and ρ = |r|. All points c w + ρ μ with unit μ ⟂ w have the cosine c to w.
Taking for μ the n+1 corners of a regular simplex whose first corner is r/ρ gives z itself and n points that are as far
from it and from each other as can be:

    z*_k = c w + ρ μ*_k,   ⟨μ*_i, μ*_j⟩ = -1/n,   ⟨z*_i, z*_j⟩ = c² - (1-c²)/n,   mean of all n+1 = c w.

The simplex stands in an n-dimensional subspace of w^⊥ that contains r. Instead of an orthonormalisation a sample, one
frame U_0..U_n of R^M is shared and moved by two reflections a sample, U_0 → ±w and then U_1 → ±r/ρ. Folded together,
that is the shared simplex times ρ and an update of rank 4. A Haar-random frame stays uniform in w^⊥ ∩ r^⊥ for each
sample; samples of one batch share it, and every step draws a new one.

Source: Le & Woo, "Spherical Embedding Expansion", PAKDD 2024, for the points; the folded construction is ours.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from proxemics.core.errors import LossError
from proxemics.core.geometry import normalize
from proxemics.losses.checks import check_count
from proxemics.methods.options import check_choice

Frame = Literal["random", "fixed"]
"""random: a new frame at every call (release); fixed: the first axes (our reading)."""

SHORT = 1e-6
"""Residuals ρ shorter than this have no direction that could be trusted; their synthetic points are within it of z."""


def spherical_expansion(
    embeddings: Tensor,
    proxies: Tensor,
    num_synthetic: int,
    generator: torch.Generator | None = None,
    *,
    frame: Frame | Tensor = "random",
) -> Tensor:
    """Return unit vectors as near to each proxy as its embedding is, and as far from it and each other as can be.

    Args:
        embeddings: (k, M) floating, any length.
        proxies: (k, M) floating, any length: the own proxy of each embedding.
        num_synthetic: n >= 1, at most M - 1.
        generator: source of the random frame, on the device of the embeddings.
        frame: ``"random"``, ``"fixed"``, or n+1 orthonormal rows (n+1, M). For n = 1 the point is the mirror image of
            the embedding, whatever the frame.

    Returns:
        (k, n, M) in float32 or float64, differentiable in embeddings and proxies.

    Raises:
        LossError: shapes that do not fit, or n >= M.

    Example:
        >>> z, w = torch.tensor([[1.0, 2.0, 2.0]]) / 3, torch.tensor([[2.0, 1.0, 2.0]]) / 3
        >>> spherical_expansion(z, w, 1)
        tensor([[[ 0.8519, -0.0741,  0.5185]]])
    """
    if embeddings.ndim != 2 or proxies.shape != embeddings.shape:
        raise LossError(
            f"Embeddings and their proxies must have one shape (k, M), got {tuple(embeddings.shape)} and "
            f"{tuple(proxies.shape)}."
        )
    check_room(num_synthetic, embeddings.shape[1])
    with torch.autocast(embeddings.device.type, enabled=False):
        z, w = normalize(embeddings), normalize(proxies)
        return _expand(z, w, _frame(frame, num_synthetic, z, generator))


def check_room(num_synthetic: int, dim: int) -> None:
    """Refuse more synthetic points than a simplex has corners in this dimension.

    Raises:
        LossError: n is not a whole number from 1 to M - 1.

    Example:
        >>> check_room(8, 8)
        Traceback (most recent call last):
        ...
        proxemics.core.errors.LossError: 8 synthetic points need an embedding of dimension 9 or more, got 8; ...
    """
    check_count("num_synthetic", num_synthetic)
    if num_synthetic >= dim:
        raise LossError(
            f"{num_synthetic} synthetic points need an embedding of dimension {num_synthetic + 1} or more, got {dim}; "
            f"use at most {dim - 1}."
        )


@lru_cache(maxsize=32)
def simplex(num_synthetic: int) -> tuple[tuple[float, ...], ...]:
    """Return corners 2..n+1 of a regular simplex in R^n whose first corner is the first axis.

    The rows below the first of the lower Cholesky factor L of (1+1/n) I - 11ᵀ/n, and minus the sum of all its rows.

    Args:
        num_synthetic: n >= 1.

    Returns:
        n rows of n numbers: unit, -1/n to each other and to the first axis.

    Example:
        >>> [[round(value, 4) for value in row] for row in simplex(2)]
        [[-0.5, 0.866], [-0.5, -0.866]]
    """
    n = num_synthetic
    factor = np.linalg.cholesky((1 + 1 / n) * np.eye(n) - np.ones((n, n)) / n) if n > 1 else np.ones((1, 1))
    corners = np.concatenate([factor[1:], -factor.sum(0, keepdims=True)])
    return tuple(tuple(float(value) for value in row) for row in corners)


def _frame(frame: Frame | Tensor, n: int, like: Tensor, generator: torch.Generator | None) -> Tensor:
    """n+1 orthonormal rows (n+1, M)."""
    dim = like.shape[1]
    if isinstance(frame, Tensor):
        if frame.shape != (n + 1, dim):
            raise LossError(f"A frame for {n} synthetic points has shape ({n + 1}, {dim}), got {tuple(frame.shape)}.")
        return frame.to(like)
    check_choice("frame", frame, get_args(Frame))
    if frame == "fixed":
        return torch.eye(n + 1, dim, dtype=like.dtype, device=like.device)
    noise = torch.randn(dim, n + 1, dtype=like.dtype, device=like.device, generator=generator)
    columns, triangle = torch.linalg.qr(noise)
    # A positive diagonal makes the frame uniform; LAPACK chooses its signs by the data.
    signed: Tensor = columns * torch.where(triangle.diagonal() < 0, -1.0, 1.0)
    return signed.t()


def _expand(z: Tensor, w: Tensor, frame: Tensor) -> Tensor:
    pair = frame[:2]
    cosine = torch.linalg.vecdot(z, w)[:, None]
    residual = torch.addcmul(z, cosine, w, value=-1)
    rho = torch.linalg.vector_norm(residual, dim=-1, keepdim=True)
    # G_j: the corners in the frame, without their share of -1/n along r.
    shared = _off_axis(len(frame) - 1, z.dtype, z.device) @ frame[2:]
    rows = torch.cat([pair, shared])
    on_w, on_a = (rows @ w.t()).t(), (rows @ residual.t()).t() / rho.clamp_min(SHORT)
    coefficients = _coefficients(on_w, on_a, cosine, rho)
    basis = torch.cat([pair.expand(len(z), -1, -1), w[:, None], residual[:, None]], 1)
    points: Tensor = rho[:, None] * shared
    points.baddbmm_(coefficients, basis)
    return points


def _coefficients(on_w: Tensor, on_a: Tensor, cosine: Tensor, rho: Tensor) -> Tensor:
    """Write the points less ρ G_j as combinations (k, n, 4) of U_0, U_1, w and r, from inner products alone.

    The mirrors are h1 = i1 U_0 + k1 w and h2 = i2 H1 U_1 + k2 a with a = r/ρ; k = ±i has the sign for which the sum is
    long, so that i is at most 1/√2. Reflected, G_j becomes G_j - 2 D_j h1 - 2 T_j h2, and the points are
    z*_j = c w - r/n + ρ (G_j - 2 D_j h1 - 2 T_j h2).

    Args:
        on_w: (k, 2+n) inner products of w with U_0, U_1 and G_1..G_n.
        on_a: (k, 2+n) the same of a.
        cosine: (k, 1) c.
        rho: (k, 1) ρ.
    """
    i1, k1 = _mirror(on_w[:, :1])
    d1, d = k1 * on_w[:, 1:2], k1 * on_w[:, 2:]
    twice = 2 * i1 * on_a[:, :1]  # 2 <h1, a>
    i2, k2 = _mirror(on_a[:, 1:2] - twice * d1)
    t = -2 * k2 * torch.addcmul(on_a[:, 2:], twice, d, value=-1)
    on_h1 = -2 * rho * torch.addcmul(d, d1 * i2, t)
    return torch.stack([i1 * on_h1, rho * i2 * t, torch.addcmul(cosine, k1, on_h1), k2 * t - 1 / d.shape[1]], -1)


def _mirror(dot: Tensor) -> tuple[Tensor, Tensor]:
    """Scale x ± y of unit vectors with inner product ``dot`` to length 1: the factor, and the factor with the sign."""
    factor = torch.rsqrt(2 + 2 * dot.abs())
    return factor, torch.copysign(factor, dot)


@lru_cache(maxsize=32)
def _off_axis(num_synthetic: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Corners 2..n+1 without their first coordinate, which is -1/n: (n, n-1)."""
    return torch.tensor(simplex(num_synthetic), dtype=dtype, device=device)[:, 1:]
