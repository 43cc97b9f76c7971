"""Phase 1 before anything moves: where the clean samples are, and where C3E wants them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from proxemics.methods.center_polar.cap import class_preserving_cap
from proxemics.methods.center_polar.expansion_loss import expansion_loss, own_and_best_rival
from proxemics.methods.center_polar.geodesic import angles_between, outward_tangents
from proxemics.methods.center_polar.schedule import target_angles


@dataclass(frozen=True)
class Plan:
    """What phase 1 works with; nothing carries a gradient.

    Attributes:
        centroids: (C, M).
        known: (C,) bool.
        labels: (B,) int64.
        angles: (B,) θ of the clean embeddings to their centroids, radians.
        caps: (B,) the class-preserving caps.
        targets: (B,) φ*.
        noise: (B, M) normal numbers, for random tangents.
    """

    centroids: Tensor
    known: Tensor
    labels: Tensor
    angles: Tensor
    caps: Tensor
    targets: Tensor
    noise: Tensor

    def loss(self, units: Tensor, rows: Tensor | None = None, *, margin: float, lambda_sem: float) -> Tensor:
        """Return L_C3E of expanded embeddings (n, M) of ``rows`` (n,) of the batch, without its diversity."""
        return expansion_loss(
            units,
            self.labels if rows is None else self.labels[rows],
            self.centroids,
            self.targets if rows is None else self.targets[rows],
            margin=margin,
            lambda_sem=lambda_sem,
            known=self.known,
        )

    def accuracy(self, units: Tensor) -> Tensor:
        """Return the share of embeddings (B, M) that are nearest to their own centroid, a 0-d tensor."""
        own, rival = own_and_best_rival(units @ self.centroids.t(), self.labels, self.known)
        return (own >= rival).to(units.dtype).mean()


@torch.no_grad()
def make_plan(
    units: Tensor,
    labels: Tensor,
    centroids: Tensor,
    known: Tensor,
    generator: torch.Generator,
    *,
    delta: float | Tensor,
    margin: float,
    phi_max_deg: float,
) -> Plan:
    """Measure angles, find caps and draw targets, for the joined batch.

    Args:
        units: (B, M) unit embeddings.
        labels: (B,) int64.
        centroids: (C, M), unit length.
        known: (C,) bool.
        generator: of the step.
        delta: Δ_t, radians.
        margin: m_s of the cap.
        phi_max_deg: φ_max, degrees.

    Example:
        >>> z = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> y, known = torch.arange(2), torch.ones(2, dtype=torch.bool)
        >>> plan = make_plan(
        ...     z, y, z, known, torch.Generator().manual_seed(0), delta=9.0, margin=0.0, phi_max_deg=30.0
        ... )
        >>> plan.angles.tolist(), plan.targets.rad2deg().round().tolist(), float(plan.accuracy(z))
        ([0.0, 0.0], [30.0, 30.0], 1.0)
    """
    z, c = units.detach(), centroids.detach()
    uniform = torch.rand(len(z), generator=generator, device=z.device, dtype=z.dtype)
    noise = torch.randn(z.shape, generator=generator, device=z.device, dtype=z.dtype)
    own = c[labels]
    angles = angles_between(z, own)
    tangents = outward_tangents(z, own, noise)
    phi_max = math.radians(phi_max_deg)
    caps = class_preserving_cap(angles, tangents, c, labels, margin=margin, phi_max=phi_max, known=known)
    return Plan(c, known, labels, angles, caps, target_angles(angles, delta, uniform, caps), noise)
