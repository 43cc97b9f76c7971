"""The non-isotropic von Mises-Fisher density (nivMF), and the expected likelihood between it and an image's vMF.

    ρ(u) = C_M(|Kμ|) D(K, μ) exp(|Kμ| cos(Ku, Kμ)),   K = diag(κ_1 .. κ_M)

Source: Kirchhof et al., ECCV 2022 (arXiv 2207.03784), for the density and the expected likelihood; D is not in the
paper's text and follows the authors' release by default. The release compares the unstretched draw with Kμ in the
expected likelihood, which makes the non-isotropy vacuous; the text stretches both, and so do we unless told otherwise.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from proxemics.core.errors import LossError
from proxemics.core.geometry import upcast
from proxemics.losses.checks import check_number
from proxemics.methods.options import check_choice
from proxemics.methods.probabilistic.normalizer import Normalizer
from proxemics.methods.probabilistic.sampling import Sampler, sample_vmf
from proxemics.methods.probabilistic.stretched import StretchOptions, stretched_logits

Det = Literal["released", "mode", "exact", "none"]
"""log D. released: Σ log κ_m - log|Kμ|; mode: Σ log κ_m - M log|Kμ|; exact: Σ log κ_m - M log|Ku|; none: 0."""

TemperaturePosition = Literal["inner", "outer"]


def nivmf_log_density(
    points: Tensor,
    mu: Tensor,
    kappa: Tensor,
    *,
    det: Det = "released",
    stretch_sample: bool = True,
    normalizer: Normalizer = "debye",
) -> Tensor:
    """Return log ρ_c(u) of the nivMF densities of all classes at unit vectors.

    With ``det="exact"`` the density integrates to one; with ``"mode"`` it does so for K = cI. The released D is off by
    the factor c^{M-1} there, and acts as a prior that favours classes with large κ.

    Args:
        points: (..., M) floating, unit.
        mu: (C, M) floating, directions of the classes, any length.
        kappa: (C, M) floating, > 0, the concentration along each axis.
        det: which factor D.
        stretch_sample: measure the angle from Ku; False: from u, as the release does in its expected likelihood.
        normalizer: see :func:`vmf_log_normalizer`.

    Returns:
        (..., C) in float32 or float64; differentiable once.

    Raises:
        LossError: shapes that do not fit, κ not positive, or no such option.

    Example:
        >>> u = torch.tensor([[1.0, 2.0, 2.0]]) / 3
        >>> nivmf_log_density(u, torch.tensor([[2.0, 1.0, 2.0]]), torch.tensor([[1.0, 2.0, 3.0]]))
        tensor([[-0.1389]])
    """
    check_stretch(det, stretch_sample)
    check_classes(points, mu, kappa)
    rows, directions, concentrations = _together(points, mu, kappa)
    flat = rows.reshape(1, -1, rows.shape[-1])
    one = flat.new_ones(())
    values, constant = stretched_logits(
        flat, directions, concentrations, one, StretchOptions(det, stretch_sample, normalizer)
    )
    return (values + constant).view(*points.shape[:-1], len(mu))


def el_nivmf(
    embeddings: Tensor,
    mu: Tensor,
    kappa: Tensor,
    *,
    num_samples: int = 5,
    temperature: float | Tensor = 1.0,
    temperature_position: TemperaturePosition = "inner",
    det: Det = "released",
    stretch_sample: bool = True,
    normalizer: Normalizer = "debye",
    sampler: Sampler = "stable",
    centred: bool = False,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return the Monte-Carlo expected likelihood log ∫ ρ_c ζ between images ζ = vMF(z/|z|, |z|) and classes, as logits.

    ``inner`` is LME_n(log ρ(u_n) / t), ``outer`` is LME_n(log ρ(u_n)) / t, where LME is log-mean-exp over the draws;
    they agree for one draw and for t = 1. Two products of (N·B, M) by (M, C) and O(NBC) memory.

    Args:
        embeddings: (B, M) floating, not normalised: the length is the concentration of the image.
        mu: (C, M) floating, directions of the classes, any length.
        kappa: (C, M) floating, > 0.
        num_samples: N, draws an image.
        temperature: t > 0, a number or a 0-d tensor with a gradient.
        temperature_position: inside the log-mean-exp (release) or outside (text).
        det: see :func:`nivmf_log_density`.
        stretch_sample: see :func:`nivmf_log_density`.
        normalizer: see :func:`vmf_log_normalizer`.
        sampler: see :func:`sample_vmf`.
        centred: leave out a constant that all classes share, which keeps the digits that a softmax needs.
        generator: source of the draws, on the device of the embeddings.

    Returns:
        (B, C) in float32 or float64; differentiable once.

    Raises:
        LossError: shapes that do not fit, κ or t not positive, or no such option.

    Example:
        >>> z = torch.tensor([[0.0, 0.0, 1e6]])
        >>> el_nivmf(z, torch.eye(3), torch.full((3, 3), 2.0), generator=torch.Generator().manual_seed(0)).argmax()
        tensor(2)
    """
    check_stretch(det, stretch_sample)
    check_choice("temperature_position", temperature_position, get_args(TemperaturePosition))
    check_classes(embeddings, mu, kappa)
    raw, directions, concentrations = _together(embeddings, mu, kappa)
    if not isinstance(temperature, Tensor):
        check_number("temperature", temperature, low=0, open_low=True)
    t = torch.as_tensor(temperature, dtype=raw.dtype, device=raw.device)
    draws = sample_vmf(raw, torch.linalg.vector_norm(raw, dim=-1), num_samples, generator, sampler=sampler)
    options = StretchOptions(det, stretch_sample, normalizer, inner=temperature_position == "inner")
    logits, constant = stretched_logits(draws, directions, concentrations, t, options)
    return logits if centred else logits + constant / t


def check_stretch(det: str, stretch_sample: bool) -> None:
    """Refuse an unknown determinant, and the exact one for a draw that is not stretched.

    Raises:
        LossError: with what is allowed.
    """
    check_choice("det", det, get_args(Det))
    if det == "exact" and not stretch_sample:
        raise LossError(
            "det='exact' is the change of variables u → Ku and has no meaning with stretch_sample=False; "
            "use stretch_sample=True, or det='mode'."
        )


def check_classes(points: Tensor, mu: Tensor, kappa: Tensor) -> None:
    """Refuse shapes that do not belong together, and concentrations that are not positive.

    Raises:
        LossError: with the shapes, or the smallest κ.
    """
    if mu.ndim != 2 or kappa.shape != mu.shape or not len(mu) or points.shape[-1] != mu.shape[1]:
        raise LossError(
            "Points must have shape (..., M), mu and kappa (C, M) with C >= 1; got "
            f"{tuple(points.shape)}, {tuple(mu.shape)} and {tuple(kappa.shape)}."
        )
    least = float(kappa.detach().amin())
    if not least > 0:
        raise LossError(f"kappa must be above 0 everywhere, got {least:g}; clamp it, for example at 0.1.")


def _together(points: Tensor, mu: Tensor, kappa: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Bring all to float32, or to float64 if one is."""
    tensors = [upcast(values) for values in (points, mu, kappa)]
    dtype = torch.float64 if any(values.dtype == torch.float64 for values in tensors) else torch.float32
    first, second, third = (values.to(dtype) for values in tensors)
    return first, second, third
