"""Freezing parts of a trunk: no gradients, and evaluation mode that survives ``.train()``."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from proxemics.core.errors import ModelError
from proxemics.models.stages import PIXEL
from proxemics.models.trunks import TrunkInfo


def freeze_batch_norm(trunk: nn.Module) -> list[nn.Module]:
    """Stop the affine parameters of every batch norm from learning.

    Args:
        trunk: changed in place.

    Returns:
        The layers that must be kept in evaluation mode, so that their statistics stand still.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
        >>> [type(layer).__name__ for layer in freeze_batch_norm(net)], net[1].weight.requires_grad
        (['BatchNorm2d'], False)
    """
    layers: list[nn.Module] = [module for module in trunk.modules() if isinstance(module, _BatchNorm)]
    for layer in layers:
        for parameter in layer.parameters(recurse=False):
            parameter.requires_grad_(False)
    return layers


def freeze_stages(trunk: nn.Module, info: TrunkInfo, count: int) -> list[nn.Module]:
    """Freeze the lowest stages and all that lies below them.

    Args:
        trunk: changed in place.
        info: its facts.
        count: how many stages after ``pixel``: 1 freezes the stem, or the patch embedding alone of a transformer (as
            SEE trains them); 2 also ``stage1`` or ``block0`` with class token and position embedding.

    Returns:
        The modules that must be kept in evaluation mode.

    Raises:
        ModelError: ``count`` is negative or the trunk has fewer stages.
    """
    stages = [stage for stage in info.stages if stage.name != PIXEL]
    if not 0 <= count <= len(stages):
        names = ", ".join(stage.name for stage in stages) or "none"
        raise ModelError(
            f"freeze_stages={count} does not fit trunk {info.name!r}; allowed is 0 to {len(stages)}, the stages from "
            f"the bottom up: {names}."
        )
    if count == 0:
        return []
    top = stages[count - 1].module
    ordered = [(name, module) for name, module in trunk.named_modules() if name]
    last = max(i for i, (name, _) in enumerate(ordered) if name == top or name.startswith(f"{top}."))
    frozen = [module for name, module in ordered[: last + 1] if not top.startswith(f"{name}.")]
    for module in [*frozen, *([trunk] if count > 1 else [])]:
        for parameter in module.parameters(recurse=False):
            parameter.requires_grad_(False)
    return frozen
