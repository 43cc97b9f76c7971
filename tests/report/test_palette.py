"""The colours of the map: apart for every kind of colour vision, and visible on the page."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from proxemics.report.palette import DARK, LIGHT, SHAPES, mark_of

# Full dichromacy in linear RGB, from the tables of Machado, Oliveira and Fernandes (2009).
VISION = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)


def linear(colour: str) -> np.ndarray:
    values = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(values: np.ndarray) -> np.ndarray:
    xyz = TO_XYZ @ values.clip(0, 1) / [0.95047, 1, 1.08883]
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def contrast(first: str, second: str) -> float:
    high, low = sorted((float(linear(one) @ [0.2126, 0.7152, 0.0722]) for one in (first, second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("palette", [LIGHT, DARK])
def test_any_two_colours_are_apart(palette: tuple[str, ...], vision: str) -> None:
    seen = [lab(VISION[vision] @ linear(colour)) for colour in palette]
    assert min(float(np.linalg.norm(first - second)) for first, second in combinations(seen, 2)) >= 20


@pytest.mark.parametrize(("palette", "page", "least"), [(LIGHT, "#ffffff", 2.2), (DARK, "#1c1f25", 3.0)])
def test_colours_stand_out_from_the_page(palette: tuple[str, ...], page: str, least: float) -> None:
    assert min(contrast(colour, page) for colour in palette) >= least


def test_thirty_two_classes_have_thirty_two_marks() -> None:
    assert len({mark_of(rank) for rank in range(32)}) == 32 == len(LIGHT) * len(SHAPES) == len(DARK) * len(SHAPES)
