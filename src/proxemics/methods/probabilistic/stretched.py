"""Logits of stretched cosines in two matrix products, with the backward pass written by hand.

For draws u (N·B, M), class directions μ and stretches K = diag(κ), with g = |Kμ|:

    g cos(Ku, Kμ) = ⟨u, κ²μ⟩ / √⟨u², κ²⟩         two products of (N·B, M) by (M, C); never an (N, B, C, M) tensor
    log ρ = b + g cos(Ku, Kμ),   b = log C(g) + log D
    logits = LME_n(log ρ / t)  (inner)   or   LME_n(log ρ) / t  (outer)

Classes are visited in blocks that stay in the cache, so that everything between the products is cheap, and the tables are kept
class by class. Backward takes the four products it must: with gn = ∂/∂num and gd = ∂/∂den², dU = gn·κ²μ + 2u∘(gd·κ²),
and gnᵀu, gdᵀu² for the classes.

Source: formulas of Kirchhof et al., ECCV 2022; the arrangement is ours.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from proxemics.methods.probabilistic.normalizer import Normalizer, vmf_log_normalizer

BLOCK_BYTES = 1 << 20
"""Bytes of one table per block and thread."""

TINY = 1e-30
"""Smallest squared length of a stretched draw that is divided by."""


@dataclass(frozen=True)
class StretchOptions:
    """What is computed.

    Attributes:
        det: log D: ``"released"`` Σ log κ - log g, ``"mode"`` Σ log κ - M log g, ``"exact"`` Σ log κ - M log|Ku|, ``"none"`` 0.
        stretch_sample: compare Ku with Kμ; False compares u with Kμ.
        normalizer: which log C.
        inner: the temperature divides inside the log-mean-exp.
    """

    det: str = "released"
    stretch_sample: bool = True
    normalizer: Normalizer = "debye"
    inner: bool = True


def stretched_logits(
    draws: Tensor, directions: Tensor, kappa: Tensor, temperature: Tensor, options: StretchOptions
) -> tuple[Tensor, Tensor]:
    """Return logits without a constant that all classes share, and that constant.

    Args:
        draws: (N, B, M) unit, float32 or float64.
        directions: (C, M) the same dtype, any length.
        kappa: (C, M) the same dtype, > 0.
        temperature: 0-d, > 0.
        options: what is computed.

    Returns:
        Logits (B, C), differentiable once in all four tensors as far as differences between classes are concerned; and the
        constant, 0-d without a graph: logits + constant / temperature are those of the whole log-density.
    """
    with torch.autocast(draws.device.type, enabled=False):
        logits, constant = _StretchedLogits.apply(draws, directions, kappa, temperature, options)  # type: ignore[no-untyped-call]
    return logits, constant


class _StretchedLogits(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, draws: Tensor, directions: Tensor, kappa: Tensor, temperature: Tensor, options: StretchOptions
    ) -> tuple[Tensor, Tensor]:
        samples, batch, dim = draws.shape
        classes = len(directions)
        u = draws.reshape(-1, dim)
        u2 = u.square() if options.stretch_sample else u
        scale = kappa.mean()
        prior, slope, inverse = _class_constants(directions, kappa, scale, options)
        cosines = u.new_empty(classes, samples, batch)
        lengths = u.new_empty(classes, samples, batch) if options.stretch_sample else u.new_empty(0)
        shares = u.new_empty(classes, samples, batch) if samples > 1 else u.new_empty(0)
        logits = u.new_empty(classes, batch)
        for block in _blocks(classes, len(u), u):
            k, a = kappa[block], directions[block] * inverse[block, None]
            a *= k * k if options.stretch_sample else k
            table = cosines[block]
            torch.mm(a, u.t(), out=table.view(len(k), -1))
            if options.stretch_sample:
                inv = lengths[block]
                torch.mm(k * k, u2.t(), out=inv.view(len(k), -1))
                inv.clamp_(min=TINY).rsqrt_()
                table *= inv
            density = table + prior[block, None, None]
            if options.det == "exact":
                density += dim * torch.log(inv * scale)
            _log_mean_exp(density, temperature, options.inner, logits[block], shares[block] if samples > 1 else None)
        ctx.save_for_backward(
            draws, directions, kappa, temperature, prior, slope, inverse, scale, cosines, lengths, shares, logits
        )
        ctx.options = options
        constant = _shared_constant(scale, dim, options)
        ctx.mark_non_differentiable(constant)
        return logits.t().contiguous(), constant

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        draws, directions, kappa, temperature = ctx.saved_tensors[:4]
        prior, slope, inverse, scale, cosines, lengths, shares, logits = ctx.saved_tensors[4:]
        options: StretchOptions = ctx.options
        with torch.autocast(draws.device.type, enabled=False):
            dim = draws.shape[-1]
            u = draws.reshape(-1, dim)
            u2 = u.square() if options.stretch_sample else u
            upstream = (grad.t() / temperature).contiguous()
            grad_u, grad_u2 = torch.zeros_like(u), torch.zeros_like(u)
            grad_directions, grad_kappa = torch.empty_like(directions), torch.empty_like(kappa)
            grad_t = -(upstream * logits).sum() if not options.inner else temperature.new_zeros(())
            for block in _blocks(len(directions), len(u), u):
                flow = upstream[block, None] * shares[block] if len(shares) else upstream[block, None].clone()
                prior_flow = flow.sum((1, 2))
                table = cosines[block]
                weighted = flow * table
                if options.inner and ctx.needs_input_grad[3]:
                    grad_t = grad_t - weighted.sum() / temperature - (prior_flow @ prior[block]) / temperature
                    if options.det == "exact":
                        grad_t = grad_t - dim * (flow * torch.log(lengths[block] * scale)).sum() / temperature
                k, mu = kappa[block], directions[block] * inverse[block, None]
                size = len(k)
                pull = (prior_flow * slope[block])[:, None]
                if options.stretch_sample:
                    inv = lengths[block]
                    if options.det == "exact":
                        weighted.add_(flow, alpha=dim)
                    flow_num = flow.mul_(inv).view(size, -1)
                    flow_den = weighted.mul_(inv).mul_(inv).mul_(-0.5).view(size, -1)
                    k2 = k * k
                    grad_u.addmm_(flow_num.t(), mu * k2)
                    grad_u2.addmm_(flow_den.t(), k2)
                    along = flow_num @ u
                    inward = (2 * along).addcmul_(pull, mu).mul_(mu).addmm_(flow_den, u2, alpha=2).mul_(k)
                    turn = along.addcmul_(pull, mu).mul_(k2)
                else:
                    flow_num = flow.view(size, -1)
                    grad_u.addmm_(flow_num.t(), mu * k)
                    stretched = (flow_num @ u).addcmul_(pull, k * mu)
                    inward, turn = stretched * mu, stretched.mul_(k)
                if options.det != "none":
                    inward.addcdiv_(prior_flow[:, None], k)
                grad_kappa[block] = inward
                turn.addcmul_(torch.linalg.vecdot(turn, mu)[:, None], mu, value=-1)
                torch.mul(turn, inverse[block, None], out=grad_directions[block])
            if options.stretch_sample:
                grad_u.addcmul_(u, grad_u2, value=2)
        return grad_u.view(draws.shape), grad_directions, grad_kappa, grad_t, None


def _class_constants(
    directions: Tensor, kappa: Tensor, scale: Tensor, options: StretchOptions
) -> tuple[Tensor, Tensor, Tensor]:
    """Return b (C,) without its shared part, (db/dg)/g (C,), and 1/|direction| (C,)."""
    dim = kappa.shape[1]
    classes = len(kappa)
    g2, logs, inverse = (kappa.new_empty(classes) for _ in range(3))
    for block in _blocks(classes, dim, kappa):
        v, k = directions[block], kappa[block]
        inverse[block] = torch.linalg.vector_norm(v, dim=-1).clamp_min_(1e-12).reciprocal_()
        g2[block] = (v * k).square_().sum(-1) * inverse[block].square()
        if options.det != "none":
            logs[block] = torch.log(k / scale).sum(-1)
    with torch.enable_grad():
        # (C,) numbers, so that float64 costs nothing.
        g = g2.double().clamp_min(TINY).sqrt().requires_grad_()
        values = vmf_log_normalizer(g, dim, centred=True, normalizer=options.normalizer)
        if options.det in ("released", "mode"):
            values = values - torch.log(g / scale.double()) * (dim if options.det == "mode" else 1)
        (slope,) = torch.autograd.grad(values.sum(), g)
    reference = vmf_log_normalizer(scale.double(), dim, centred=True, normalizer=options.normalizer)
    prior = values.detach() - reference
    if options.det != "none":
        prior += logs.double()
    return prior.to(kappa.dtype), (slope / g.detach()).to(kappa.dtype), inverse


def _shared_constant(scale: Tensor, dim: int, options: StretchOptions) -> Tensor:
    """What :func:`_class_constants` left out: log C(scale), and (M-1) log scale for the released determinant."""
    constant = vmf_log_normalizer(scale.double(), dim, normalizer=options.normalizer)
    if options.det == "released":
        constant = constant + (dim - 1) * torch.log(scale.double())
    return constant.to(scale.dtype)


def _log_mean_exp(density: Tensor, temperature: Tensor, inner: bool, out: Tensor, shares: Tensor | None) -> None:
    """Write the logits of ``density`` (C, N, B) to ``out`` (C, B), and the weights of the draws to ``shares``."""
    if inner:
        density /= temperature
    if shares is None:
        out.copy_(density[:, 0])
    else:
        top = density.amax(1)
        torch.sub(density, top[:, None], out=density).exp_()
        total = density.sum(1)
        torch.div(density, total[:, None], out=shares)
        torch.add(top, total.log_().sub_(math.log(density.shape[1])), out=out)
    if not inner:
        out /= temperature


def _blocks(classes: int, width: int, like: Tensor) -> Iterator[slice]:
    """Slices over the classes whose tables of ``width`` columns stay in the cache; one slice on an accelerator."""
    size = max(classes, 1)
    if like.device.type == "cpu":
        size = max(64, BLOCK_BYTES * torch.get_num_threads() // (like.element_size() * max(width, 1)))
    for start in range(0, classes, size):
        yield slice(start, min(start + size, classes))
