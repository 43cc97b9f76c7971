"""Logits of stretched cosines in two matrix products, with the backward pass written by hand.

For draws u (N·B, M), class directions μ = v/|v| and stretches K = diag(κ), with g = |Kμ|:

    s = g cos(Ku, Kμ) = ⟨u, κ²μ⟩ / √⟨u², κ²⟩      two products of (N·B, M) by (M, C); never an (N, B, C, M) tensor
    log ρ = b + s,   b = log C(g) + log D
    logits = LME_n(log ρ / t)  (inner)   or   LME_n(log ρ) / t  (outer)

Classes are visited in blocks that stay in the cache, so that everything between the products is cheap, and the tables
are kept class by class. Backward takes the four products it must. With f the flow into log ρ, r = 1/|Ku| the inverse
length of a stretched draw and n = f r / |v|, d = f s r²:

    du = n (κ²v) - u ∘ (d κ²),   A = nᵀu,   D = dᵀu²,   T = A + e v,
    dv = κ²T across v,           dκ = κ (v (A + T) - D) + (Σ f) / κ,

where e carries the derivative of b by g. The flow into b itself needs no table: the weights of the draws sum to one.

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

from proxemics.methods.probabilistic.normalizer import Normalizer, vmf_log_normalizer, widest

BLOCK_BYTES = 1 << 21
"""Bytes of one table per block and thread."""

TINY = 1e-24
"""Smallest squared length that counts."""


@dataclass(frozen=True)
class StretchOptions:
    """What is computed.

    Attributes:
        det: log D: ``"released"`` Σ log κ - log g, ``"mode"`` Σ log κ - M log g, ``"exact"`` Σ log κ - M log|Ku|,
            ``"none"`` 0.
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
        Logits (B, C), differentiable once in all four tensors; and the constant, 0-d without a graph: logits +
        constant / temperature are those of the whole log-density. (The gradient of the logits contains its gradient.)
    """
    with torch.autocast(draws.device.type, enabled=False):
        logits, constant = _StretchedLogits.apply(draws, directions, kappa, temperature, options)
    return logits, constant


class _StretchedLogits(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, draws: Tensor, directions: Tensor, kappa: Tensor, temperature: Tensor, options: StretchOptions
    ) -> tuple[Tensor, Tensor]:
        samples, batch, dim = draws.shape
        classes = len(directions)
        u = draws.reshape(-1, dim)
        u2 = u.square().add_(TINY) if options.stretch_sample else u
        inner_t = temperature if options.inner else torch.ones_like(temperature)
        # A typical κ; all logarithms of κ are taken relative to it.
        scale = kappa[:64].log().mean().exp()
        facts = _ClassFacts(kappa.new_empty(classes), kappa.new_zeros(classes), kappa.new_empty(classes))
        # weights: r e^{s-max} for each draw; pull: s r |v|.
        weights = u.new_empty(classes, samples, batch)
        pull = u.new_empty(classes, samples, batch) if options.stretch_sample else u.new_empty(0)
        logits, totals = u.new_empty(classes, batch), u.new_empty(classes, batch)
        expected = u.new_empty(classes, batch) if ctx.needs_input_grad[3] and options.inner else None
        for block in _blocks(classes, len(u), u):
            k, v, weight = kappa[block], directions[block], weights[block]
            inverse = facts.set_inverse(block, v)
            if options.stretch_sample:
                k2, part = k * k, pull[block]
                stretched = v * k2
                torch.mm(stretched, u.t(), out=part.view(len(k), -1))
                torch.mm(k2, u2.t(), out=weight.view(len(k), -1))
                part *= weight.rsqrt_()
                density = part * (inverse / inner_t)
                if options.det == "exact":
                    part += dim / inverse.clamp_min(TINY)
                    density += dim * torch.log(weight * scale) / inner_t
                part *= weight
            else:
                stretched = v * k
                density = (stretched @ u.t()).view(weight.shape).mul_(inverse / inner_t)
                weight.fill_(1)
            facts.set_stretch(block, stretched, k, v, scale, options)
            mean = None if expected is None else expected[block]
            _log_sum_exp(density, logits[block], totals[block], weight, mean)
        prior, slope = _prior(facts, scale, dim, options)
        logits += prior[:, None] / inner_t - math.log(samples)
        if not options.inner:
            logits /= temperature
        kept = u.new_empty(0) if expected is None else expected.mul_(temperature).add_(prior[:, None])
        ctx.save_for_backward(
            draws, directions, kappa, temperature, slope, facts.inverse, weights, pull, logits, totals, kept
        )
        ctx.options = options
        constant = _shared_constant(scale, dim, options)
        ctx.mark_non_differentiable(constant)
        return logits.t(), constant

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        draws, directions, kappa, temperature, slope, inverse = ctx.saved_tensors[:6]
        weights, pull, logits, totals, expected = ctx.saved_tensors[6:]
        options: StretchOptions = ctx.options
        with torch.autocast(draws.device.type, enabled=False):
            flow = (grad.t() / temperature).contiguous()
            grad_t = None
            if ctx.needs_input_grad[3]:
                grad_t = -(flow * (expected / temperature if options.inner else logits)).sum()
            into_prior = flow.sum(1, keepdim=True)
            into_g = into_prior * (slope * inverse.square())[:, None]
            flow *= inverse[:, None]
            flow /= totals
            out = _Gradients(draws.reshape(-1, draws.shape[-1]), directions, kappa)
            for block in _blocks(len(directions), len(out.u), out.u):
                along = (flow[block, None] * weights[block]).flatten(1)
                if options.stretch_sample:
                    out.add_stretched(block, along, along * pull[block].flatten(1), into_g[block])
                else:
                    out.add_plain(block, along, into_g[block])
                if options.det != "none":
                    out.kappa[block].addcdiv_(into_prior[block], kappa[block])
                # Only the part across the direction turns it.
                turn, v = out.directions[block], directions[block]
                turn.addcmul_(torch.linalg.vecdot(turn, v).mul_(inverse[block].square())[:, None], v, value=-1)
            grad_draws = out.draws().view(draws.shape)
        return grad_draws, out.directions, out.kappa, grad_t, None


class _Gradients:
    """The gradients while they are collected from block to block."""

    def __init__(self, u: Tensor, directions: Tensor, kappa: Tensor) -> None:
        self.inputs = u, directions, kappa
        self.u = torch.zeros_like(u)
        self.u2: Tensor | None = None
        self.squares = u
        self.directions = torch.empty_like(directions)
        self.kappa = torch.empty_like(kappa)

    def add_stretched(self, block: slice, num: Tensor, den: Tensor, into_g: Tensor) -> None:
        """Take in a block with flows ``num`` and ``den`` (c, N·B): four products."""
        u, directions, kappa = self.inputs
        if self.u2 is None:
            self.squares, self.u2 = u.square(), torch.zeros_like(u)
        k, v = kappa[block], directions[block]
        out_k, turn = self.kappa[block], self.directions[block]
        k2 = k * k
        self.u2.addmm_(den.t(), k2)
        torch.mm(num, u, out=out_k)
        torch.addcmul(out_k, into_g, v, out=turn)
        out_k.add_(turn).mul_(v).addmm_(den, self.squares, alpha=-1).mul_(k)
        turn.mul_(k2)
        self.u.addmm_(num.t(), k2.mul_(v))

    def add_plain(self, block: slice, num: Tensor, into_g: Tensor) -> None:
        """Take in a block whose draws are not stretched: two products."""
        u, directions, kappa = self.inputs
        k, v = kappa[block], directions[block]
        out_k, turn = self.kappa[block], self.directions[block]
        stretched = v * k
        self.u.addmm_(num.t(), stretched)
        torch.mm(num, u, out=turn)
        turn.addcmul_(into_g, stretched)
        torch.mul(turn, v, out=out_k)
        turn.mul_(k)

    def draws(self) -> Tensor:
        """The gradient of the draws (N·B, M)."""
        return self.u if self.u2 is None else self.u.addcmul_(self.inputs[0], self.u2, value=-1)


@dataclass
class _ClassFacts:
    """Numbers of the classes, each (C,), filled block by block.

    Attributes:
        g2: |Kμ|².
        logs: Σ log(κ / scale), or 0.
        inverse: 1/|v|; 0 for directions of length zero, which count as zero vectors and get no gradient.
    """

    g2: Tensor
    logs: Tensor
    inverse: Tensor

    def set_inverse(self, block: slice, v: Tensor) -> Tensor:
        """Fill ``inverse`` for directions (c, M) and return it as (c, 1, 1)."""
        squared = torch.linalg.vecdot(v, v)
        inverse = torch.where(squared > TINY, squared.clamp_min(TINY).rsqrt(), 0.0)
        self.inverse[block] = inverse
        return inverse[:, None, None]

    def set_stretch(
        self, block: slice, stretched: Tensor, k: Tensor, v: Tensor, scale: Tensor, options: StretchOptions
    ) -> None:
        """Fill the rest from κ²v (or κv); ``stretched`` (c, M) is overwritten."""
        other = v if options.stretch_sample else stretched
        self.g2[block] = torch.linalg.vecdot(stretched, other) * self.inverse[block].square()
        if options.det != "none":
            # Relative to a typical κ, so that the sum keeps its digits; logarithms of pairs, because they are dear.
            relative, half = torch.mul(k, 1 / scale, out=stretched), k.shape[1] // 2
            pairs = relative[:, :half].mul_(relative[:, half : 2 * half])
            self.logs[block] = pairs.log_().sum(-1) + relative[:, 2 * half :].log().sum(-1)


def _prior(facts: _ClassFacts, scale: Tensor, dim: int, options: StretchOptions) -> tuple[Tensor, Tensor]:
    """Return b (C,) without its shared part, and (db/dg)/g (C,)."""
    with torch.enable_grad():
        # (C,) numbers, so that float64 costs nothing.
        g = widest(facts.g2).clamp_min(TINY).sqrt().requires_grad_()
        values = vmf_log_normalizer(g, dim, centred=True, normalizer=options.normalizer)
        if options.det in ("released", "mode"):
            values = values - torch.log(g / widest(scale)) * (dim if options.det == "mode" else 1)
        (slope,) = torch.autograd.grad(values.sum(), g)
    reference = vmf_log_normalizer(widest(scale), dim, centred=True, normalizer=options.normalizer)
    prior = values.detach() - reference + facts.logs.to(values.dtype)
    return prior.to(scale.dtype), (slope / g.detach()).to(scale.dtype)


def _shared_constant(scale: Tensor, dim: int, options: StretchOptions) -> Tensor:
    """What :func:`_class_constants` left out: log C(scale), and (M-1) log scale for the released determinant."""
    constant = vmf_log_normalizer(widest(scale), dim, normalizer=options.normalizer)
    if options.det == "released":
        constant = constant + (dim - 1) * torch.log(widest(scale))
    return constant.to(scale.dtype)


def _log_sum_exp(density: Tensor, out: Tensor, total: Tensor, weight: Tensor, expected: Tensor | None) -> None:
    """Write the log-sum-exp of ``density`` (C, N, B) over draws to ``out`` (C, B), its mean to ``expected``.

    With e = exp(density - max): writes Σ e to ``total``, multiplies ``weight`` (C, N, B) by e, overwrites ``density``.
    """
    top = density.amax(1)
    density -= top[:, None]
    if expected is not None:
        expected.copy_((torch.softmax(density, 1) * density).sum(1).add_(top))
    weight *= density.exp_()
    torch.sum(density, 1, out=total)
    torch.add(top, torch.log(total), out=out)


def _blocks(classes: int, width: int, like: Tensor) -> Iterator[slice]:
    """Slices over the classes whose tables of ``width`` columns stay in the cache; one slice on an accelerator."""
    size = max(classes, 1)
    if like.device.type == "cpu":
        size = max(64, BLOCK_BYTES * torch.get_num_threads() // (like.element_size() * max(width, 1)))
    for start in range(0, classes, size):
        yield slice(start, min(start + size, classes))
