"""Stop before a run that has gone wrong writes over one that had not."""

from __future__ import annotations

import logging
import math

import numpy as np
from numpy.typing import NDArray

from proxemics.core.errors import TrainingError

logger = logging.getLogger("proxemics")


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


def is_collapsed(embeddings: NDArray[np.float32], *, threshold: float = 0.99, sample: int = 512) -> bool:
    """Say whether nearly all embeddings point the same way, and warn once if so.

    The mean cosine of all pairs is ``(|sum z|^2 - n) / (n (n - 1))``, which needs no pairs.

    Args:
        embeddings: (N, D) unit rows.
        threshold: mean pairwise cosine above which the model counts as collapsed.
        sample: look at this many evenly spaced rows at most.

    Example:
        >>> bool(is_collapsed(np.ones((4, 1), dtype=np.float32)))
        True
        >>> bool(is_collapsed(np.eye(4, dtype=np.float32)))
        False
    """
    rows = embeddings[:: max(len(embeddings) // sample, 1)].astype(np.float64)
    n = len(rows)
    if n < 2:
        return False
    mean = (np.square(rows.sum(axis=0)).sum() - n) / (n * (n - 1))
    collapsed = bool(mean > threshold)
    if collapsed:
        logger.warning(
            "The embeddings have collapsed to nearly one point (mean pairwise cosine %.4f); lower optim.lr, or change "
            "the loss.",
            mean,
        )
    return collapsed
