"""What the changes do to pictures, and what the curves say of models whose reading is known."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from proxemics.evaluation.probes import nuisance as changes
from proxemics.evaluation.probes.nuisance import NUISANCES, Nuisance, area, nuisance_curves

sys.path.insert(0, str(Path(__file__).parent))
from probe_scenes import make_scenes, reads_noise, reads_nothing, reads_objects


@pytest.fixture(scope="module")
def pictures() -> torch.Tensor:
    return make_scenes(4, 3)[0]


@pytest.mark.parametrize("nuisance", NUISANCES, ids=lambda one: one.name)
def test_changes_grow_keep_the_shape_and_are_repeatable(nuisance: Nuisance, pictures: torch.Tensor) -> None:
    partners = pictures.roll(3, 0)
    away = []
    for level in nuisance.levels:
        changed = nuisance.apply(pictures, level, partners)
        assert changed.shape == pictures.shape
        assert changed.dtype == torch.uint8
        assert torch.equal(changed, nuisance.apply(pictures, level, partners))
        alone = nuisance.apply(pictures[2:3], level, partners[2:3])
        assert (alone.int() - changed[2:3].int()).abs().max() <= 1  # no picture depends on its neighbours
        away.append(float((changed.float() - pictures.float()).square().mean()))
    assert away[1] > 0
    assert away[-1] > away[0]
    if nuisance.name not in ("rotation", "scale", "crop"):  # a stripe may come back to its place
        assert away == sorted(away)


def test_nothing_is_done_at_no_level(pictures: torch.Tensor) -> None:
    for change, level in (
        (changes.mix_amplitudes, 0.0), (changes.darken, 0.0), (changes.turn_hue, 0.0), (changes.shrink, 1.0),
        (changes.rotate, 0.0), (changes.crop, 1.0),
    ):  # fmt: skip
        assert torch.equal(change(pictures, level, pictures.roll(1, 0)), pictures), change.__name__


def test_a_quarter_turn_is_exact(pictures: torch.Tensor) -> None:
    turned = changes.rotate(pictures, 90, pictures)
    options = [torch.rot90(pictures, k, (2, 3)).int() for k in (1, -1)]
    assert min(int((turned.int() - option).abs().max()) for option in options) <= 1


def test_hue_leaves_grey_and_brightness_and_comes_round() -> None:
    grey = torch.full((1, 3, 4, 4), 90, dtype=torch.uint8)
    assert torch.equal(changes.turn_hue(grey, 77, grey), grey)
    colour = torch.tensor([120, 100, 80], dtype=torch.uint8).view(1, 3, 1, 1)
    assert torch.equal(changes.turn_hue(colour, 360, colour), colour)
    assert changes.turn_hue(colour, 120, colour).flatten().tolist() in ([80, 120, 100], [100, 80, 120])
    assert abs(float(changes.turn_hue(colour, 40, colour).float().mean()) - 100) < 1


def test_blur_keeps_the_mean_and_amplitudes_move_to_the_partner() -> None:
    flat = torch.full((1, 3, 32, 32), 77, dtype=torch.uint8)
    assert torch.equal(changes.blur(flat, 4, flat), flat)
    generator = torch.Generator().manual_seed(1)
    own, other = torch.randint(60, 190, (2, 1, 3, 32, 32), generator=generator, dtype=torch.uint8)
    mixed = changes.mix_amplitudes(own, 1.0, other)
    wanted, found = (torch.fft.rfft2(one.float()).abs() for one in (other, mixed))
    assert float((wanted - found).abs().mean() / wanted.mean()) < 0.1  # up to clipping and rounding


def test_curves_of_known_models() -> None:
    pictures, _, classes, _ = make_scenes(6, 4)
    rows = np.arange(0, len(pictures), 2)
    nothing = nuisance_curves(reads_nothing, pictures, classes, rows, reads_nothing(pictures))
    assert {round(curve.moved, 9) for curve in nothing} == {0.0}
    assert {curve.kept for curve in nothing} == {1.0}
    noise = nuisance_curves(reads_noise, pictures, classes, rows, reads_noise(pictures))
    assert all(curve.drift[-1] > 0.7 for curve in noise)
    objects = {
        curve.nuisance.name: curve
        for curve in nuisance_curves(reads_objects, pictures, classes, rows, reads_objects(pictures))
    }
    # Pixels at fixed places: JPEG hardly moves them, a turn or another size does.
    assert objects["jpeg"].kept > 0.95
    assert objects["jpeg"].moved < 0.05
    assert objects["rotation"].moved > 0.2
    assert objects["rotation"].recall[-1] < objects["rotation"].recall[0]
    assert objects["jpeg"].recall[0] == 1
    assert len(objects["blur"].recall) == len(objects["blur"].nuisance.levels) + 1
    assert objects["blur"].middle.shape == (len(rows), 48)


def test_the_area_is_that_of_trapezoids() -> None:
    assert area((1.0, 1.0, 0.0)) == pytest.approx(0.75)
