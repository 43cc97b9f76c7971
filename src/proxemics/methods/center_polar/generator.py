"""The generator of C3E: pictures with the content of the old ones and another look.

    G(x) = tanh(K₂ * (σ' · IN(K₁ * x) + μ')),   x̃ = mix · G(x) + (1 - mix) · x

K₁ and K₂ are random kernels of 5, 9, 13 or 17 pixels, one size a step; IN is instance norm over a channel of a picture;
σ' ~ N(ψ_σ, ψ_s²) and μ' ~ N(ψ_μ, ψ_m²) are drawn for every picture and channel. Only ψ learns: 4 numbers a channel and
kernel size, 48 in all. K₂ is linear, so its 3 x 3 responses are computed once and every draw of (σ', μ') is a weighted
sum of them. tanh is spread over the range of valid pixels, so that x̃ is a picture again.

Source: our reading, after the style modules of single-domain generalisation (progressive domain expansion, learning to
diversify).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from proxemics.data.preprocess import Preprocess
from proxemics.methods.center_polar.filters import draw_kernels, filter_parts, filtered, instance_norm

KERNELS = (5, 9, 13, 17)
CPU_BLOCK = 4
MEAN_SCALE, SPREAD_SCALE, MEAN_SHIFT, SPREAD_SHIFT = range(4)


class Responses(NamedTuple):
    """What the random filters of a step make of pictures.

    Attributes:
        images: (B, 3, H, W) the pictures.
        parts: (B, 3, 3, H, W) responses of the second filter, before they are weighted and summed over axis 2.
        gains: (3, 3) its response to a constant.
    """

    images: Tensor
    parts: Tensor
    gains: Tensor


def initial_psi() -> Tensor:
    """Return ψ at the start, (4 sizes, 4 numbers, 3 channels): σ' ~ N(1, 1/4), μ' ~ N(0, 1/4).

    Example:
        >>> initial_psi()[0, :, 0].tolist()
        [1.0, 0.5, 0.0, 0.5]
    """
    return torch.tensor([1.0, 0.5, 0.0, 0.5])[None, :, None].repeat(len(KERNELS), 1, 3)


def valid_range(preprocess: Preprocess, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return black and white as the model sees them, (3, 1, 1) each, in the dtype and on the device of ``like``.

    Example:
        >>> from proxemics.data.preprocess import Preprocess
        >>> half = Preprocess(size=8, resize=8, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
        >>> [float(end[0]) for end in valid_range(half, torch.zeros(1))]
        [-1.0, 1.0]
    """
    mean, std = (torch.tensor(values).to(like)[:, None, None] for values in (preprocess.mean, preprocess.std))
    return -mean / std, (1 - mean) / std


@torch.no_grad()
def respond(images: Tensor, branch: int, generator: torch.Generator) -> Responses:
    """Draw kernels of size ``KERNELS[branch]`` and filter pictures with them.

    Args:
        images: (B, 3, H, W) float32.
        branch: 0..3.
        generator: source of the kernels, on the device of the pictures.

    Example:
        >>> respond(torch.randn(2, 3, 16, 16), 3, torch.Generator().manual_seed(0)).parts.shape
        torch.Size([2, 3, 3, 16, 16])
    """
    first, second = draw_kernels(KERNELS[branch], generator)
    # On CPUs a few pictures at a time stay in the cache, 2.5 times faster than all at once.
    block = CPU_BLOCK if images.device.type == "cpu" else max(len(images), 1)
    parts = images.new_empty(len(images), 3, *images.shape[1:])
    for start in range(0, len(images), block):
        rows = slice(start, start + block)
        parts[rows] = filter_parts(instance_norm(filtered(images[rows], first)), second)
    return Responses(images, parts, second.sum((-2, -1)).to(images))


def render(
    responses: Responses, psi: Tensor, noise: Tensor, valid: tuple[Tensor, Tensor], *, mix: float = 0.6
) -> Tensor:
    """Return generated pictures; differentiable in ψ.

    Args:
        responses: from :func:`respond`.
        psi: (4, 3) of the kernel size at hand.
        noise: (B, 2, 3) normal numbers.
        valid: black and white, from :func:`valid_range`.
        mix: share of G(x), in [0, 1].

    Returns:
        (B, 3, H, W) within ``valid``.

    Example:
        >>> x = torch.rand(2, 3, 16, 16)
        >>> r = respond(x, 0, torch.Generator().manual_seed(0))
        >>> black, white = torch.zeros(3, 1, 1), torch.ones(3, 1, 1)
        >>> out = render(r, initial_psi()[0], torch.zeros(2, 2, 3), (black, white))
        >>> out.shape, bool((out >= 0).all() and (out <= 1).all())
        (torch.Size([2, 3, 16, 16]), True)
    """
    scale = psi[MEAN_SCALE] + psi[SPREAD_SCALE] * noise[:, 0]
    shift = psi[MEAN_SHIFT] + psi[SPREAD_SHIFT] * noise[:, 1]
    summed = (responses.parts * scale[:, None, :, None, None]).sum(2)
    look = torch.tanh(summed + (shift @ responses.gains.t())[:, :, None, None])
    black, white = valid
    mixed = mix * (black + (white - black) * (look + 1) / 2) + (1 - mix) * responses.images
    return mixed.maximum(black).minimum(white)


@torch.no_grad()
def expand_pictures(
    images: Tensor, psi: Tensor, preprocess: Preprocess, generator: torch.Generator, *, mix: float = 0.6
) -> Tensor:
    """Return pictures as the generator makes them now: one kernel size, one draw of everything.

    Args:
        images: (B, 3, H, W) float32, normalised by ``preprocess``.
        psi: (4, 4, 3).
        preprocess: of the model.
        generator: source of the draws, on the device of the pictures.
        mix: share of G(x).

    Returns:
        (B, 3, H, W) normalised, within the valid range.

    Example:
        >>> same = Preprocess(size=16, resize=16)
        >>> expand_pictures(torch.zeros(2, 3, 16, 16), initial_psi(), same, torch.Generator().manual_seed(0)).shape
        torch.Size([2, 3, 16, 16])
    """
    with torch.autocast(images.device.type, enabled=False):
        branch = draw_branch(generator)
        responses = respond(images.float(), branch, generator)
        noise = torch.randn(len(images), 2, 3, generator=generator, device=images.device)
        return render(
            responses, psi[branch].to(images.device), noise, valid_range(preprocess, responses.images), mix=mix
        )


def draw_branch(generator: torch.Generator) -> int:
    """Draw the number of a kernel size.

    Example:
        >>> 0 <= draw_branch(torch.Generator().manual_seed(0)) < 4
        True
    """
    return int(torch.randint(len(KERNELS), (), generator=generator, device=generator.device))
