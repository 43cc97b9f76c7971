"""Proxy Anchor (Kim 2020, "Proxy Anchor loss for deep metric learning", equation 4).

L = 1/|P⁺| Σ_{c∈P⁺} log(1 + Σ_{i: y_i=c} e^{-α(S_ic-δ)}) + 1/C Σ_c log(1 + Σ_{i: y_i≠c} e^{α(S_ic+δ)})

P⁺ are the classes present in the batch. Defaults α = 32, δ = 0.1 of the paper. Each proxy sees the batch as a set, so
gradient accumulation is not the bigger batch. Every log(1 + Σ exp) is a log-sum-exp with a zero appended.
Unchanged by rotating, by rescaling any row, by permuting batch or classes. Computed in float32 or float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from proxemics.losses.base import ProxyLoss, normal_proxies
from proxemics.losses.checks import check_inputs, check_number
from proxemics.losses.fused import cosine_loss


@dataclass(frozen=True)
class ProxyAnchorKernel:
    """Value and gradient of Proxy Anchor on a (C, B) table of cosines; a :data:`proxemics.losses.fused.Kernel`."""

    alpha: float
    delta: float

    def __call__(self, cosines: Tensor, labels: Tensor, want_gradient: bool) -> Tensor:
        """Return the value; overwrite ``cosines`` by the gradient if wanted."""
        index = labels[None]
        positive, slope = self._positive(cosines.gather(0, index)[0], labels, len(cosines))
        cosines.scatter_(0, index, -math.inf)
        # top >= 0 is the largest logit of a class's list, whose appended zero counts
        top = cosines.amax(1, keepdim=True).add_(self.delta).mul_(self.alpha).clamp_min_(0)
        torch.add(self.alpha * self.delta - top, cosines, alpha=self.alpha, out=cosines)
        total = cosines.exp_().sum(1, keepdim=True)
        one = (-top).exp_()
        # log(1 + Σ) as log1p where the zero leads, so that small sums keep their digits
        negative = (top + (total + (one - 1)).log1p()).mean()
        if want_gradient:
            cosines.mul_((total + one).reciprocal_().mul_(self.alpha / len(cosines)))
            cosines.scatter_(0, index, slope[None])
        return positive + negative

    def _positive(self, own: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
        """Return the pull term and its derivative by each own-class cosine, from (B,) own-class cosines."""
        logits = (own - self.delta) * -self.alpha
        top = logits.new_zeros(classes).scatter_reduce_(0, labels, logits, "amax")
        terms = (logits - top[labels]).exp_()
        total = torch.zeros_like(top).index_add_(0, labels, terms)
        one = (-top).exp_()
        present = torch.zeros_like(top).index_fill_(0, labels, 1)
        value = (present * (top + (total + (one - 1)).log1p())).sum() / present.sum()
        slope = terms.div_((total + one)[labels]).mul_(-self.alpha).div_(present.sum())
        return value, slope


def proxy_anchor(
    embeddings: Tensor, labels: Tensor, *, proxies: Tensor, alpha: float = 32.0, delta: float = 0.1
) -> Tensor:
    """Pull a proxy's hardest own samples and push its hardest foreign samples, per proxy over the batch.

    Args:
        embeddings: (B, M) floating, any length.
        labels: (B,) integers in 0..C-1.
        proxies: (C, M) floating, any length.
        alpha: scale α > 0.
        delta: margin δ on the cosine, in [-1, 1].

    Returns:
        Scalar >= 0.

    Raises:
        LossError: wrong shapes, labels out of range, or an option out of range.

    Example:
        >>> z, w = torch.eye(2), torch.eye(2)
        >>> round(float(proxy_anchor(z, torch.tensor([0, 1]), proxies=w, alpha=1.0, delta=0.0)), 6)
        1.006409
    """
    _check_options(alpha, delta)
    labels = check_inputs(embeddings, labels, proxies)
    return cosine_loss(embeddings, labels, proxies, ProxyAnchorKernel(alpha, delta))


def _check_options(alpha: float, delta: float) -> None:
    check_number("alpha", alpha, low=0, open_low=True)
    check_number("delta", delta, low=-1, high=1)


class ProxyAnchor(ProxyLoss):
    """:func:`proxy_anchor` with its own proxies, Kaiming-normal over the fan-out (std √(2/C)) as in the authors' code.

    Args:
        num_classes: C.
        dim: M.
        alpha: scale α; 32 in the paper.
        delta: margin δ; 0.1 in the paper.
        generator: draws the proxies; the global generator when None.

    Raises:
        LossError: an option is out of range.

    Example:
        >>> loss = ProxyAnchor(10, 4)
        >>> loss(torch.randn(6, 4), torch.arange(6)).shape
        torch.Size([])
    """

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        alpha: float = 32.0,
        delta: float = 0.1,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(num_classes, dim)
        _check_options(alpha, delta)
        self.alpha = alpha
        self.delta = delta
        self.proxies = normal_proxies(num_classes, dim, std=math.sqrt(2 / num_classes), generator=generator)

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch; see :meth:`MetricLoss.forward`."""
        return proxy_anchor(embeddings, labels, proxies=self.proxies, alpha=self.alpha, delta=self.delta)
