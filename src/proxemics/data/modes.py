"""One rule for every pixel mode: what comes out is upright 8-bit RGB.

The rules are written at the top of :mod:`proxemics.runtime.modes`, which needs NumPy and Pillow alone, so that a
machine without torch follows the same ones.
"""

from __future__ import annotations

from proxemics.runtime.modes import deep_to_grey, to_rgb

__all__ = ["deep_to_grey", "to_rgb"]
