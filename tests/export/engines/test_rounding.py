"""Rounding that keeps the sum of a filter."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from proxemics.export.engines.rounding import round_filters


def nearest(weights: np.ndarray) -> np.ndarray:
    return torch.from_numpy(weights).to(torch.bfloat16).float().numpy()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 40), st.sampled_from([1e-3, 1.0, 50.0]))
def test_sums_are_kept_and_values_stay_neighbours(seed: int, width: int, scale: float) -> None:
    weights = (np.random.default_rng(seed).normal(size=(5, width)) * scale).astype(np.float32)
    rounded = round_filters(weights)
    np.testing.assert_array_equal(nearest(rounded), rounded)  # bfloat16 can hold them
    step = np.maximum(np.abs(weights) * 2.0**-7, 1e-30)  # one step of bfloat16, at most
    assert (np.abs(rounded - weights) <= step).all()
    error = np.abs((rounded.astype(np.float64) - weights).sum(axis=1))
    assert (error <= np.abs((nearest(weights).astype(np.float64) - weights).sum(axis=1)) + 1e-9 * scale).all()


def test_the_error_on_smooth_pictures_falls() -> None:
    generator = np.random.default_rng(0)
    weights = generator.normal(size=(200, 9)).astype(np.float32)
    pictures = 3 + 0.1 * generator.normal(size=(9, 500))
    apart = {
        name: np.abs((found - weights) @ pictures).mean()
        for name, found in {"sum": round_filters(weights), "nearest": nearest(weights)}.items()
    }
    assert apart["sum"] < 0.3 * apart["nearest"]


def test_what_bfloat16_can_hold_stays() -> None:
    weights = nearest(np.random.default_rng(0).normal(size=(4, 9)).astype(np.float32))
    np.testing.assert_array_equal(round_filters(weights), weights)
    assert round_filters(np.zeros((3, 0), np.float32)).shape == (3, 0)
    assert round_filters(np.zeros((0, 3), np.float32)).shape == (0, 3)
