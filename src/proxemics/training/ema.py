"""A running average of the weights, kept in float32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class WeightAverage:
    """Exponential moving average of a module's parameters and floating buffers.

    Example:
        >>> layer = nn.Linear(1, 1, bias=False)
        >>> _ = nn.init.constant_(layer.weight, 1.0)
        >>> average = WeightAverage(layer, decay=0.5)
        >>> _ = nn.init.constant_(layer.weight, 3.0)
        >>> average.update(layer)
        >>> average.shadow["weight"].item()
        2.0
    """

    def __init__(self, module: nn.Module, *, decay: float) -> None:
        self.decay = decay
        self.shadow: dict[str, Tensor] = {
            name: value.detach().clone() for name, value in module.state_dict().items() if value.is_floating_point()
        }

    @torch.no_grad()
    def update(self, module: nn.Module) -> None:
        """Move the average towards the present weights by ``1 - decay``."""
        for name, value in module.state_dict().items():
            if name in self.shadow:
                self.shadow[name].lerp_(value.detach(), 1.0 - self.decay)

    @contextmanager
    def applied_to(self, module: nn.Module) -> Iterator[None]:
        """Put the averaged weights into ``module`` for the time of the block."""
        present = {name: value.detach().clone() for name, value in module.state_dict().items() if name in self.shadow}
        module.load_state_dict(self.shadow, strict=False)
        try:
            yield
        finally:
            module.load_state_dict(present, strict=False)
