"""The geometry of spherical embedding expansion: a simplex around a proxy, with the embedding as one of its corners.

For unit z and w let c = ⟨w, z⟩, r = z - c w and ρ = |r|. All points c w + ρ μ with unit μ ⟂ w have the cosine c to w.
Taking for μ the n+1 corners of a regular simplex whose first corner is r/ρ gives z itself and n points that are as far
from it and from each other as can be:

    z*_k = c w + ρ μ*_k,   ⟨μ*_i, μ*_j⟩ = -1/n,   ⟨z*_i, z*_j⟩ = c² - (1-c²)/n,   mean of all n+1 = c w.

The simplex stands in an n-dimensional subspace of w^⊥ that contains r. Instead of an orthonormalisation a sample, one
frame U_0..U_n of R^M is shared and moved by two reflections a sample, U_0 → ±w and then U_1 → ±r/ρ. All of it is one
product with the shared frame and an update of rank 3. A Haar-random frame stays uniform in w^⊥ ∩ r^⊥ for each sample;
samples of one batch share it, and every step draws a new one.

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
    orthonormal: Tensor = torch.linalg.qr(noise)[0]
    return orthonormal.t()


def _expand(z: Tensor, w: Tensor, frame: Tensor) -> Tensor:
    cosine = (z * w).sum(-1, keepdim=True)
    residual = torch.addcmul(z, cosine, w, value=-1)
    rho = torch.linalg.vector_norm(residual, dim=-1, keepdim=True)
    basis = torch.stack([w, residual], 1)
    in_frame, on_basis = _coefficients((basis @ frame.t()).unbind(1), cosine, rho)
    points = in_frame.flatten(0, 1) @ frame
    return points.view(len(z), -1, z.shape[1]).baddbmm_(on_basis, basis)


def _coefficients(dots: tuple[Tensor, ...], cosine: Tensor, rho: Tensor) -> tuple[Tensor, Tensor]:
    """Write the points as a combination of the frame (k, n, n+1) and of w and r (k, n, 2), from inner products alone.

    The mirrors are h1 = i1 (U_0 - s1 w) and h2 = i2 (H1 U_1 - s2 a) with a = r/ρ; the signs keep the differences long, so
    that i1 and i2 are at most 1/√2. Reflected frame vectors are q_l = U_l - 2 d_l h1 - 2 t_l h2.
    """
    on_w, on_a = dots[0], dots[1] / rho.clamp_min(SHORT)
    n = on_w.shape[1] - 1
    s1, i1 = _mirror(on_w[:, :1])
    d = on_w[:, 1:] * (-i1 * s1)
    d1, h1_a = d[:, :1], i1 * on_a[:, :1]
    s2, i2 = _mirror(on_a[:, 1:2] - 2 * d1 * h1_a)
    # <h1, h2>, and <U_l, h2> from <U_l, H1 U_1> = [l = 1] - 2 d_1 d_l.
    between = -i2 * (d1 + s2 * h1_a)
    unit = torch.eye(1, n, dtype=d.dtype, device=d.device)
    t = i2 * (unit - 2 * d1 * d - s2 * on_a[:, 1:]) - 2 * between * d

    # Corners B in the reflected frame; where s2 = -1 its first axis points against r, and is turned round.
    corners = torch.tensor(simplex(n), dtype=d.dtype, device=d.device)
    flips = 1 + (s2 - 1) * unit
    on_d, on_t = ((d * flips) @ corners.t(), (t * flips) @ corners.t())
    on_h1 = 4 * d1 * i2 * on_t - 2 * on_d
    in_frame = torch.cat([(i1 * on_h1)[..., None], corners * flips[:, None]], -1)
    in_frame = in_frame - torch.nn.functional.pad((2 * i2 * on_t)[..., None], (1, n - 1))
    on_basis = torch.stack([cosine - rho * i1 * s1 * on_h1, 2 * i2 * s2 * on_t], -1)
    return in_frame * rho[..., None], on_basis


def _mirror(dot: Tensor) -> tuple[Tensor, Tensor]:
    """The sign s = ±1 that keeps unit vectors with this inner product apart, x - s y, and the inverse of that length."""
    away = dot.abs()
    return torch.where(dot > 0, -1.0, 1.0).to(dot.dtype), torch.rsqrt(2 + 2 * away)
