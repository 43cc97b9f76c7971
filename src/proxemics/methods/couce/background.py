"""The background of a picture as a unit vector: what its map says where the gate is open, through the same head.

    b = norm(head(Σ_p g_p U_p / Σ_p g_p))        a constant: no gradient

Source: our reading of CouCE (arXiv 2606.30365).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from proxemics.core.geometry import normalize, upcast


def pool_places(tokens: Tensor, gate: Tensor) -> Tensor:
    """Return the mean over places, weighted by the gate.

    Args:
        tokens: (B, P, C) floating.
        gate: (B, P) >= 0.

    Returns:
        (B, C) float32 or better.

    Example:
        >>> pool_places(torch.tensor([[[1.0], [3.0]]]), torch.tensor([[1.0, 0.0]]))
        tensor([[1.]])
    """
    share = gate / gate.sum(1, keepdim=True).clamp_min(1e-12)
    return torch.bmm(share[:, None].to(upcast(tokens[:0]).dtype), upcast(tokens))[:, 0]


def pool_channels(tokens: Tensor, gate: Tensor) -> Tensor:
    """Return the mean over places, each channel times its gate; the gates have mean 1, to stay at the head's scale.

    Args:
        tokens: (B, P, C) floating.
        gate: (B, C) >= 0.

    Returns:
        (B, C) float32 or better.

    Example:
        >>> pool_channels(torch.tensor([[[1.0, 3.0]]]), torch.tensor([[0.5, 0.0]]))
        tensor([[2., 0.]])
    """
    return upcast(tokens).mean(1) * (gate / gate.mean(1, keepdim=True).clamp_min(1e-12))


@torch.no_grad()
def background_descriptors(
    tokens: Tensor, gate: Tensor, project: Callable[[Tensor], Tensor], *, channels: bool = False
) -> Tensor:
    """Return b.

    Args:
        tokens: (B, P, C) floating, the last map.
        gate: (B, P), or (B, C) if ``channels``.
        project: the head, (B, C) -> (B, M).
        channels: whether the gate is over channels.

    Returns:
        (B, M) unit, without a gradient.

    Example:
        >>> tokens = torch.tensor([[[2.0, 0.0], [0.0, 5.0]]])
        >>> background_descriptors(tokens, torch.tensor([[1.0, 0.0]]), lambda x: x)
        tensor([[1., 0.]])
    """
    pool = pool_channels if channels else pool_places
    return normalize(project(pool(tokens.detach(), gate)))
