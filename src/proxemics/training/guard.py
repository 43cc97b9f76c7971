"""Stop before a run that has gone wrong writes over one that had not."""

from __future__ import annotations

import math

from proxemics.core.errors import TrainingError


def check_finite(terms: dict[str, float], step: int) -> None:
    """Raise when a term of the loss is NaN or infinite.

    Args:
        terms: the value of each term.
        step: the step they belong to.

    Raises:
        TrainingError: names the terms and the step; weights and checkpoint are those of the last finite step.

    Example:
        >>> check_finite({"base": float("nan")}, 7)
        Traceback (most recent call last):
        ...
        proxemics.core.errors.TrainingError: Non-finite loss at step 7 (base=nan); the last finite ...
    """
    bad = {name: value for name, value in terms.items() if not math.isfinite(value)}
    if bad:
        text = ", ".join(f"{name}={value}" for name, value in bad.items())
        raise TrainingError(
            f"Non-finite loss at step {step} ({text}); the last finite checkpoint is kept. "
            "Lower optim.lr or optim.proxy_lr_mult, or set optim.clip_norm=1."
        )
