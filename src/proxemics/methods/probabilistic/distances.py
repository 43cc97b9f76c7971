"""Similarities between an image's vMF density ζ and a class's ρ in closed form, from cosines and concentrations alone.

    L2        -|ν_z - ν_p|² = 2 κ_z κ_p cos - κ_z² - κ_p²
    vMF       log ρ(μ_z) = log C(κ_p) + κ_p cos
    EL-vMF    log ∫ ρ ζ  = log C(κ_z) + log C(κ_p) - log C(κ_3),         κ_3 = |κ_z μ_z + κ_p μ_p|
    B-vMF     log ∫ √(ρ ζ) = ½ [log C(κ_z) + log C(κ_p)] - log C(κ_3/2)
    KL-vMF    -KL(ζ‖ρ) = -[log C(κ_z) - log C(κ_p) + A(κ_z) (κ_z - κ_p cos)]

Source: Kirchhof et al., ECCV 2022, for the choice; the closed forms are derived and checked against quadrature. KL has
the sign and the factor A that the authors' release leaves out.
"""

from __future__ import annotations

import torch
from torch import Tensor

from proxemics.core.errors import LossError
from proxemics.core.geometry import upcast
from proxemics.losses.checks import check_number
from proxemics.methods.probabilistic.normalizer import Normalizer, vmf_log_normalizer, vmf_mean_resultant_length


def l2_similarity(cosines: Tensor, kappa_z: Tensor, kappa_p: Tensor) -> Tensor:
    """Return minus the squared distance between vectors of lengths κ_z and κ_p.

    Args:
        cosines: (B, C) floating.
        kappa_z: (B,) floating, >= 0: lengths of the embeddings.
        kappa_p: (C,) floating, >= 0: lengths of the proxies.

    Returns:
        (B, C) in float32 or float64.

    Raises:
        LossError: shapes that do not fit.

    Example:
        >>> l2_similarity(torch.tensor([[1.0, -1.0]]), torch.tensor([3.0]), torch.tensor([1.0, 1.0]))
        tensor([[ -4., -16.]])
    """
    cosines, kappa_z, kappa_p = _tables(cosines, kappa_z, kappa_p)
    return 2 * kappa_z * kappa_p * cosines - kappa_z.square() - kappa_p.square()


def vmf_log_density(
    cosines: Tensor, kappa_p: Tensor, dim: int, *, centred: bool = False, normalizer: Normalizer = "debye"
) -> Tensor:
    """Return log ρ_c(μ_z), the log-density of each class at the direction of each image.

    Args:
        cosines: (B, C) floating.
        kappa_p: (C,) floating, >= 0.
        dim: M >= 2.
        centred: leave out log C(0), which all classes share.
        normalizer: see :func:`vmf_log_normalizer`.

    Returns:
        (B, C) in float32 or float64.

    Raises:
        LossError: shapes that do not fit.

    Example:
        >>> vmf_log_density(torch.tensor([[8 / 9]]), torch.tensor([3.0]), 3)
        tensor([[-1.0701]])
    """
    cosines, _, kappa_p = _tables(cosines, kappa_p.new_zeros(len(cosines)), kappa_p)
    return vmf_log_normalizer(kappa_p, dim, centred=centred, normalizer=normalizer) + kappa_p * cosines


def el_vmf(
    cosines: Tensor,
    kappa_z: Tensor,
    kappa_p: Tensor,
    dim: int,
    *,
    centred: bool = False,
    normalizer: Normalizer = "debye",
) -> Tensor:
    """Return the expected likelihood log ∫ ρ_c ζ.

    Args:
        cosines: (B, C) floating.
        kappa_z: (B,) floating, >= 0.
        kappa_p: (C,) floating, >= 0.
        dim: M >= 2.
        centred: leave out log C(0), which all classes share.
        normalizer: see :func:`vmf_log_normalizer`.

    Returns:
        (B, C) in float32 or float64.

    Raises:
        LossError: shapes that do not fit.

    Example:
        >>> el_vmf(torch.tensor([[8 / 9]]), torch.tensor([3.0]), torch.tensor([3.0]), 3)
        tensor([[-1.5679]])
    """
    return probability_product(cosines, kappa_z, kappa_p, dim, exponent=1.0, centred=centred, normalizer=normalizer)


def b_vmf(cosines: Tensor, kappa_z: Tensor, kappa_p: Tensor, dim: int, *, normalizer: Normalizer = "debye") -> Tensor:
    """Return the Bhattacharyya similarity log ∫ √(ρ_c ζ), at most 0, and 0 where the densities are the same.

    Args:
        cosines: (B, C) floating.
        kappa_z: (B,) floating, >= 0.
        kappa_p: (C,) floating, >= 0.
        dim: M >= 2.
        normalizer: see :func:`vmf_log_normalizer`.

    Returns:
        (B, C) in float32 or float64.

    Raises:
        LossError: shapes that do not fit.

    Example:
        >>> b_vmf(torch.tensor([[8 / 9]]), torch.tensor([3.0]), torch.tensor([3.0]), 3)
        tensor([[-0.0564]])
    """
    return probability_product(cosines, kappa_z, kappa_p, dim, exponent=0.5, centred=False, normalizer=normalizer)


def probability_product(
    cosines: Tensor,
    kappa_z: Tensor,
    kappa_p: Tensor,
    dim: int,
    *,
    exponent: float,
    centred: bool = False,
    normalizer: Normalizer = "debye",
) -> Tensor:
    """Return the probability product kernel log ∫ (ρ_c ζ)^r = r [log C(κ_z) + log C(κ_p)] - log C(r κ_3).

    Args:
        cosines: (B, C) floating.
        kappa_z: (B,) floating, >= 0.
        kappa_p: (C,) floating, >= 0.
        dim: M >= 2.
        exponent: r > 0; 1 is the expected likelihood, ½ the Bhattacharyya coefficient.
        centred: leave out (2r - 1) log C(0), which all classes share.
        normalizer: see :func:`vmf_log_normalizer`.

    Returns:
        (B, C) in float32 or float64.

    Raises:
        LossError: shapes that do not fit, or an exponent that is not positive.

    Example:
        >>> probability_product(torch.tensor([[8 / 9]]), torch.tensor([3.0]), torch.tensor([3.0]), 3, exponent=0.5)
        tensor([[-0.0564]])
    """
    check_number("exponent", exponent, low=0, open_low=True)
    cosines, kappa_z, kappa_p = _tables(cosines, kappa_z, kappa_p)
    both = _resultant(cosines, kappa_z, kappa_p)
    logs = [
        vmf_log_normalizer(values, dim, centred=True, normalizer=normalizer)
        for values in (kappa_z, kappa_p, exponent * both)
    ]
    result = exponent * (logs[0] + logs[1]) - logs[2]
    if centred or exponent == 0.5:
        return result
    return result + (2 * exponent - 1) * vmf_log_normalizer(kappa_p.new_zeros(()), dim)


def kl_vmf(cosines: Tensor, kappa_z: Tensor, kappa_p: Tensor, dim: int, *, normalizer: Normalizer = "debye") -> Tensor:
    """Return minus the divergence KL(ζ ‖ ρ_c) from image to class, at most 0, and 0 where the densities are the same.

    Args:
        cosines: (B, C) floating.
        kappa_z: (B,) floating, >= 0.
        kappa_p: (C,) floating, >= 0.
        dim: M >= 2.
        normalizer: see :func:`vmf_log_normalizer`; the mean length A is exact in any case.

    Returns:
        (B, C) in float32 or float64.

    Raises:
        LossError: shapes that do not fit.

    Example:
        >>> kl_vmf(torch.tensor([[8 / 9]]), torch.tensor([3.0]), torch.tensor([3.0]), 3)
        tensor([[-0.2239]])
    """
    cosines, kappa_z, kappa_p = _tables(cosines, kappa_z, kappa_p)
    log_z, log_p = (
        vmf_log_normalizer(values, dim, centred=True, normalizer=normalizer) for values in (kappa_z, kappa_p)
    )
    return log_p - log_z - vmf_mean_resultant_length(kappa_z, dim) * (kappa_z - kappa_p * cosines)


def _resultant(cosines: Tensor, kappa_z: Tensor, kappa_p: Tensor) -> Tensor:
    """κ_3 = |κ_z μ_z + κ_p μ_p|, without cancellation, and with a finite gradient where it vanishes."""
    squared = (kappa_z - kappa_p).square() + 2 * kappa_z * kappa_p * (1 + cosines)
    return torch.sqrt(squared.clamp_min(0) + 1e-12)


def _tables(cosines: Tensor, kappa_z: Tensor, kappa_p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Check the shapes; return (B, C), (B, 1) and (1, C) in float32 or float64."""
    if cosines.ndim != 2 or kappa_z.shape != cosines.shape[:1] or kappa_p.shape != cosines.shape[1:]:
        raise LossError(
            "Cosines must have shape (B, C), kappa_z (B,) and kappa_p (C,); got "
            f"{tuple(cosines.shape)}, {tuple(kappa_z.shape)} and {tuple(kappa_p.shape)}."
        )
    return upcast(cosines), upcast(kappa_z)[:, None], upcast(kappa_p)[None, :]
