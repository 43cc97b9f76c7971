"""Pooling: from the tokens of the last stage to one vector a picture. Computed in float32."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from proxemics.core.errors import ModelError, did_you_mean
from proxemics.core.geometry import upcast

PoolingName = Literal["avg", "max", "avg+max", "gem", "cls"]
POOLINGS: tuple[str, ...] = get_args(PoolingName)


def avg_max_pool(tokens: Tensor) -> Tensor:
    """Mean plus maximum over the tokens, as Proxy Anchor and SEE pool their ResNets.

    Args:
        tokens: (B, P, C) floating, P >= 1.

    Returns:
        (B, C).

    Example:
        >>> avg_max_pool(torch.tensor([[[0.0], [2.0]]]))
        tensor([[3.]])
    """
    return tokens.mean(dim=1) + tokens.amax(dim=1)


def gem_pool(tokens: Tensor, p: Tensor | float, eps: float = 1e-6) -> Tensor:
    """Generalised mean ``(mean_i max(x_i, eps)^p)^(1/p)``: the mean at p = 1, the maximum as p grows.

    Source: Radenovic, Tolias and Chum, "Fine-tuning CNN image retrieval with no human annotation", eq. (3).

    Args:
        tokens: (B, P, C) floating, P >= 1. Meant for features that are positive where they matter.
        p: the exponent, above 0.
        eps: smaller values are raised to this, which keeps powers and gradients finite.

    Returns:
        (B, C), float32 or better.

    Example:
        >>> gem_pool(torch.tensor([[[1.0], [3.0]]]), 1.0)
        tensor([[2.]])
        >>> gem_pool(torch.tensor([[[1.0], [3.0]]]), 50.0).round(decimals=1)
        tensor([[3.]])
    """
    # Powers of the ratio to the maximum cannot overflow, whatever the size of the features.
    values = upcast(tokens).clamp(min=eps)
    top = values.amax(dim=1, keepdim=True).detach()
    return (values / top).pow(p).mean(dim=1).pow(1.0 / p) * top.squeeze(1)


class Pooling(nn.Module):
    """Pool patch tokens, or take the class token.

    Args:
        how: ``avg``, ``max``, ``avg+max`` (their sum), ``gem`` (exponent learnt from 3, always float32) or ``cls``
            (the first prefix token).

    Raises:
        ModelError: ``how`` is something else.

    Example:
        >>> Pooling("avg")(torch.ones(2, 9, 4), torch.ones(2, 0, 4)).shape
        torch.Size([2, 4])
    """

    def __init__(self, how: str = "avg") -> None:
        super().__init__()
        if how not in POOLINGS:
            raise ModelError(f"Unknown pooling {how!r}.{did_you_mean(how, POOLINGS)} Allowed: {', '.join(POOLINGS)}.")
        self.how = how
        self.p = nn.Parameter(torch.full((), 3.0)) if how == "gem" else None

    def forward(self, patches: Tensor, prefix: Tensor) -> Tensor:
        """Pool.

        Args:
            patches: (B, P, C) floating.
            prefix: (B, n, C) class and register tokens; n may be 0 unless ``how`` is ``cls``.

        Returns:
            (B, C) float32 (float64 from float64).
        """
        patches = upcast(patches)
        if self.how == "cls":
            return upcast(prefix[:, 0])
        if self.p is not None:
            return gem_pool(patches, upcast(self.p))
        if self.how == "max":
            return patches.amax(dim=1)
        return avg_max_pool(patches) if self.how == "avg+max" else patches.mean(dim=1)

    def extra_repr(self) -> str:
        """Show how it pools."""
        return self.how
