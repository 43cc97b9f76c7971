"""A weight that rises over the first epochs: w(t) = exp(-5 (1 - t/T)²), then 1 (the ramp of FACT)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from proxemics.losses.checks import check_number
from proxemics.methods.base import Step


def ramp_weight(epoch: float, epochs: float = 5.0) -> float:
    """Return w(t).

    Args:
        epoch: t >= 0, fractions allowed.
        epochs: T, the length of the ramp; 0: no ramp.

    Example:
        >>> [round(ramp_weight(t), 4) for t in (0, 1, 2.5, 5, 80)]
        [0.0067, 0.0408, 0.2865, 1.0, 1.0]
    """
    if epoch >= epochs:
        return 1.0
    return math.exp(-5 * (1 - epoch / epochs) ** 2)


class Ramp(nn.Module):
    """The ramp with a clock that counts the steps of an epoch, because a step only says its epoch and its progress.

    The count is a buffer, so that a resumed run goes on as if it had not stopped. The parts of an accumulated step
    count as one.

    Args:
        epochs: T, the length of the ramp in epochs; 0: no ramp.

    Example:
        >>> Ramp(5).epochs
        5
    """

    count: Tensor
    progress: Tensor

    def __init__(self, epochs: float = 5) -> None:
        super().__init__()
        check_number("ramp_epochs", epochs, low=0)
        self.epochs = epochs
        self.register_buffer("count", torch.zeros(2, dtype=torch.int64))
        self.register_buffer("progress", torch.full((), -1.0))

    @torch.no_grad()
    def weight(self, step: Step) -> float:
        """Return w at this step and move the clock."""
        if step.epoch >= self.epochs:
            return 1.0
        epoch, done = self.count.tolist()
        if step.epoch != epoch:
            done = 0
        else:
            last = float(self.progress)
            done += last >= 0 and last != torch.tensor(step.progress, dtype=torch.float32).item()
        self.count.copy_(torch.tensor([step.epoch, done]))
        self.progress.fill_(step.progress)
        return ramp_weight(step.epoch + min(done / max(step.steps_per_epoch, 1), 1.0), self.epochs)
