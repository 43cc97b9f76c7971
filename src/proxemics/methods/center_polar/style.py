"""C3E on feature statistics: other means and deviations of the channels of every picture, found by sign ascent.

    F̃ = e^{δ_σ} (F - μ) + μ + σ δ_μ        mean μ + σ δ_μ, standard deviation σ e^{δ_σ}
    δ ← clip(δ - s · sign(∂L_C3E/∂δ), ±budget),  δ = 0 at the start

At δ = 0 the expanded features are those of the clean pass, so the first step needs no pass of its own: with
g = ∂L_C3E/∂F from the graph at hand, ∂L_C3E/∂δ_μ = σ Σ g and ∂L_C3E/∂δ_σ = Σ g (F - μ), sums over the map.
Source: our reading.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from proxemics.core.geometry import upcast
from proxemics.core.ranks import gather_rows
from proxemics.methods.base import Step
from proxemics.methods.center_polar.frozen import evaluating
from proxemics.models.partial import StageFeatures


def restyle(maps: Tensor, shift: Tensor, log_scale: Tensor) -> Tensor:
    """Return F̃.

    Args:
        maps: (B, C, H, W) floating.
        shift: (B, C) δ_μ, in units of the standard deviation.
        log_scale: (B, C) δ_σ.

    Returns:
        (B, C, H, W) in float32 or float64, differentiable in δ.

    Example:
        >>> f = torch.tensor([[[[1.0, 3.0]]]])
        >>> restyle(f, torch.ones(1, 1), torch.zeros(1, 1)).tolist()
        [[[[2.0, 4.0]]]]
    """
    maps = upcast(maps)
    mean, deviation = _statistics(maps)
    moved = mean + deviation * shift[..., None, None]
    return log_scale.exp()[..., None, None] * (maps - mean) + moved


def _statistics(maps: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and population deviation over the map, (B, C, 1, 1)."""
    deviation, mean = torch.std_mean(maps, dim=(-2, -1), correction=0, keepdim=True)
    return mean, deviation


def gradient_at_rest(maps: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of δ_μ and δ_σ at δ = 0 from that of the features.

    Args:
        maps: (B, C, H, W) F.
        gradient: (B, C, H, W) g.

    Returns:
        (B, C) each, float32 or float64.

    Example:
        >>> f, g = torch.tensor([[[[1.0, 3.0]]]]), torch.tensor([[[[1.0, 2.0]]]])
        >>> [float(part) for part in gradient_at_rest(f, g)]
        [3.0, 1.0]
    """
    maps, gradient = upcast(maps), upcast(gradient)
    mean, deviation = _statistics(maps)
    return (gradient.sum((-2, -1)) * deviation[..., 0, 0], (gradient * (maps - mean)).sum((-2, -1)))


def sign_step(delta: Tensor, gradient: Tensor, *, size: float, budget: float) -> Tensor:
    """Return δ one step down the sign of the gradient, within the budget.

    Example:
        >>> sign_step(torch.tensor([0.45, 0.0]), torch.tensor([-3.0, 0.0]), size=0.1, budget=0.5)
        tensor([0.5000, 0.0000])
    """
    return (delta - size * torch.nan_to_num(gradient).sign()).clamp(-budget, budget)


def expand_style(
    step: Step,
    features: StageFeatures,
    objective: Callable[[Tensor], Tensor],
    *,
    steps: int,
    size: float,
    budget: float,
) -> tuple[StageFeatures, tuple[Tensor, Tensor]]:
    """Return features in the style that the objective asks for, without a graph, and δ.

    Args:
        step: of training.
        features: of the clean pass at the stage, own share.
        objective: unit embeddings of the joined batch to the scalar that is minimised.
        steps: ascent steps on -objective.
        size: of a step.
        budget: largest absolute value in δ.

    Returns:
        The features, and (δ_μ, δ_σ), (b, C) each.
    """
    maps = upcast(features.as_map().detach())
    rest = maps.new_zeros(maps.shape[:2])
    delta = (rest, rest)
    for number in range(steps):
        if number == 0 and features.value.requires_grad and step.z.requires_grad:
            gradients = gradient_at_rest(maps, _gradient_of_clean_pass(step, features, objective))
        else:
            gradients = _gradient_of_restyled(step, features, maps, delta, objective)
        shift, log_scale = (
            sign_step(old, new, size=size, budget=budget) for old, new in zip(delta, gradients, strict=True)
        )
        delta = (shift, log_scale)
    with torch.autocast(maps.device.type, enabled=False):
        return _detached(features).with_map(restyle(maps, *delta)), delta


def _gradient_of_clean_pass(step: Step, features: StageFeatures, objective: Callable[[Tensor], Tensor]) -> Tensor:
    with torch.autocast(step.z.device.type, enabled=False):
        loss = objective(step.z)
        # Sign steps are blind to scale, and a sum over the batch survives half precision better than a mean.
        (gradient,) = torch.autograd.grad(
            loss, features.value, torch.full_like(loss, len(step.labels)), retain_graph=True
        )
    return replace(features, value=gradient).as_map()


def _gradient_of_restyled(
    step: Step,
    features: StageFeatures,
    maps: Tensor,
    delta: tuple[Tensor, Tensor],
    objective: Callable[[Tensor], Tensor],
) -> tuple[Tensor, Tensor]:
    shift, log_scale = (values.clone().requires_grad_() for values in delta)
    with torch.autocast(maps.device.type, enabled=False):
        styled = _detached(features).with_map(restyle(maps, shift, log_scale))
    with evaluating(step.embedder):
        encoded, _ = step.embedder.encode_from(styled)
    with torch.autocast(maps.device.type, enabled=False):
        loss = objective(gather_rows(encoded.unit))
        found = torch.autograd.grad(loss, (shift, log_scale), torch.full_like(loss, len(step.labels)))
    return found[0], found[1]


def _detached(features: StageFeatures) -> StageFeatures:
    return replace(features, value=features.value.detach())
