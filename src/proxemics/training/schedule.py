"""Learning-rate factors as pure functions of the step, so that resuming needs no state."""

from __future__ import annotations

import math

from proxemics.core.config import OptimConfig


def rate_factor(group: str, step: int, *, steps_per_epoch: int, epochs: int, optim: OptimConfig) -> float:
    """Return what a group's learning rate is multiplied by at a step.

    During the warm-up the trunk stands still and everything else learns at its full rate; the schedule begins after it,
    and epochs are counted from there.

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
        >>> optim = OptimConfig(schedule="step", milestones=(1, 3), gamma=0.5, warmup_epochs=0)
        >>> [rate_factor("trunk", s, steps_per_epoch=1, epochs=6, optim=optim) for s in range(6)]
        [1.0, 0.5, 0.5, 0.25, 0.25, 0.25]
        >>> rate_factor("proxies", 0, steps_per_epoch=1, epochs=6, optim=optim)
        1.0
    """
    warmup = optim.warmup_epochs * steps_per_epoch
    if step < warmup:
        return 0.0 if group.startswith("trunk") else 1.0
    if optim.schedule == "constant":
        return 1.0
    if optim.schedule == "step":
        done = (step - warmup) // steps_per_epoch
        drops = sum(done >= epoch for epoch in optim.milestones) if optim.milestones else done // optim.step_epochs
        return float(optim.gamma**drops)
    rest = max(epochs * steps_per_epoch - warmup, 1)
    return 0.5 * (1.0 + math.cos(math.pi * min((step - warmup) / rest, 1.0)))
