"""Learning-rate factors as pure functions of the step, so that resuming needs no state."""

from __future__ import annotations

import math

from proxemics.core.config import OptimConfig


def rate_factor(group: str, step: int, *, steps_per_epoch: int, epochs: int, optim: OptimConfig) -> float:
    """Return what a group's learning rate is multiplied by at a step.

    During the warm-up the trunk stands still and everything else learns at its full rate; the schedule begins after it.

    Args:
        group: name of the group; names that start with ``trunk`` wait for the end of the warm-up.
        step: optimiser steps done so far, from 0.
        steps_per_epoch: optimiser steps an epoch.
        epochs: epochs of the whole run.
        optim: schedule, warm-up, gamma.

    Returns:
        A factor in [0, 1].

    Example:
        >>> optim = OptimConfig(schedule="step", step_epochs=2, gamma=0.5, warmup_epochs=1)
        >>> [rate_factor("trunk", s, steps_per_epoch=1, epochs=6, optim=optim) for s in range(6)]
        [0.0, 1.0, 1.0, 0.5, 0.5, 0.25]
        >>> rate_factor("proxies", 0, steps_per_epoch=1, epochs=6, optim=optim)
        1.0
    """
    warmup = optim.warmup_epochs * steps_per_epoch
    if step < warmup:
        return 0.0 if group.startswith("trunk") else 1.0
    if optim.schedule == "constant":
        return 1.0
    if optim.schedule == "step":
        return float(optim.gamma ** ((step - warmup) // (optim.step_epochs * steps_per_epoch)))
    rest = max(epochs * steps_per_epoch - warmup, 1)
    return 0.5 * (1.0 + math.cos(math.pi * min((step - warmup) / rest, 1.0)))
