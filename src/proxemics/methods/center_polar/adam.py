"""One step of Adam on a tensor that is a buffer, so that checkpoints hold it and no optimiser of the run touches it."""

from __future__ import annotations

import torch
from torch import Tensor

BETAS, EPS = (0.9, 0.999), 1e-8


@torch.no_grad()
def adam_step(values: Tensor, gradient: Tensor, first: Tensor, second: Tensor, count: Tensor, rate: float) -> None:
    """Update ``values``, the moments ``first`` and ``second`` and the 0-d int64 ``count`` in place.

    Source: Kingma & Ba, "Adam" (2015), algorithm 1 with its constants.

    Args:
        values: any shape.
        gradient: same shape.
        first: same shape.
        second: same shape.
        count: steps so far.
        rate: learning rate.

    Example:
        >>> x, m, v, t = torch.zeros(2), torch.zeros(2), torch.zeros(2), torch.tensor(0)
        >>> adam_step(x, torch.tensor([3.0, -0.1]), m, v, t, 0.01)
        >>> x, int(t)
        (tensor([-0.0100,  0.0100]), 1)
    """
    count += 1
    first.lerp_(gradient, 1 - BETAS[0])
    second.lerp_(gradient.square(), 1 - BETAS[1])
    steps = count.to(values.dtype)
    root = (second / (1 - BETAS[1] ** steps)).sqrt_().add_(EPS)
    values -= rate * first / (1 - BETAS[0] ** steps) / root
