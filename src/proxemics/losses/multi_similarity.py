"""Multi-Similarity (Wang 2019), a pair loss without proxies, with its pair mining.

G = z zᵀ of unit embeddings. Mining for anchor i keeps positives with G_ij - ε < max_neg G_ik and negatives with
G_ij + ε > min_pos G_ik.
L = 1/B Σ_i { 1/α log(1 + Σ_kept pos e^{-α(G-λ)}) + 1/β log(1 + Σ_kept neg e^{β(G-λ)}) }
Defaults α = 2, β = 50, λ = 0.5 (the authors' code; the paper prints 1), ε = 0.1 (Roth: β = 40). An anchor without kept
pairs adds 0 and still counts in B. The anchor itself is left out by its index, so duplicates stay positives.
The batch is one set, so gradient accumulation is not the bigger batch. Unchanged by rotating, by rescaling any row,
by permuting the batch. Computed in float32 or float64.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from proxemics.losses.base import MetricLoss
from proxemics.losses.checks import check_batch, check_embeddings, check_number
from proxemics.losses.fused import carry_nan, compute_dtype, unit_rows


def _check_options(alpha: float, beta: float, lam: float, eps: float) -> None:
    check_number("alpha", alpha, low=0, open_low=True)
    check_number("beta", beta, low=0, open_low=True)
    check_number("lam", lam, low=-1, high=1)
    check_number("eps", eps, low=0)


def _log_one_plus(logits: Tensor, keep: Tensor) -> Tensor:
    """Return log(1 + Σ_kept exp(logits)) by row: (B, B), (B, B) bool -> (B,)."""
    listed = torch.cat([logits.masked_fill(~keep, -math.inf), logits.new_zeros(len(logits), 1)], dim=1)
    return listed.logsumexp(1)


def multi_similarity(
    embeddings: Tensor,
    labels: Tensor,
    *,
    num_classes: int | None = None,
    alpha: float = 2.0,
    beta: float = 50.0,
    lam: float = 0.5,
    eps: float = 0.1,
    mining: bool = True,
) -> Tensor:
    """Weigh pairs by their own similarity and by that of the other pairs of the anchor.

    Args:
        embeddings: (B, M) floating, any length.
        labels: (B,) integers.
        num_classes: C, when labels must lie in 0..C-1; None for any.
        alpha: α > 0, sharpness over positives.
        beta: β > 0, sharpness over negatives.
        lam: λ, the similarity that divides near from far, in [-1, 1].
        eps: ε >= 0, slack of the mining.
        mining: keep hard pairs only; False uses all pairs.

    Returns:
        Scalar >= 0.

    Raises:
        LossError: wrong shapes, labels out of range, or an option out of range.

    Example:
        >>> z = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.9, 0.5]])
        >>> float(multi_similarity(z, torch.tensor([0, 0, 1]), mining=False)) > 0
        True
    """
    _check_options(alpha, beta, lam, eps)
    labels = check_batch(embeddings, labels, num_classes=num_classes)
    dtype = compute_dtype(embeddings)
    with torch.autocast(embeddings.device.type, enabled=False):
        units = unit_rows(embeddings.to(dtype))
        if not len(labels):
            return units.sum()
        gram = units @ units.t()
        same = labels[:, None] == labels
        positive = same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
        negative = ~same
        if mining:
            nearest = gram.detach().masked_fill(~negative, -math.inf).amax(1, keepdim=True)
            furthest = gram.detach().masked_fill(~positive, math.inf).amin(1, keepdim=True)
            positive &= gram.detach() - eps < nearest
            negative &= gram.detach() + eps > furthest
        pull = _log_one_plus(-alpha * (gram - lam), positive) / alpha
        push = _log_one_plus(beta * (gram - lam), negative) / beta
        return (pull + push).mean() + carry_nan(units)


class MultiSimilarity(MetricLoss):
    """:func:`multi_similarity` with the common constructor; it has no parameters.

    Args:
        num_classes: C, to check labels against.
        dim: M.
        alpha: α.
        beta: β.
        lam: λ.
        eps: ε.
        mining: keep hard pairs only.
        generator: taken for a uniform constructor; nothing is drawn.

    Raises:
        LossError: an option is out of range.

    Example:
        >>> loss = MultiSimilarity(10, 4)
        >>> loss(torch.randn(6, 4), torch.tensor([0, 0, 1, 1, 2, 2])).shape
        torch.Size([])
    """

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        alpha: float = 2.0,
        beta: float = 50.0,
        lam: float = 0.5,
        eps: float = 0.1,
        mining: bool = True,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(num_classes, dim)
        _check_options(alpha, beta, lam, eps)
        self.alpha = alpha
        self.beta = beta
        self.lam = lam
        self.eps = eps
        self.mining = mining

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch; see :meth:`MetricLoss.forward`."""
        check_embeddings(embeddings, self.dim)
        return multi_similarity(
            embeddings,
            labels,
            num_classes=self.num_classes,
            alpha=self.alpha,
            beta=self.beta,
            lam=self.lam,
            eps=self.eps,
            mining=self.mining,
        )
