"""Colours and shapes of marks that people with any kind of colour vision can tell apart.

The hues start from Okabe and Ito (2008). Each of the two sets was then moved so that its eight colours are at least 20
apart in CIE Lab under normal vision and under full protanopia, deuteranopia and tritanopia (Machado et al. 2009), and
stand out from the page; ``tests/report/test_palette.py`` measures this. Where there are more classes than colours the
shape changes, and the legend always shows both.
"""

from __future__ import annotations

LIGHT = ("#0a6fac", "#ce4100", "#00b483", "#a32565", "#91aaea", "#4c2d00", "#5c33ce", "#e99a04")
DARK = ("#a7bffe", "#f89c60", "#1bfba6", "#e7afc8", "#2483c1", "#caeb3f", "#9867ff", "#c76005")
SHAPES = ("circle", "square", "triangle", "diamond")
RIGHT, WRONG = 0, 1
"""Places of the colours for a right and a wrong answer; they have different shapes too."""


def mark_of(rank: int) -> tuple[int, int]:
    """Return (colour, shape) of the class with this rank; they repeat after 32.

    Example:
        >>> mark_of(0), mark_of(9), mark_of(32)
        ((0, 0), (1, 1), (0, 0))
    """
    return rank % len(LIGHT), rank // len(LIGHT) % len(SHAPES)
