"""NormSoftmax (Zhai & Wu 2018, "Classification is a strong baseline for deep metric learning").

Formula: L = mean_i [ -S_iy / σ + log Σ_c exp(S_ic / σ) ], S the cosines to the proxies.
Default σ = 0.05 from the authors' code. Unchanged by rotating, by rescaling any row, by permuting batch or classes.
Computed in float32, or float64 for float64 inputs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from proxemics.losses.base import ProxyLoss, uniform_proxies
from proxemics.losses.checks import check_inputs, check_number
from proxemics.losses.fused import cosine_loss
from proxemics.losses.softmax import SoftmaxKernel


def norm_softmax(embeddings: Tensor, labels: Tensor, *, proxies: Tensor, sigma: float = 0.05) -> Tensor:
    """Softmax cross-entropy over cosines divided by a temperature.

    Args:
        embeddings: (B, M) floating, any length.
        labels: (B,) integers in 0..C-1.
        proxies: (C, M) floating, any length.
        sigma: temperature σ > 0.

    Returns:
        Scalar.

    Raises:
        LossError: wrong shapes, labels out of range, or sigma <= 0.

    Example:
        >>> z, w = torch.eye(2), torch.eye(2)
        >>> round(float(norm_softmax(z, torch.tensor([0, 1]), proxies=w, sigma=1.0)), 6)
        0.313262
    """
    check_number("sigma", sigma, low=0, open_low=True)
    labels = check_inputs(embeddings, labels, proxies)
    return cosine_loss(embeddings, labels, proxies, SoftmaxKernel(1 / sigma))


class NormSoftmax(ProxyLoss):
    """:func:`norm_softmax` with its own proxies, drawn from U(-1/√M, 1/√M) as in the authors' code.

    Args:
        num_classes: C.
        dim: M.
        sigma: temperature; 0.05 in the authors' code, 1/32 inside SEE.
        generator: draws the proxies; the global generator when None.

    Raises:
        LossError: an option is out of range.

    Example:
        >>> loss = NormSoftmax(10, 4)
        >>> loss(torch.randn(6, 4), torch.arange(6)).shape
        torch.Size([])
    """

    per_sample_mean = True

    def __init__(
        self, num_classes: int, dim: int, *, sigma: float = 0.05, generator: torch.Generator | None = None
    ) -> None:
        super().__init__(num_classes, dim)
        check_number("sigma", sigma, low=0, open_low=True)
        self.sigma = sigma
        self.proxies = uniform_proxies(num_classes, dim, generator=generator)

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch; see :meth:`MetricLoss.forward`."""
        return norm_softmax(embeddings, labels, proxies=self.proxies, sigma=self.sigma)
