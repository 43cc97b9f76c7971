"""Rows in 8 bits: each with a step of its own, and the length of what rounding lost."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def quantise(rows: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Round rows to 8 bits.

    Args:
        rows: (N, D), none of them zero.

    Returns:
        (N, D) int8 codes in -127..127, and (N, 2) float32: the step, so that a row is about step * code, and an upper
        bound on the length of the difference.

    Example:
        >>> codes, scales = quantise(np.array([[0.6, -0.8]], np.float32))
        >>> codes.tolist(), bool(abs(scales[0, 0] * 127 - 0.8) < 1e-6)
        ([[95, -127]], True)
    """
    codes, steps = round_rows(rows)
    lost = rows.astype(np.float64) - codes * steps.astype(np.float64)[:, None]
    length = np.linalg.norm(lost, axis=1)
    return codes, np.stack([steps, (length * (1 + 1e-6)).astype(np.float32)], axis=1)


def round_rows(rows: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return the codes of (N, D) rows, and their (N,) steps, without what rounding lost."""
    steps = np.maximum(np.abs(rows).max(axis=1, initial=0.0), np.float32(1e-30)) / np.float32(127)
    return np.rint(rows / steps[:, None]).clip(-127, 127).astype(np.int8), steps
