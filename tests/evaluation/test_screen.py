"""The screens keep the bound that they promise, and thresholds on exact scores become safe codes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from proxemics.evaluation.screen import BFloat16Screen, Float32Screen, full_precision
from proxemics.evaluation.space import make_space

SCREENS = [(Float32Screen, "cosine"), (Float32Screen, "dot"), (Float32Screen, "euclidean")]
SCREENS += [(BFloat16Screen, "cosine"), (BFloat16Screen, "dot")]


def points(kind: str, dim: int) -> torch.Tensor:
    rng = np.random.default_rng(dim)
    values = rng.standard_normal((96, dim))
    if kind == "unit":
        values /= np.linalg.norm(values, axis=1, keepdims=True)
    elif kind == "uneven":
        values *= 10.0 ** rng.uniform(-3, 3, (96, 1))
        values[7] = 0
    elif kind == "close":
        values = rng.standard_normal(dim) + 1e-3 * values
    return torch.from_numpy(values).float()


@pytest.fixture
def screened(request: pytest.FixtureRequest):
    (build, metric), kind, dim = request.param
    with full_precision():
        space = make_space(points(kind, dim), None, metric)
        screen = build(space)
        codes = torch.empty(96, 96, dtype=screen.dtype)
        screen.tile(slice(0, 96), slice(0, 96), codes)
        return space.tile(slice(0, 96), slice(0, 96)), screen, codes


CASES = [(screen, kind, dim) for screen in SCREENS for kind in ("unit", "uneven", "close") for dim in (3, 512)]


@pytest.mark.parametrize("screened", CASES, indirect=True)
def test_error_is_within_the_bound(screened) -> None:
    exact, screen, codes = screened
    values = screen.values(codes)
    error = (values - exact).abs()
    assert bool((error <= screen.eps[:, None] + screen.slack(values)).all())
    assert float(error.max()) > 0


@pytest.mark.parametrize("screened", CASES, indirect=True)
def test_thresholds_are_safe(screened) -> None:
    """Nothing at or above a threshold is missed below, and nothing below it is claimed above."""
    exact, screen, codes = screened
    for column in range(0, 96, 5):
        threshold = exact[:, column].clone()
        reach, known = screen.reach(threshold - screen.eps)
        kept = codes > reach[:, None]
        wanted = (exact >= threshold[:, None]) & known[:, None]
        assert bool((kept | ~wanted).all())
        claimed = codes > screen.beyond(threshold + screen.eps)[:, None]
        assert bool((exact > threshold[:, None])[claimed].all())


def test_bfloat16_has_no_code_below_zero() -> None:
    with full_precision():
        screen = BFloat16Screen(make_space(points("unit", 8), None))
    _, known = screen.reach(torch.tensor([-1e-9, 0.0, 1.0]).double())
    assert known.tolist() == [False, True, True]


def test_codes_order_as_scores() -> None:
    values = torch.tensor([0.0, 1e-30, 1e-3, 0.5, 0.50390625, 1.0]).bfloat16()
    codes = values.view(torch.int16)
    assert bool((codes.diff() > 0).all())
    assert bool(((-values[1:]).view(torch.int16) < 0).all())


def test_unit_rows_are_not_copied() -> None:
    """Memory: float32 rows of length one serve as they are."""
    rows = points("unit", 64)
    with full_precision():
        screen = Float32Screen(make_space(rows, None))
        other = Float32Screen(make_space(2 * rows, None))
    assert screen._left.data_ptr() == rows.data_ptr()
    assert other._left.data_ptr() != rows.data_ptr()
