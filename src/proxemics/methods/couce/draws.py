"""How strongly which picture is changed in which band."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from proxemics.core.errors import LossError
from proxemics.losses.checks import check_number
from proxemics.methods.couce.spectrum import Bands, check_bands
from proxemics.methods.options import check_choice

Mode = Literal["mix", "scale", "swap"]
"""mix: amplitudes between the own and a partner's; swap: one of the two; scale: the own ones times a factor."""


def check_randomization(
    bands: Bands, mode: str, eta: tuple[float, ...], sigma: float, probability: float | tuple[float, ...]
) -> None:
    """Refuse options of the amplitude randomisation that are out of range.

    Raises:
        LossError: with the option.

    Example:
        >>> check_randomization((0, 0.5, 1), "mix", (1.0,), 0.5, 0.5)
        Traceback (most recent call last):
        ...
        proxemics.core.errors.LossError: eta=(1.0,): give one number for each of the 2 bands.
    """
    check_bands(bands)
    check_choice("mode", mode, get_args(Mode))
    check_number("sigma", sigma, low=0)
    several = probability if isinstance(probability, tuple | list) else (probability,)
    for value in several:
        check_number("probability", value, low=0, high=1)
    if mode == "swap" and isinstance(probability, tuple | list) and len(probability) != len(bands) - 1:
        raise LossError(
            f"probability={tuple(probability)}: give one number for all or each of the {len(bands) - 1} bands."
        )
    for value in eta:
        check_number("a number in eta", value, low=0, high=1)
    if mode == "mix" and len(eta) != len(bands) - 1:
        raise LossError(f"eta={tuple(eta)}: give one number for each of the {len(bands) - 1} bands.")


def draw_strengths(
    count: int,
    bands: int,
    *,
    mode: Mode = "mix",
    eta: tuple[float, ...] = (0.5, 1.0, 1.0),
    sigma: float = 0.5,
    probability: float | tuple[float, ...] = 0.5,
    generator: torch.Generator | None = None,
    device: torch.device | None = None,
) -> Tensor:
    """Draw a number for each picture and band.

    Args:
        count: B.
        bands: n_b.
        mode: mix: λ ~ U(0, eta_b). swap: λ is 1 with probability p_b, else 0. scale: g = exp(sigma ε), ε ~ U(-1, 1).
        eta: n_b numbers in [0, 1].
        sigma: >= 0.
        probability: p_b in [0, 1], one number for all bands or one a band.
        generator: source of the draws, on ``device``.
        device: of the result.

    Returns:
        (B, n_b) float32.

    Example:
        >>> draw_strengths(2, 3, mode="swap", probability=(0.0, 1.0, 1.0))
        tensor([[0., 1., 1.],
                [0., 1., 1.]])
    """
    uniform = torch.rand(count, bands, generator=generator, device=device)
    if mode == "swap":
        return (uniform < torch.tensor(probability, device=device)).float()
    if mode == "scale":
        return uniform.mul_(2 * sigma).sub_(sigma).exp_()
    return uniform.mul_(torch.tensor(eta, device=device))
