"""ArcFace (Deng 2019): softmax cross-entropy with the own class at s·cos(θ_y + m) and the others at s·S.

cos(θ+m) is taken as S·cos m - sin θ·sin m with sin θ = √(max(1 - S², 0) + 1e-12), which stays finite at S = ±1. Beyond
θ > π - m the own logit is S - m·sin m, so that it keeps falling with θ. Defaults m = 0.5 rad, s = 64 of the paper
(Roth: s = 16). m = 0 is NormSoftmax with σ = 1/s. Unchanged by rotating, by rescaling any row, by
permuting batch or classes. Computed in float32 or float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from proxemics.losses.base import ProxyLoss, uniform_proxies
from proxemics.losses.checks import check_inputs, check_number
from proxemics.losses.fused import cosine_loss
from proxemics.losses.softmax import SoftmaxKernel


@dataclass(frozen=True)
class AngularMargin:
    """Cosine of the own-class angle plus a margin; a :data:`proxemics.losses.softmax.Margin`."""

    radians: float

    def __call__(self, own: Tensor) -> tuple[Tensor, Tensor]:
        """Return the own-class cosine after the margin and its derivative, both shaped like ``own``."""
        cos, sin = math.cos(self.radians), math.sin(self.radians)
        squared = 1 - own * own
        sine = (squared.clamp_min(0) + 1e-12).sqrt()
        inside = own >= -cos
        moved = torch.where(inside, own * cos - sine * sin, own - self.radians * sin)
        slope = cos + sin * torch.where(squared > 0, own / sine, 0)
        return moved, torch.where(inside, slope, 1)


def arcface(
    embeddings: Tensor, labels: Tensor, *, proxies: Tensor, margin_rad: float = 0.5, scale: float = 64.0
) -> Tensor:
    """Softmax over scaled cosines with a margin added to the own-class angle.

    Args:
        embeddings: (B, M) floating, any length.
        labels: (B,) integers in 0..C-1.
        proxies: (C, M) floating, any length.
        margin_rad: m in radians, in [0, π/2].
        scale: s > 0.

    Returns:
        Scalar >= 0.

    Raises:
        LossError: wrong shapes, labels out of range, or an option out of range.

    Example:
        >>> z, w = torch.eye(2), torch.eye(2)
        >>> round(float(arcface(z, torch.tensor([0, 1]), proxies=w, scale=1.0)), 6)
        0.347686
    """
    _check_options(margin_rad, scale)
    labels = check_inputs(embeddings, labels, proxies)
    return cosine_loss(embeddings, labels, proxies, SoftmaxKernel(scale, AngularMargin(margin_rad)))


def _check_options(margin_rad: float, scale: float) -> None:
    check_number("margin_rad", margin_rad, low=0, high=math.pi / 2)
    check_number("scale", scale, low=0, open_low=True)


class ArcFace(ProxyLoss):
    """:func:`arcface` with its own proxies, drawn from U(-1/√M, 1/√M).

    Args:
        num_classes: C.
        dim: M.
        margin_rad: m in radians; 0.5 in the paper.
        scale: s; 64 in the paper, 16 in Roth's protocol.
        generator: draws the proxies; the global generator when None.

    Raises:
        LossError: an option is out of range.

    Example:
        >>> loss = ArcFace(10, 4, scale=16)
        >>> loss(torch.randn(6, 4), torch.arange(6)).shape
        torch.Size([])
    """

    per_sample_mean = True

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        margin_rad: float = 0.5,
        scale: float = 64.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(num_classes, dim)
        _check_options(margin_rad, scale)
        self.margin_rad = margin_rad
        self.scale = scale
        self.proxies = uniform_proxies(num_classes, dim, generator=generator)

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch; see :meth:`MetricLoss.forward`."""
        return arcface(embeddings, labels, proxies=self.proxies, margin_rad=self.margin_rad, scale=self.scale)
