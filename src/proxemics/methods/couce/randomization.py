"""Amplitude randomisation: the map keeps the phases of its spectrum, its amplitudes are changed band by band.

    X = rfft2(F), A = |X|, e = X/A            orthonormal; e = 1 where A is rounding noise
    mix, swap:  Ã = (1-λ_b) A + λ_b A'        A' the amplitude of a partner, λ_b a number for each picture and band
    scale:      Ã = g_b A
    F~ = irfft2(Ã e)

Phases hold the layout of a picture, amplitudes much of its style: FACT (Xu et al., CVPR 2021) mixes them in pixels over
the whole spectrum, here they are mixed in bands, in any map.

The bands are folded into one radial mask, so that their number costs nothing. The partner's amplitude is a constant, as
in do(amplitude = a): no gradient flows to the partner. The gradient to the own map is exact, and needs the half
spectrum alone: coefficients enter through a pointwise Jacobian J, and grad F = irfft2(Jᵀ rfft2(grad F~)), because the
weights by which the half spectrum counts cells twice cancel. Where A is rounding noise the phase is held constant.

Source: our reading of CouCE (arXiv 2606.30365), which is known to us by its abstract; the mix is that of FACT.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from proxemics.core.errors import LossError
from proxemics.core.geometry import upcast
from proxemics.methods.couce.draws import Mode, check_randomization, draw_strengths
from proxemics.methods.couce.spectrum import Bands, band_index, noise_floor

CPU_CELLS, OTHER_CELLS = 1 << 18, 1 << 26
"""Values that are worked on at a time: few enough to stay in the cache of a CPU, many enough to fill a GPU."""


def amplitudes(features: Tensor) -> Tensor:
    """Return the amplitudes of the half spectrum, without a gradient.

    Args:
        features: (B, C, H, W) floating.

    Returns:
        (B, C, H, W//2+1) float32 (float64 from float64), orthonormal.

    Example:
        >>> amplitudes(torch.ones(1, 1, 2, 2)).tolist()
        [[[[2.0, 0.0], [0.0, 0.0]]]]
    """
    with torch.autocast(features.device.type, enabled=False), torch.no_grad():
        maps = features.detach()
        size = (*maps.shape[:-1], maps.shape[-1] // 2 + 1)
        found = torch.empty(size, dtype=upcast(maps[:0]).dtype, device=maps.device)
        for rows in _chunks(maps):
            torch.abs(_rfft2(upcast(maps[rows])), out=found[rows])
        return found


def amplitude_randomization(
    features: Tensor,
    *,
    bands: Bands = (0, 1 / 3, 2 / 3, 1),
    mode: Mode = "mix",
    eta: tuple[float, ...] = (0.5, 1.0, 1.0),
    sigma: float = 0.5,
    probability: float | tuple[float, ...] = 0.5,
    keep_dc: bool = False,
    strengths: Tensor | None = None,
    partners: Tensor | None = None,
    partner_amplitudes: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Change the amplitudes of a map's spectrum in bands and keep its phases.

    Args:
        features: (B, C, H, W) floating; computed in float32 or better.
        bands: edges of the n_b bands, from 0 to 1; see :func:`proxemics.methods.couce.spectrum.band_index`.
        mode: ``"mix"`` and ``"swap"`` take amplitudes of a partner in part or in whole, ``"scale"`` stretches the own.
        eta: for mix, the largest λ of each band, in [0, 1].
        sigma: for scale, log g is uniform in [-sigma, sigma].
        probability: for swap, that of λ = 1: one number for all bands or one a band.
        keep_dc: leave the (0, 0) coefficient, the mean of each channel, alone.
        strengths: (B, n_b): λ for mix and swap, g for scale; drawn when None.
        partners: (B,) int64, the row each takes amplitudes from; a random permutation when None.
        partner_amplitudes: (B, C, H, W//2+1), amplitudes to take instead of those of ``partners``, as
            :func:`amplitudes` gives them.
        generator: source of the draws, on the device of ``features``.

    Returns:
        (B, C, H, W) in the dtype of ``features``; differentiable once with respect to the own features.

    Raises:
        LossError: an option is out of range, or a shape does not fit.

    Example:
        >>> maps = torch.randn(4, 2, 7, 7)
        >>> same = amplitude_randomization(maps, strengths=torch.zeros(4, 3))
        >>> torch.allclose(same, maps, atol=1e-6)
        True
    """
    check_randomization(bands, mode, eta, sigma, probability)
    if features.ndim != 4 or not features.is_floating_point():
        raise LossError(f"Maps must be floating (B, C, H, W), got {features.dtype} {tuple(features.shape)}.")
    count, (height, width) = len(features), features.shape[2:]
    if strengths is None:
        strengths = draw_strengths(
            count, len(bands) - 1, mode=mode, eta=eta, sigma=sigma, probability=probability, generator=generator,
            device=features.device,
        )  # fmt: skip
    if strengths.shape != (count, len(bands) - 1):
        raise LossError(f"strengths must be {(count, len(bands) - 1)}, one a band, got {tuple(strengths.shape)}.")
    if mode == "scale":
        partners = partner_amplitudes = None
    elif partner_amplitudes is not None:
        _check_shape("partner_amplitudes", partner_amplitudes, (*features.shape[:3], width // 2 + 1))
        partners = None
    elif partners is None:
        partners = torch.randperm(count, generator=generator, device=features.device)
    else:
        _check_shape("partners", partners, (count,))
    if not features.numel():
        return features
    index = band_index(height, width, bands)
    neutral = 1.0 if mode == "scale" else 0.0
    if keep_dc:  # the mean is a band of its own, which is left as it is
        index[0, 0] = len(bands) - 1
        strengths = torch.cat([strengths, torch.full_like(strengths[:, :1], neutral)], 1)
    with torch.autocast(features.device.type, enabled=False):
        maps = upcast(features)
        changed: Tensor = _Randomize.apply(
            maps,
            strengths.detach().to(maps.dtype),
            index.to(maps.device),
            partners,
            None if partner_amplitudes is None else partner_amplitudes.detach().to(maps.dtype),
        )
        return changed.to(features.dtype)


class _Randomize(torch.autograd.Function):
    """A few pictures at a time, so that nothing large is kept besides the half spectrum, its power and the result."""

    @staticmethod
    def forward(
        ctx: Any, maps: Tensor, strengths: Tensor, index: Tensor, partners: Tensor | None, others: Tensor | None
    ) -> Tensor:
        saving, mixing = ctx.needs_input_grad[0], partners is not None or others is not None
        if partners is not None and not saving and maps.device.type == "cpu" and maps[0].numel() > CPU_CELLS // 4:
            cycles = _cycles(partners.tolist())
            if cycles is not None:
                return _mix_along_cycles(maps, strengths, index, cycles)
        spectrum = power = None
        if mixing and (saving or partners is not None):
            size = (*maps.shape[:-1], maps.shape[-1] // 2 + 1)
            power = maps.new_empty(size)
            # Touching fresh memory costs more than a transform; without a graph the spectrum is not worth keeping.
            spectrum = torch.empty(size, dtype=maps.dtype.to_complex(), device=maps.device) if saving else None
            for rows in _chunks(maps):
                own = _rfft2(maps[rows])
                power[rows] = _power(own)
                if spectrum is not None:
                    spectrum[rows] = own
        changed = torch.empty(maps.shape, dtype=maps.dtype, device=maps.device)
        for rows in _chunks(maps):
            own = _rfft2(maps[rows]) if spectrum is None else spectrum[rows]
            gain = _share(strengths[rows], index)
            extra = None
            if mixing:
                own_power = _power(own) if power is None else power[rows]
                gain, extra = _gain(own_power, _partner_power(rows, power, partners, others), gain)
            own = own * gain if spectrum is not None else own.mul_(gain)
            changed[rows] = _irfft2(own if extra is None else own.add_(extra), maps.shape)
        if saving:
            ctx.save_for_backward(strengths, index, spectrum, power, partners, others)
            ctx.mixing = mixing
        return changed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        strengths, index, spectrum, power, partners, others = ctx.saved_tensors
        with torch.autocast(grad.device.type, enabled=False):
            result = torch.empty(grad.shape, dtype=grad.dtype, device=grad.device)
            for rows in _chunks(grad):
                slope = _rfft2(grad[rows])
                share = _share(strengths[rows], index)
                if not ctx.mixing:
                    slope.mul_(share)
                else:
                    other = _partner_power(rows, power, partners, others)
                    slope = _mixed_backward(slope, spectrum[rows], power[rows], other, share)
                result[rows] = _irfft2(slope, grad.shape)
        return result, None, None, None, None


def _cycles(partners: list[int]) -> list[list[int]] | None:
    """Return the cycles of a permutation, each row followed by its partner; None when it is no permutation.

    Example:
        >>> _cycles([1, 0, 2]), _cycles([0, 0])
        ([[0, 1], [2]], None)
    """
    if len(set(partners)) < len(partners):
        return None
    left, cycles = set(range(len(partners))), []
    while left:
        row = min(left)
        cycle = []
        while row in left:
            left.remove(row)
            cycle.append(row)
            row = partners[row]
        cycles.append(cycle)
    return cycles


def _mix_along_cycles(maps: Tensor, strengths: Tensor, index: Tensor, cycles: list[list[int]]) -> Tensor:
    """Walk from each picture to its partner, so that each spectrum is computed once and two are kept at a time."""
    changed = torch.empty(maps.shape, dtype=maps.dtype, device=maps.device)
    for cycle in cycles:
        first = own = _rfft2(maps[cycle[0]][None])
        first_power = own_power = _power(own)
        for row, partner in zip(cycle, [*cycle[1:], None], strict=True):
            other = first if partner is None else _rfft2(maps[partner][None])
            other_power = first_power if partner is None else _power(other)
            gain, extra = _gain(own_power, other_power, _share(strengths[row][None], index))
            mixed = own * gain if own is first else own.mul_(gain)
            changed[row] = _irfft2(mixed if extra is None else mixed.add_(extra), maps.shape)[0]
            own, own_power = other, other_power
    return changed


def _share(strengths: Tensor, index: Tensor) -> Tensor:
    """(n, 1, H, W//2+1): all bands folded into one mask."""
    return strengths.index_select(1, index.flatten()).view(-1, 1, *index.shape)


def _gain(own: Tensor, other: Tensor, share: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return 1-λ + λ A'/A, and λ A' where A is noise (and 1-λ stands in the gain); None where nothing is.

    Args:
        own: A².
        other: A'².
        share: λ.
    """
    floor, extra = noise_floor(own), None
    if own.is_cuda or bool((own.amin((-2, -1), keepdim=True) <= floor).any()):
        noise = own <= floor
        extra = other.sqrt() * share * noise
        own = own.masked_fill(noise, torch.inf)
    return other.div(own).sqrt_().sub_(1).mul_(share).add_(1), extra


def _mixed_backward(slope: Tensor, own: Tensor, power: Tensor, other: Tensor, share: Tensor) -> Tensor:
    """(1-λ) G + λ A'/A (G - e Re(ē G)): turning the own phase moves the result, stretching the own amplitude does not.

    Written as G · (1-λ + f) - X · f Re(X̄ G)/A² with f = λ A'/A, and f = 0 where A is noise.
    """
    power = power.masked_fill(power <= noise_floor(power), torch.inf)
    factor = other.div_(power).sqrt_().mul_(share)
    along = (own.real * slope.real).addcmul_(own.imag, slope.imag).div_(power).mul_(factor)
    return slope.mul_(factor.add_(1).sub_(share)).sub_(own * along)


def _power(spectrum: Tensor) -> Tensor:
    return spectrum.real.square().addcmul_(spectrum.imag, spectrum.imag)


def _partner_power(rows: slice, power: Tensor | None, partners: Tensor | None, others: Tensor | None) -> Tensor:
    """A copy, free to be overwritten."""
    if others is not None:
        return others[rows].square()
    assert power is not None
    assert partners is not None
    return power.index_select(0, partners[rows])


def _check_shape(name: str, given: Tensor, wanted: tuple[int, ...]) -> None:
    if given.shape != wanted:
        raise LossError(f"{name} must be {tuple(wanted)}, got {tuple(given.shape)}.")


def _chunks(maps: Tensor) -> Iterator[slice]:
    cells = CPU_CELLS if maps.device.type == "cpu" else OTHER_CELLS
    step = max(1, cells // max(1, maps[0].numel())) if len(maps) else 1
    return (slice(start, start + step) for start in range(0, len(maps), step))


def _rfft2(maps: Tensor) -> Tensor:
    spectrum: Tensor = torch.fft.rfft2(maps, norm="ortho")
    return spectrum


def _irfft2(spectrum: Tensor, shape: torch.Size) -> Tensor:
    maps: Tensor = torch.fft.irfft2(spectrum, s=shape[-2:], norm="ortho")
    return maps
