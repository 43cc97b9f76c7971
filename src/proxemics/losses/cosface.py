"""CosFace (Wang 2018): softmax cross-entropy on s·(S - m·1[c = y]).

Defaults m = 0.35, s = 64 of the paper. m = 0 is NormSoftmax with σ = 1/s.
Unchanged by rotating, by rescaling any row, by permuting batch or classes. Computed in float32 or float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from proxemics.losses.base import ProxyLoss, uniform_proxies
from proxemics.losses.checks import check_inputs, check_number
from proxemics.losses.fused import cosine_loss
from proxemics.losses.softmax import SoftmaxKernel


@dataclass(frozen=True)
class CosineMargin:
    """Own-class cosine minus a constant; a :data:`proxemics.losses.softmax.Margin`."""

    margin: float

    def __call__(self, own: Tensor) -> tuple[Tensor, None]:
        """Return ``own - margin``; its derivative is 1, written None."""
        return own - self.margin, None


def cosface(
    embeddings: Tensor, labels: Tensor, *, proxies: Tensor, margin: float = 0.35, scale: float = 64.0
) -> Tensor:
    """Softmax over scaled cosines with a margin taken off the own-class cosine.

    Args:
        embeddings: (B, M) floating, any length.
        labels: (B,) integers in 0..C-1.
        proxies: (C, M) floating, any length.
        margin: m on the cosine, in [0, 2].
        scale: s > 0.

    Returns:
        Scalar >= 0.

    Raises:
        LossError: wrong shapes, labels out of range, or an option out of range.

    Example:
        >>> z, w = torch.eye(2), torch.eye(2)
        >>> round(float(cosface(z, torch.tensor([0, 1]), proxies=w, margin=1.0, scale=1.0)), 6)
        0.693147
    """
    _check_options(margin, scale)
    labels = check_inputs(embeddings, labels, proxies)
    return cosine_loss(embeddings, labels, proxies, SoftmaxKernel(scale, CosineMargin(margin)))


def _check_options(margin: float, scale: float) -> None:
    check_number("margin", margin, low=0, high=2)
    check_number("scale", scale, low=0, open_low=True)


class CosFace(ProxyLoss):
    """:func:`cosface` with its own proxies, drawn from U(-1/√M, 1/√M).

    Args:
        num_classes: C.
        dim: M.
        margin: m; 0.35 in the paper.
        scale: s; 64 in the paper.
        generator: draws the proxies; the global generator when None.

    Raises:
        LossError: an option is out of range.

    Example:
        >>> loss = CosFace(10, 4, scale=16)
        >>> loss(torch.randn(6, 4), torch.arange(6)).shape
        torch.Size([])
    """

    per_sample_mean = True

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        margin: float = 0.35,
        scale: float = 64.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(num_classes, dim)
        _check_options(margin, scale)
        self.margin = margin
        self.scale = scale
        self.proxies = uniform_proxies(num_classes, dim, generator=generator)

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch; see :meth:`MetricLoss.forward`."""
        return cosface(embeddings, labels, proxies=self.proxies, margin=self.margin, scale=self.scale)
