"""Where is the background? Gates in (0, 1) over places or channels of a map, high on what looks like scene.

    g_p = σ(-v̂_p / T),  v̂ = v standardised over the places of a picture

* spatial: v_p = variance over channels at a place. A strong, selective response is an object, a flat one scene.
* profile: v_p = variance over classes of ⟨head(U_p), w_c⟩: a place that speaks for some classes and against others.
* border: v_p = 1 - cos(U_p - Ū, B̄ - Ū), with Ū the mean of the map and B̄ that of its outermost places: what is unlike
  the border is an object. That background touches the border of a picture is the prior of Wei et al. (ECCV 2012).
* channel: the same over channels instead of places, with v_c = variance of a channel over places: a channel that
  responds everywhere alike is context.

All are heuristics; check them once against known masks. Source: our reading of "variance-gated" in the abstract of
CouCE (arXiv 2606.30365).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from proxemics.core.errors import LossError
from proxemics.core.geometry import normalize, upcast


def soft_gate(scores: Tensor, temperature: float = 0.5) -> Tensor:
    """Return σ(-v̂/T) with v̂ the scores standardised over the last axis; 0.5 throughout where all are equal.

    Args:
        scores: (..., P) floating.
        temperature: T > 0.

    Returns:
        (..., P) in (0, 1), float32 or better, the same for any positive factor on the scores.

    Example:
        >>> soft_gate(torch.tensor([[0.0, 0.0, 3.0]]))
        tensor([[0.8044, 0.8044, 0.0558]])
        >>> soft_gate(torch.ones(1, 2))
        tensor([[0.5000, 0.5000]])
    """
    scores = upcast(scores)
    spread, mean = torch.var_mean(scores, -1, correction=0, keepdim=True)
    # Differences in the last digits are rounding, not structure.
    spread = spread.sqrt()
    real = spread > 1e-5 * mean.abs()
    standard = (scores - mean) / spread.clamp_min(torch.finfo(scores.dtype).tiny)
    return torch.sigmoid(torch.where(real, standard, 0.0) / -temperature)


def spatial_gate(tokens: Tensor, temperature: float = 0.5) -> Tensor:
    """Gate places by their variance over channels.

    Args:
        tokens: (B, P, C) floating.
        temperature: T > 0.

    Returns:
        (B, P) in (0, 1).

    Example:
        >>> tokens = torch.ones(1, 49, 8)
        >>> tokens[0, :6, 0] = 9.0
        >>> gate = spatial_gate(tokens)
        >>> round(float(gate[0, :6].mean()), 3), round(float(gate[0, 6:].mean()), 3)
        (0.005, 0.679)
    """
    return soft_gate(upcast(tokens).var(-1, correction=0), temperature)


def channel_gate(tokens: Tensor, temperature: float = 0.5) -> Tensor:
    """Gate channels by their variance over places.

    Args:
        tokens: (B, P, C) floating.
        temperature: T > 0.

    Returns:
        (B, C) in (0, 1).

    Example:
        >>> channel_gate(torch.tensor([[[1.0, 0.0], [1.0, 9.0]]]))
        tensor([[0.8808, 0.1192]])
    """
    return soft_gate(upcast(tokens).var(1, correction=0), temperature)


def border_gate(tokens: Tensor, grid: tuple[int, int], temperature: float = 0.5, *, smooth: int = 3) -> Tensor:
    """Gate places by how unlike the border of the map they are.

    Args:
        tokens: (B, P, C) floating, in raster order.
        grid: (h, w), h * w = P.
        temperature: T > 0.
        smooth: side of the averaging window over the scores, odd; 1 leaves them as they are.

    Returns:
        (B, P) in (0, 1); 0.5 throughout where the map has no inside or nothing stands out.

    Raises:
        LossError: the tokens form no map.

    Example:
        >>> tokens = torch.tensor([1.0, 0.0]).repeat(1, 25, 1)
        >>> tokens[0, 12] = torch.tensor([0.0, 1.0])
        >>> gate = border_gate(tokens, (5, 5), smooth=1)
        >>> bool(gate[0, 12] < 0.01), bool(gate[0, 0] > 0.5)
        (True, True)
    """
    if grid[0] * grid[1] != tokens.shape[1] or (grid[1] == 1 and grid[0] > 2):
        raise LossError(
            f"A border needs a map, and the {tokens.shape[1]} tokens of this trunk form none; "
            "use extract_gate='spatial'."
        )
    places = upcast(tokens)
    places = places - places.mean(1, keepdim=True)
    edge = torch.ones(grid, dtype=torch.bool, device=tokens.device)
    edge[1:-1, 1:-1] = False
    border = normalize(places[:, edge.flatten()].mean(1, keepdim=True))
    scores = 1 - (normalize(places) * border).sum(-1)
    if smooth > 1:
        maps = scores.view(len(scores), 1, *grid)
        scores = functional.avg_pool2d(maps, smooth, 1, smooth // 2, count_include_pad=False).flatten(1)
    return soft_gate(scores, temperature)


def profile_gate(projected: Tensor, proxies: Tensor, temperature: float = 0.5) -> Tensor:
    """Gate places by the variance over classes of their inner products with the unit proxies.

    Var_c⟨h, w_c⟩ = hᵀ Cov(w) h, so that the table of places and classes is never made. Several proxies a class count
    one by one.

    Args:
        projected: (B, P, M) floating, each place through the head.
        proxies: (C, M) or (C, K, M) floating, any length.
        temperature: T > 0.

    Returns:
        (B, P) in (0, 1).

    Example:
        >>> profile_gate(torch.tensor([[[2.0, 0.0], [0.0, 2.0]]]), torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
        tensor([[0.1192, 0.8808]])
    """
    units = normalize(proxies.detach()).flatten(0, -2)
    centred = units - units.mean(0)
    places = upcast(projected).to(units.dtype)
    if len(centred) <= centred.shape[1]:
        scores = (places @ centred.t()).square().mean(-1)
    else:
        scores = ((places @ (centred.t() @ centred)) * places).sum(-1) / len(centred)
    return soft_gate(scores, temperature)


def resize_gate(gate: Tensor, grid: tuple[int, int], target: tuple[int, int]) -> Tensor:
    """Bring a gate from one grid to another: averaged where the target is coarser, interpolated where it is finer.

    Args:
        gate: (B, P) over ``grid``.
        grid: (h, w), h * w = P.
        target: (H, W).

    Returns:
        (B, H * W).

    Raises:
        LossError: the gate is of tokens that form no map.

    Example:
        >>> resize_gate(torch.tensor([[0.0, 1.0, 1.0, 1.0]]), (2, 2), (1, 1))
        tensor([[0.7500]])
    """
    if grid == target:
        return gate
    if (grid[1] == 1 and grid[0] > 2) or (target[1] == 1 and target[0] > 2):
        raise LossError(
            "A gate must go from one map to another, and the tokens of this trunk form none; "
            "leave gate_stage and foreground_only out, or choose another trunk."
        )
    maps = gate.reshape(-1, 1, *grid)
    if target[0] <= grid[0] and target[1] <= grid[1]:
        maps = functional.adaptive_avg_pool2d(maps, target)
    else:
        maps = functional.interpolate(maps, target, mode="bilinear", align_corners=False)
    return maps.flatten(1)
