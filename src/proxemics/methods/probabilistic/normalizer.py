"""The normaliser of the von Mises-Fisher density on the unit sphere, and the mean resultant length.

    f(u) = C_M(κ) exp(κ ⟨μ, u⟩),  log C_M(κ) = ν log κ - (ν+1) log 2π - log I_ν(κ),  ν = M/2 - 1
    A_M(κ) = I_{M/2}(κ) / I_{M/2-1}(κ) = -d log C_M / dκ

Exact for every dimension from 2 up and every κ from 0 up, with exact derivatives of every order. Computed in the
precision of the input, half precision in float32.

Source: Kirchhof et al., ECCV 2022 (arXiv 2207.03784), for the model. The polynomial fits that the authors' release uses
instead are offered for reproducing its numbers; they are wrong by 56 nats at κ = 500, M = 512.
"""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from proxemics.core.errors import LossError
from proxemics.core.geometry import upcast
from proxemics.losses.checks import check_count
from proxemics.methods.options import check_choice
from proxemics.methods.probabilistic.debye import expansion, shifts

Normalizer = Literal["debye", "legacy-poly", "legacy-power"]
"""debye: exact. legacy-poly: the fit of the release. legacy-power: the fit of the same group's later work."""


def vmf_log_normalizer(kappa: Tensor, dim: int, *, centred: bool = False, normalizer: Normalizer = "debye") -> Tensor:
    """Return log C_M(κ), the logarithm of the factor that makes the vMF density integrate to one.

    Args:
        kappa: any shape, floating, >= 0: the concentration.
        dim: M >= 2; the sphere lies in R^M.
        centred: return log C_M(κ) - log C_M(0) instead, which keeps all its digits in float32 (log C_512(0) is 868).
        normalizer: ``"debye"`` is exact. ``"legacy-poly"`` is the quadratic of the release: the fit of M = 128 at 128,
            that of M = 512 everywhere else. ``"legacy-power"`` exists for M = 512 and M >= 1024.

    Returns:
        The shape of ``kappa``, float32 or float64. The gradient is -A_M(κ), and 0 at κ = 0.

    Raises:
        LossError: ``dim`` below 2, or no such normaliser.

    Example:
        >>> vmf_log_normalizer(torch.tensor([10.0, 50.0]), 512, centred=True)
        tensor([-0.0976, -2.4300])
        >>> round(vmf_log_normalizer(torch.tensor(0.0), 3).exp().item() * 4 * math.pi, 4)
        1.0
    """
    check_dim(dim)
    check_choice("normalizer", normalizer, get_args(Normalizer))
    values = upcast(kappa)
    at_zero = log_inverse_area(dim)
    if normalizer == "debye":
        result: Tensor = _LogNormalizer.apply(values, dim)
        return result if centred else result + at_zero
    fitted = _legacy(values, dim, normalizer)
    return fitted - at_zero if centred else fitted


def vmf_mean_resultant_length(kappa: Tensor, dim: int) -> Tensor:
    """Return A_M(κ) = E⟨u, μ⟩ for u ~ vMF(μ, κ): the mean cosine, from 0 at κ = 0 to 1.

    Args:
        kappa: any shape, floating, >= 0.
        dim: M >= 2.

    Returns:
        The shape of ``kappa``, float32 or float64, in [0, 1].

    Raises:
        LossError: ``dim`` below 2.

    Example:
        >>> vmf_mean_resultant_length(torch.tensor([0.0, 50.0, 500.0]), 512)
        tensor([0.0000, 0.0967, 0.6117])
    """
    check_dim(dim)
    result: Tensor = _MeanResultantLength.apply(upcast(kappa), dim)
    return result


def log_inverse_area(dim: int) -> float:
    """Return log C_M(0), minus the logarithm of the area of the unit sphere in R^M.

    Example:
        >>> round(log_inverse_area(512), 3)
        867.968
    """
    return math.lgamma(dim / 2) - math.log(2) - dim / 2 * math.log(math.pi)


def widest(values: Tensor) -> Tensor:
    """Return ``values`` in float64, or as they are on a device that has none (Apple's GPUs).

    Example:
        >>> widest(torch.zeros(1)).dtype
        torch.float64
    """
    return values if values.device.type == "mps" else values.double()


def check_dim(dim: int) -> None:
    """Refuse a dimension without a sphere to speak of.

    Raises:
        LossError: ``dim`` is not a whole number of at least 2.
    """
    check_count("dim", dim, low=2)


class _LogNormalizer(torch.autograd.Function):
    """log C(κ) - log C(0); its derivative is -A."""

    @staticmethod
    def forward(ctx: Any, kappa: Tensor, dim: int) -> Tensor:
        ctx.save_for_backward(kappa)
        ctx.dim = dim
        return _log_normalizer(kappa, dim)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (kappa,) = ctx.saved_tensors
        return -grad * vmf_mean_resultant_length(kappa, ctx.dim), None


class _MeanResultantLength(torch.autograd.Function):
    """A(κ); its derivative is written out as well, because 1 - A² - (M-1)A/κ loses all digits for large κ."""

    @staticmethod
    def forward(ctx: Any, kappa: Tensor, dim: int) -> Tensor:
        ctx.save_for_backward(kappa)
        ctx.dim = dim
        return _length_and_slope(kappa, dim, slope=False)[0].clamp_max(1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (kappa,) = ctx.saved_tensors
        return grad * _length_and_slope(kappa, ctx.dim, slope=True)[1], None


def _log_normalizer(kappa: Tensor, dim: int) -> Tensor:
    order = dim / 2 - 1
    steps = shifts(order)
    top = expansion(order + steps, kappa.dtype)
    nu = top.order
    s = torch.hypot(kappa, kappa.new_tensor(nu))
    delta = kappa * (kappa / (s + nu))
    (correction,) = top.correction(delta / s, 0)
    result = nu * torch.log1p(delta / (2 * nu)) - delta + torch.log1p(delta / nu) / 2 - correction
    if steps:
        length = _length_and_slope(kappa, dim + 2 * steps, slope=False)[0]
        for step in range(steps - 1, -1, -1):
            # A_ν = κ / (2(ν+1) + κ A_{ν+1}), and the ratio of normalisers of neighbouring orders is 2(ν+1) A_ν / κ.
            twice = 2 * (order + step + 1)
            result = result - torch.log1p(kappa * length / twice)
            length = kappa / (twice + kappa * length)
    return result


def _length_and_slope(kappa: Tensor, dim: int, *, slope: bool) -> tuple[Tensor, Tensor]:
    """Return A and A' (or A twice, if the slope is not wanted)."""
    order = dim / 2 - 1
    steps = shifts(order)
    top = expansion(order + steps, kappa.dtype)
    nu = top.order
    s = torch.hypot(kappa, kappa.new_tensor(nu))
    p, x = nu / s, kappa / s
    _, c1, *rest = top.correction(x * (kappa / (s + nu)), 2 if slope else 1)
    length = kappa / (nu + s) - x / (2 * s) + c1 * p * x / s
    change = length
    if slope:
        change = (
            p / (nu + s) + (x * x - p * p) / (2 * s * s) + p / (s * s) * (c1 * (1 - 3 * x * x) + rest[0] * p * x * x)
        )
    for step in range(steps - 1, -1, -1):
        twice = 2 * (order + step + 1)
        divisor = twice + kappa * length
        if slope:
            change = (twice / divisor - kappa / divisor * (kappa * change)) / divisor
        length = kappa / divisor
    return length, change


def _legacy(kappa: Tensor, dim: int, normalizer: Normalizer) -> Tensor:
    if normalizer == "legacy-poly":
        if dim == 128:
            return 127 - 0.01909 * kappa - 0.003355 * kappa.square()
        return 868 - 0.0002662 * kappa - 0.0009685 * kappa.square()
    if dim == 512:
        return 866.3 + 0.1574 * kappa - 0.0236 * kappa.pow(1.5)
    if dim >= 1024:
        return 2095 - 0.01204 * kappa - 0.0007967 * kappa.pow(1.9)
    raise LossError(f"normalizer='legacy-power' was fitted for dim 512 and 1024, got dim={dim}; use 'debye'.")
