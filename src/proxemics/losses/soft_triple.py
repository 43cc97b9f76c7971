"""SoftTriple (Qian 2019, "SoftTriple loss: deep metric learning without triplet sampling", equation 9).

S_ick = <z_i, w_ck>,  S'_ic = Σ_k softmax_k(S_ick / γ) S_ick,  L = CE(λ(S' - δ·1[c = y])) + τ R,
R = Σ_c Σ_{k<l} √(2 + ε - 2<w_ck, w_cl>) / (C K (K-1)), ε = 1e-5; no R for K = 1.
Defaults λ = 20, γ = 0.1, τ = 0.2, δ = 0.01, K = 10 from the authors' code (Roth: λ = 8, K = 2).
K = 1 and δ = 0 is NormSoftmax with σ = 1/λ. Unchanged by rotating, by rescaling any row, by permuting batch, classes
or the centres of a class. Computed in float32 or float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from proxemics.losses.base import ProxyLoss, uniform_proxies
from proxemics.losses.checks import check_count, check_inputs, check_number
from proxemics.losses.cosface import CosineMargin
from proxemics.losses.fused import blocks, compute_dtype, empty_loss, inverse_norms, project_
from proxemics.losses.softmax import SoftmaxKernel

SPREAD_EPS = 1e-5
"""ε under the root of R; keeps its slope finite where two centres coincide."""


@dataclass(frozen=True)
class _Options:
    la: float
    gamma: float
    tau: float
    delta: float

    def __post_init__(self) -> None:
        check_number("la", self.la, low=0, open_low=True)
        check_number("gamma", self.gamma, low=0, open_low=True)
        check_number("tau", self.tau, low=0)
        check_number("delta", self.delta, low=0, high=2)


def _relax_(cosines: Tensor, gamma: float, want_gradient: bool) -> Tensor:
    """Return S' (c, B) of ``cosines`` (c, K, B); overwrite them by d S' / d S if wanted."""
    top = cosines.amax(1, keepdim=True)
    weights = torch.sub(cosines, top).mul_(1 / gamma).exp_()
    weights.mul_(weights.sum(1, keepdim=True).reciprocal_())
    relaxed = (weights * cosines).sum(1, keepdim=True)
    if want_gradient:
        cosines.sub_(relaxed).mul_(1 / gamma).add_(1).mul_(weights)
    return relaxed[:, 0]


def _spread(centers: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Return Σ_{k<l} distance over the block and its derivative by each inner product of raw rows, (c, K, K)."""
    outer = scale[:, :, None] * scale[:, None, :]
    inner = torch.bmm(centers, centers.transpose(1, 2)).mul_(outer)
    distance = (2 + SPREAD_EPS - 2 * inner).clamp_min_(SPREAD_EPS / 2).sqrt_()
    slope = distance.reciprocal().mul_(outer).neg_()
    distance.diagonal(dim1=1, dim2=2).zero_()
    slope.diagonal(dim1=1, dim2=2).zero_()
    return distance.sum() / 2, slope


class _SoftTriple(torch.autograd.Function):
    """The fused cosine loss for K centres a class: the table is (C, K, B) and R shares the visit to each block."""

    @staticmethod
    def forward(ctx: Any, embeddings: Tensor, proxies: Tensor, labels: Tensor, options: _Options) -> Tensor:
        dtype = compute_dtype(embeddings, proxies)
        want = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        with torch.autocast(embeddings.device.type, enabled=False):
            rows, weights = embeddings.to(dtype), proxies.to(dtype)
            scale_z = inverse_norms(rows)
            units = rows * scale_z[:, None]
            classes, centers, dim = weights.shape
            spreading = options.tau > 0 and centers > 1
            share = options.tau / (classes * centers * max(centers - 1, 1))
            table = units.new_empty((classes, centers, len(units)) if want else 0)
            relaxed = units.new_empty(classes, len(units))
            scale_w = units.new_empty(classes, centers)
            slopes = units.new_empty((classes, centers, centers) if spreading else 0)
            penalty = units.new_zeros(())
            for block in blocks(weights, least=8):
                scale = scale_w[block] = inverse_norms(weights[block])
                part = table[block] if want else units.new_empty(len(scale), centers, len(units))
                torch.mm(weights[block].reshape(-1, dim), units.t(), out=part.view(-1, len(units)))
                part.mul_(scale[:, :, None])
                relaxed[block] = _relax_(part, options.gamma, want)
                if want:
                    part.mul_(scale[:, :, None])
                if spreading:
                    distance, slope = _spread(weights[block], scale)
                    penalty += distance
                    slopes[block] = slope.mul_(share)
            kernel = SoftmaxKernel(options.la, CosineMargin(options.delta))
            value = kernel(relaxed, labels, want) + penalty * share
            if want:
                ctx.save_for_backward(proxies, units, table, relaxed, slopes, scale_z, scale_w)
                ctx.embedding_dtype = embeddings.dtype
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        proxies, units, table, outer, slopes, scale_z, scale_w = ctx.saved_tensors
        with torch.autocast(units.device.type, enabled=False):
            weights = proxies.to(units.dtype)
            dim = weights.shape[2]
            grad_z = torch.zeros_like(units) if ctx.needs_input_grad[0] else None
            grad_w = torch.empty_like(weights) if ctx.needs_input_grad[1] else None
            for block in blocks(weights, least=8):
                rows = weights[block].reshape(-1, dim)
                part = (table[block] * outer[block, None]).view(len(rows), -1)
                if grad_z is not None:
                    grad_z.addmm_(part.t(), rows)
                if grad_w is not None:
                    block_w = grad_w[block]
                    torch.mm(part, units, out=block_w.view(-1, dim))
                    if slopes.numel():
                        block_w.baddbmm_(slopes[block], weights[block])
                    project_(block_w, weights[block], scale_w[block]).mul_(grad)
            if grad_z is not None:
                grad_z = project_(grad_z, units).mul_((scale_z * grad)[:, None]).to(ctx.embedding_dtype)
        return grad_z, None if grad_w is None else grad_w.to(proxies.dtype), None, None


def soft_triple(
    embeddings: Tensor,
    labels: Tensor,
    *,
    proxies: Tensor,
    la: float = 20.0,
    gamma: float = 0.1,
    tau: float = 0.2,
    delta: float = 0.01,
) -> Tensor:
    """Margin softmax over classes with several centres each, plus a pull between the centres of a class.

    Args:
        embeddings: (B, M) floating, any length.
        labels: (B,) integers in 0..C-1.
        proxies: (C, K, M) floating, any length: K centres a class.
        la: λ > 0, scale of the class similarities.
        gamma: γ > 0, temperature of the soft choice among a class's centres.
        tau: τ >= 0, weight of the regulariser R; without effect for K = 1.
        delta: δ in [0, 2], margin on the own-class similarity.

    Returns:
        Scalar.

    Raises:
        LossError: wrong shapes, labels out of range, or an option out of range.

    Example:
        >>> z = torch.eye(2)
        >>> round(float(soft_triple(z, torch.tensor([0, 1]), proxies=z[:, None], la=1.0, delta=0.0)), 6)
        0.313262
    """
    options = _Options(la, gamma, tau, delta)
    labels = check_inputs(embeddings, labels, proxies, ndim=3)
    if not len(labels):
        return empty_loss(embeddings, proxies)
    # torch gives Function.apply no type.
    return _SoftTriple.apply(embeddings, proxies, labels, options)  # type: ignore[no-any-return]


class SoftTriple(ProxyLoss):
    """:func:`soft_triple` with its own centres, Kaiming-uniform with a = √5 (U(-1/√M, 1/√M)) as in the authors' code.

    Args:
        num_classes: C.
        dim: M.
        centers: K, centres a class.
        la: λ.
        gamma: γ.
        tau: τ.
        delta: δ.
        generator: draws the centres; the global generator when None.

    Raises:
        LossError: an option is out of range.

    Example:
        >>> loss = SoftTriple(10, 4, centers=2)
        >>> loss.proxies.shape, loss(torch.randn(6, 4), torch.arange(6)).shape
        (torch.Size([10, 2, 4]), torch.Size([]))
    """

    per_sample_mean = True

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        centers: int = 10,
        la: float = 20.0,
        gamma: float = 0.1,
        tau: float = 0.2,
        delta: float = 0.01,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(num_classes, dim)
        check_count("centers", centers)
        _Options(la, gamma, tau, delta)
        self.centers = centers
        self.la = la
        self.gamma = gamma
        self.tau = tau
        self.delta = delta
        self.proxies = uniform_proxies(num_classes, centers, dim, generator=generator)

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch; see :meth:`MetricLoss.forward`."""
        return soft_triple(
            embeddings,
            labels,
            proxies=self.proxies,
            la=self.la,
            gamma=self.gamma,
            tau=self.tau,
            delta=self.delta,
        )

    def _class_similarities(self, units: Tensor, proxies: Tensor) -> Tensor:
        """Return the relaxed similarities S' (B, C)."""
        cosines = torch.einsum("bm,ckm->bkc", units, proxies)
        return ((cosines / self.gamma).softmax(1) * cosines).sum(1)
