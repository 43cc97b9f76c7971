"""Engines that take several calls at once, which is how a job keeps every core busy without barriers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from proxemics.core.errors import ExportError
from proxemics.export.engines.base import Engine


class ConcurrentEngine(Engine):
    """An engine whose ``encode`` may be called by so many threads at once.

    Attributes:
        calls: how many; each call uses ``facts.threads // calls`` threads, at least one.
    """

    calls: int = 1


def check_pixels(pixels: NDArray[np.float32], size: int) -> None:
    """Refuse what is not a batch of prepared pictures.

    Raises:
        ExportError: another shape or type.

    Example:
        >>> check_pixels(np.zeros((2, 3, 8, 8), np.float32), 8)
        >>> check_pixels(np.zeros((2, 3, 8, 9), np.float32), 8)
        Traceback (most recent call last):
        proxemics.core.errors.ExportError: Pictures are (B, 3, 8, 8) float32, not (2, 3, 8, 9) float32; ...
    """
    if pixels.ndim != 4 or pixels.shape[1:] != (3, size, size) or pixels.dtype != np.float32:
        raise ExportError(
            f"Pictures are (B, 3, {size}, {size}) float32, not {pixels.shape} {pixels.dtype}; prepare them with "
            "engine.preprocess."
        )


def nothing(dim: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return what an empty batch gives."""
    return np.zeros((0, dim), np.float32), np.zeros(0, np.float32)
