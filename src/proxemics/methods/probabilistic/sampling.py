"""Draws from the von Mises-Fisher density, differentiable in its direction and its concentration.

The cosine w to the mean direction is drawn by rejection (Wood 1994) for all rows at once; the rest of the vector is a
uniform direction in the tangent space. The constants are written in forms that hold for every κ, and w is computed in
float64. The gradient in κ is the pathwise one through w at fixed proposals; the term for the acceptance is left out,
which costs 1 to 3 % for M >= 16.

Source: Wood, Simulation of the von Mises Fisher distribution (1994); Kirchhof et al., ECCV 2022, for its use here; the
proposals by polar coordinates and the stable constants are ours. ``sampler="legacy"`` repeats a defect of a widely
copied implementation, which the published numbers of the probabilistic proxies contain: between κ = 10 and κ of the
order of M it draws points on the wrong side of the sphere.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from proxemics.core.errors import LossError
from proxemics.core.geometry import upcast
from proxemics.losses.checks import check_count
from proxemics.methods.options import check_choice
from proxemics.methods.probabilistic.normalizer import check_dim, vmf_mean_resultant_length, widest

Sampler = Literal["stable", "legacy"]

MOST_ROUNDS = 100
"""Rows that are still not accepted after so many rounds get w = A_M(κ). At least two thirds are accepted a round."""

SMALL_DIM = 16
"""Up to this dimension everything is float64: a tangent direction may be short before it is normalised."""


def sample_vmf(
    mu: Tensor,
    kappa: Tensor,
    num_samples: int,
    generator: torch.Generator | None = None,
    *,
    sampler: Sampler = "stable",
) -> Tensor:
    """Draw unit vectors u ~ vMF(μ, κ).

    Args:
        mu: (B, M) floating, the mean directions; normalised inside, a zero row counts as the first axis.
        kappa: (B,) floating, >= 0.
        num_samples: N >= 1, draws a row.
        generator: source of the random numbers, on the device of ``mu``; None: torch's own.
        sampler: ``"stable"`` is right for all κ; ``"legacy"`` only for reproducing published numbers.

    Returns:
        (N, B, M) unit vectors in float32 or float64, differentiable in ``mu`` and ``kappa``.

    Raises:
        LossError: shapes that do not fit, or no such sampler.

    Example:
        >>> mu = torch.nn.functional.one_hot(torch.tensor([2]), 8).float()
        >>> u = sample_vmf(mu, torch.tensor([1000.0]), 4, torch.Generator().manual_seed(0))
        >>> u.shape, bool((u[:, 0, 2] > 0.98).all())
        (torch.Size([4, 1, 8]), True)
    """
    check_count("num_samples", num_samples)
    if mu.ndim != 2 or kappa.shape != mu.shape[:1]:
        raise LossError(
            "sample_vmf needs mu of shape (B, M) and kappa of shape (B,), "
            f"got {tuple(mu.shape)} and {tuple(kappa.shape)}."
        )
    check_dim(mu.shape[1])
    check_choice("sampler", sampler, get_args(Sampler))
    with torch.autocast(mu.device.type, enabled=False):
        values = upcast(mu)
        directions = _unit(widest(values) if mu.shape[1] <= SMALL_DIM else values)
        along, across = _cosines(upcast(kappa), num_samples, mu.shape[1], generator, sampler)
        along, across = along.to(directions.dtype), across.to(directions.dtype)
        draws = along[..., None] * directions + across[..., None] * _tangents(directions, num_samples, generator)
        return draws.to(values.dtype)


def _unit(mu: Tensor) -> Tensor:
    """Normalise rows; rows of length zero become the first axis, without a gradient."""
    norms = torch.linalg.vector_norm(mu, dim=-1, keepdim=True)
    first = torch.zeros_like(mu)
    first[:, 0] = 1
    return torch.where(norms > 0, mu / torch.where(norms > 0, norms, 1.0), first)


def _tangents(mu: Tensor, num_samples: int, generator: torch.Generator | None) -> Tensor:
    """Uniform unit vectors (N, B, M) orthogonal to ``mu`` (B, M)."""
    noise = torch.randn(num_samples, *mu.shape, dtype=mu.dtype, device=mu.device, generator=generator)
    flat = noise - (noise * mu).sum(-1, keepdim=True) * mu
    return torch.nn.functional.normalize(flat, dim=-1)


def _cosines(
    kappa: Tensor, num_samples: int, dim: int, generator: torch.Generator | None, sampler: str
) -> tuple[Tensor, Tensor]:
    """Return w = ⟨u, μ⟩ and √(1 - w²), both (N, B) float64, differentiable in ``kappa`` (B,)."""
    m = dim - 1
    kappa = widest(kappa)
    root = torch.sqrt(4 * kappa.square() + m * m)
    b = m / (2 * kappa + root)
    if sampler == "legacy":
        # The copied code blends from κ = 10 to 11 into what holds for κ >> M only.
        share = (kappa - 10).clamp(0, 1)
        b = share * m / (4 * kappa.clamp_min(1e-9)) + (1 - share) * b
    with torch.no_grad():
        twice_ab = b * (m + 2 * kappa + root) / 2
        constant = 2 * twice_ab / (1 + b) - m * math.log(m)
        eps, missed = _accepted(b, twice_ab, constant, m, num_samples, generator)
    below = 1 - (1 - b) * eps
    along = (1 - (1 + b) * eps) / below
    # 1 - w = 2bε / below and 1 + w = 2(1-ε) / below, so nothing cancels near w = ±1.
    across = 2 * b.sqrt() * torch.sqrt(eps * (1 - eps)) / below
    if missed.any():
        mean = vmf_mean_resultant_length(kappa, dim)
        along = torch.where(missed, mean, along)
        across = torch.where(missed, (1 - mean.square()).clamp_min(1e-12).sqrt(), across)
    return along, across


def _accepted(
    b: Tensor, twice_ab: Tensor, constant: Tensor, m: int, num_samples: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Rejection, all rows at once: the accepted proposals ε (N, B), and which rows were never accepted (N, B)."""
    size = (num_samples, len(b))
    b, twice_ab, constant = (values.expand(size).reshape(-1) for values in (b, twice_ab, constant))
    eps = torch.full((b.numel(),), 0.5, dtype=b.dtype, device=b.device)
    open_rows = torch.arange(b.numel(), device=b.device)
    for _ in range(MOST_ROUNDS):
        draws = torch.rand(3, len(open_rows), dtype=b.dtype, device=b.device, generator=generator)
        proposal = symmetric_beta(draws[0], draws[1], m)
        t = twice_ab[open_rows] / (1 - (1 - b[open_rows]) * proposal)
        accepted = m * torch.log(t) - t + constant[open_rows] >= torch.log(draws[2])
        eps[open_rows[accepted]] = proposal[accepted]
        open_rows = open_rows[~accepted]
        if not len(open_rows):
            break
    missed = torch.zeros(b.numel(), dtype=torch.bool, device=b.device)
    missed[open_rows] = True
    return eps.view(size), missed.view(size)


def symmetric_beta(uniform_a: Tensor, uniform_b: Tensor, m: int) -> Tensor:
    """Turn two uniform variables into one of Beta(m/2, m/2), exactly, for whole m >= 1.

    A uniform point on the sphere in R^{m+1} has first coordinate x with (1+x)/2 ~ Beta(m/2, m/2), and its first two
    coordinates are r cos φ, r sin φ with 1 - r² = U^{2/(m-1)}.

    Args:
        uniform_a: any shape, in [0, 1).
        uniform_b: the same shape, in [0, 1).
        m: whole number >= 1.

    Example:
        >>> symmetric_beta(torch.tensor([0.3]), torch.tensor([0.25]), 7)
        tensor([0.5000])
    """
    turn = torch.cos(2 * math.pi * uniform_b)
    if m == 1:
        return (1 + turn) / 2
    # 1 - u is in (0, 1], so that the logarithm is finite.
    radius = torch.sqrt(-torch.expm1(torch.log1p(-uniform_a) * (2 / (m - 1))))
    return (1 + radius * turn) / 2
