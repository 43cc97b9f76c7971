"""How far C3E pushes: a step that grows over the first half of the run, and the angle each sample is asked to reach.

    Δ_t = Δ_max · min(1, t / (T / 2)),   φ*_i = min(θ_i + Δ_t · U(1/2, 1), cap_i)

Source: our reading of "dynamically expands".
"""

from __future__ import annotations

from torch import Tensor


def reach(progress: float) -> float:
    """Return Δ_t / Δ_max for a share of the run in [0, 1].

    Example:
        >>> [reach(t) for t in (0.0, 0.25, 0.5, 0.9)]
        [0.0, 0.5, 1.0, 1.0]
    """
    return min(1.0, 2 * progress)


def target_angles(angles: Tensor, delta: float | Tensor, uniform: Tensor, cap: Tensor) -> Tensor:
    """Return φ*, the angles to the centroid that are asked for.

    Args:
        angles: (B,) θ.
        delta: Δ_t, radians.
        uniform: (B,) numbers in [0, 1).
        cap: (B,) from :func:`class_preserving_cap`.

    Returns:
        (B,), between ``angles`` and ``cap``.

    Example:
        >>> import torch
        >>> target_angles(torch.tensor([0.25, 0.25]), 0.5, torch.tensor([0.0, 0.0]), torch.tensor([1.0, 0.375]))
        tensor([0.5000, 0.3750])
    """
    return (angles + delta * (0.5 + 0.5 * uniform)).minimum(cap)
