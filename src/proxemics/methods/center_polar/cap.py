"""How far an embedding may go from its centroid and still belong to its class.

On the circle G(φ) = cos φ c + sin φ u the lead over competitor j is

    ⟨G, c⟩ - ⟨G, c_j⟩ = (1 - a_j) cos φ - b_j sin φ = R_j cos(φ + ψ_j)

with a_j = ⟨c_j, c⟩, b_j = ⟨c_j, u⟩, R_j = √((1 - a_j)² + b_j²), ψ_j = atan2(b_j, 1 - a_j). It is at least m up to
φ_j = arccos(m / R_j) - ψ_j. The cap is the smallest φ_j, and at most φ_max. Two matrix products, no (B, C, M) tensor.
Source: our reading.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from proxemics.core.geometry import upcast
from proxemics.losses.checks import check_inputs, check_number

BLOCK = 4096
"""Classes at once; bounds the memory at many classes."""


@torch.no_grad()
def class_preserving_cap(
    angles: Tensor,
    tangents: Tensor,
    centroids: Tensor,
    labels: Tensor,
    *,
    margin: float = 0.05,
    phi_max: float = math.radians(75),
    known: Tensor | None = None,
) -> Tensor:
    """Return the largest angle to the own centroid at which it still leads every other one by ``margin``.

    A row that does not lead by the margin where it is, or that is beyond ``phi_max`` already, has no room: its cap is
    its angle.

    Args:
        angles: (B,) θ in [0, π]: where the embeddings are.
        tangents: (B, M) unit tangents at the own centroids, from :func:`outward_tangents`.
        centroids: (C, M) floating, unit length.
        labels: (B,) integers in 0..C-1.
        margin: m >= 0, a difference of cosines.
        phi_max: largest angle in any case, radians, in [0, π].
        known: (C,) bool, centroids that count as competitors; None: all.

    Returns:
        (B,) float32 or float64, at least ``angles``; never a gradient.

    Raises:
        LossError: shapes, labels or options that do not fit.

    Example:
        >>> c = torch.eye(2)
        >>> cap = class_preserving_cap(torch.tensor([0.1]), c[1:], c, torch.tensor([0]), margin=0.0)
        >>> round(float(cap.rad2deg()), 4)
        45.0
    """
    check_number("margin", margin, low=0)
    check_number("phi_max", phi_max, low=0, high=math.pi)
    labels = check_inputs(tangents, labels, centroids)
    u, everyone = upcast(tangents), centroids.to(upcast(tangents).dtype)
    theta, own = angles.to(u), everyone[labels]
    highest = torch.full_like(theta, phi_max)
    lowest = torch.zeros_like(theta)
    for start in range(0, len(everyone), BLOCK):
        rivals = everyone[start : start + BLOCK]
        high, low = _window(1 - own @ rivals.t(), u @ rivals.t(), margin)
        numbers = torch.arange(start, start + len(rivals), device=labels.device)
        skip = labels[:, None] == numbers
        if known is not None:
            skip = skip | ~known[numbers]
        highest = torch.minimum(highest, high.masked_fill(skip, math.inf).amin(1))
        lowest = torch.maximum(lowest, low.masked_fill(skip, -math.inf).amax(1))
    return torch.where((highest > theta) & (lowest <= theta), highest, theta)


def _window(lead: Tensor, slope: Tensor, margin: float) -> tuple[Tensor, Tensor]:
    """Largest and smallest φ with R cos(φ + ψ) >= margin; (-inf, inf) where there is none."""
    radius = torch.hypot(lead, slope)
    turn = torch.atan2(slope, lead)
    half = torch.arccos((margin / radius.clamp_min(torch.finfo(radius.dtype).tiny)).clamp_max(1))
    none = (radius < margin) | (radius == 0)
    return (half - turn).masked_fill(none, -math.inf), (-half - turn).masked_fill(none, math.inf)
