"""Another background behind the same object: exchange of located background content between the maps of a batch.

    r = relu(Σ_c F_c · ∂s/∂F_c), smoothed;  g = σ(-r̂/T)          where does the own class come from; g is high elsewhere
    B_j = g_j F_j + (1 - g_j) μ_j,  μ_j = Σ g_j F_j / Σ g_j        the partner's background, its object painted over
    F~_i = (1 - g_i) F_i + g_i B_j

With s the lead of the own class, r is gradient times input, as in Grad-CAM (Selvaraju et al., ICCV 2017) but place by
place. Exchanging backgrounds between labelled pictures is the idea of BackMix, which CouCE (arXiv 2606.30365) cites; as
an estimator of its backdoor adjustment it is our reading: the strata are the backgrounds of the batch itself.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from proxemics.core.geometry import upcast
from proxemics.methods.couce.gates import soft_gate


def relevance_gate(maps: Tensor, gradients: Tensor, temperature: float = 0.5, *, smooth: int = 3) -> Tensor:
    """Gate places by how much the score owes to them.

    Args:
        maps: (B, C, H, W) floating.
        gradients: (B, C, H, W), of the score of each picture by its map.
        temperature: T > 0.
        smooth: side of the averaging window, odd; 1 leaves the relevance as it is.

    Returns:
        (B, 1, H, W) in (0, 1), float32 or better: high on background.

    Example:
        >>> maps = torch.ones(1, 2, 4, 4)
        >>> gradients = torch.zeros(1, 2, 4, 4)
        >>> gradients[..., 0, 0] = 1.0
        >>> gate = relevance_gate(maps, gradients, smooth=1)
        >>> bool(gate[0, 0, 0, 0] < 0.01), bool(gate[0, 0, 3, 3] > 0.5)
        (True, True)
    """
    relevance = (upcast(maps) * upcast(gradients)).sum(1, keepdim=True).clamp_min(0)
    if smooth > 1:
        relevance = functional.avg_pool2d(relevance, smooth, 1, smooth // 2, count_include_pad=False)
    return soft_gate(relevance.flatten(1), temperature).view_as(relevance)


def background_content(maps: Tensor, gate: Tensor) -> Tensor:
    """Return the maps with their objects painted over by the mean of their background.

    Args:
        maps: (B, C, H, W) floating.
        gate: (B, 1, H, W) in (0, 1), high on background.

    Returns:
        (B, C, H, W).

    Example:
        >>> maps = torch.tensor([[[[5.0, 1.0, 1.0]]]])
        >>> background_content(maps, torch.tensor([[[[0.0, 1.0, 1.0]]]])).flatten().tolist()
        [1.0, 1.0, 1.0]
    """
    gate = gate.to(maps.dtype)
    mean = (gate * maps).sum((2, 3), keepdim=True) / gate.sum((2, 3), keepdim=True).clamp_min(1e-6)
    return torch.lerp(mean.expand_as(maps), maps, gate)


def exchange_background(maps: Tensor, gate: Tensor, content: Tensor) -> Tensor:
    """Put other background content behind the objects.

    Args:
        maps: (B, C, H, W) floating.
        gate: (B, 1, H, W) in (0, 1), high on background.
        content: (B, C, H, W), from :func:`background_content` of the partners.

    Returns:
        (B, C, H, W), differentiable in ``maps``.

    Example:
        >>> exchange_background(torch.ones(1, 1, 1, 2), torch.tensor([[[[0.0, 1.0]]]]), torch.zeros(1, 1, 1, 2))
        tensor([[[[1., 0.]]]])
    """
    return torch.lerp(maps, content.to(maps.dtype), gate.to(maps.dtype))
