"""Background reliance of models whose reading is known."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from proxemics.core.errors import EvaluationError
from proxemics.data.confounded import ConfoundedSpec, render
from proxemics.evaluation.probes.background import (
    background_reliance,
    choose_donors,
    on_colour,
    paint_over,
    paste,
)

sys.path.insert(0, str(Path(__file__).parent))
from probe_scenes import make_scenes, reads_backgrounds, reads_both, reads_noise, reads_nothing, reads_objects


@pytest.fixture(scope="module")
def free() -> tuple[torch.Tensor, torch.Tensor, np.ndarray, np.ndarray]:
    return make_scenes()


def test_a_reader_of_objects_does_not_care(free: tuple) -> None:
    pictures, masks, classes, scenes = free
    found = background_reliance(reads_objects, pictures, masks, classes, scenes=scenes)
    assert found.follows == 0
    assert found.recall["clean"] == found.recall["removed"] == found.recall["swapped"] == 1
    assert found.drift["removed"] < 1e-6
    assert found.drift["swapped"] < 1e-6
    assert found.drift["alone"] > 0.2
    assert found.queries == len(pictures)


def test_a_reader_of_backgrounds_goes_with_them(free: tuple) -> None:
    pictures, masks, classes, scenes = free
    found = background_reliance(reads_backgrounds, pictures, masks, classes, scenes=scenes)
    assert found.follows > 0.97
    assert found.recall["swapped"] < 0.3
    assert found.drift["alone"] < 1e-3
    assert found.drift["swapped"] > 0.2
    assert abs(found.recall["alone"] - found.recall["clean"]) < 0.1


def test_a_reader_of_both_is_between(free: tuple) -> None:
    pictures, masks, classes, scenes = free
    drift = [
        background_reliance(read, pictures, masks, classes, scenes=scenes).drift["swapped"]
        for read in (reads_objects, reads_both, reads_backgrounds)
    ]
    assert drift[0] + 0.1 < drift[1] < drift[2] - 0.1


def test_a_constant_and_a_random_embedding_are_the_extremes(free: tuple) -> None:
    pictures, masks, classes, scenes = free
    constant = background_reliance(reads_nothing, pictures, masks, classes, scenes=scenes)
    assert constant.follows == 0.5
    assert max(constant.drift.values()) < 1e-9
    assert constant.recall["clean"] == pytest.approx(0.1)  # always the first picture of the gallery
    noise = background_reliance(reads_noise, pictures, masks, classes, scenes=scenes)
    assert noise.follows == pytest.approx(0.5, abs=0.15)
    assert noise.drift["swapped"] == pytest.approx(1, abs=0.1)
    assert noise.recall["clean"] == pytest.approx(noise.chance, abs=0.1)


def test_tied_backgrounds_find_the_class_alone() -> None:
    pictures, masks, classes, scenes = make_scenes(tied=True)
    leaning = background_reliance(reads_backgrounds, pictures, masks, classes, scenes=scenes)
    assert leaning.recall["clean"] == leaning.recall["alone"] == 1
    assert leaning.recall["swapped"] == 0
    honest = background_reliance(reads_objects, pictures, masks, classes, scenes=scenes)
    assert honest.recall["swapped"] == 1
    assert honest.recall["alone"] < 0.5


def test_glyphs_with_their_own_masks() -> None:
    spec = ConfoundedSpec(train_classes=2, test_classes=8, per_class=6, size=32, translation=0.0, rho=0.0)
    pictures, masks, table = render(spec)
    classes = np.unique(table["label"], return_inverse=True)[1]
    scenes = np.unique(table["background"], return_inverse=True)[1]
    tensor = torch.from_numpy(pictures).permute(0, 3, 1, 2)
    shapes = torch.from_numpy(masks).float() / 255
    found = background_reliance(reads_backgrounds, tensor, shapes, classes, scenes=scenes)
    assert found.follows > 0.9
    assert found.drift["alone"] < 0.02


def test_only_pictures_with_a_mask_are_queries(free: tuple) -> None:
    pictures, masks, classes, scenes = free
    rows = np.arange(0, len(pictures), 2)
    masks = masks.clone()
    masks[1::2] = float("nan")
    found = background_reliance(reads_objects, pictures, masks, classes, rows=rows, scenes=scenes)
    assert found.queries == len(rows)
    assert found.follows == 0


def test_it_is_the_same_twice_and_embeds_what_it_says(free: tuple) -> None:
    pictures, masks, classes, scenes = free
    count = []
    first = background_reliance(reads_both, pictures, masks, classes, scenes=scenes, seed=3, advance=count.append)
    again = background_reliance(reads_both, pictures, masks, classes, scenes=scenes, seed=3)
    other = background_reliance(reads_both, pictures, masks, classes, scenes=scenes, seed=4)
    assert first == again != other
    assert sum(count) == 4 * len(pictures)


def test_donors_are_of_another_class_on_another_background() -> None:
    classes, scenes = np.repeat(np.arange(4), 10), np.tile(np.arange(5), 8)
    donors = choose_donors(classes, scenes, seed=1)
    assert (classes[donors] != classes).all()
    assert (scenes[donors] != scenes).all()
    with pytest.raises(EvaluationError, match="another class on another background"):
        choose_donors(np.zeros(4, dtype=np.int64))


def test_shapes_are_checked(free: tuple) -> None:
    pictures, masks, classes, _ = free
    with pytest.raises(EvaluationError, match="one mask and one class a picture"):
        background_reliance(reads_objects, pictures, masks[:3], classes)


def test_painting_over_leaves_the_rest_and_forgets_the_object() -> None:
    generator = torch.Generator().manual_seed(0)
    pictures = torch.randint(0, 256, (2, 3, 33, 40), dtype=torch.uint8, generator=generator)
    masks = torch.zeros(2, 33, 40)
    masks[:, 10:20, 12:30] = 1
    filled = paint_over(pictures, masks)
    outside = torch.nn.functional.max_pool2d(masks[:, None], 3, 1, 1).expand(-1, 3, -1, -1) == 0
    assert torch.equal(filled[outside], pictures[outside])
    changed = pictures.clone()
    changed[:, :, 10:20, 12:30] = 255 - changed[:, :, 10:20, 12:30]
    assert torch.equal(paint_over(changed, masks), filled)
    assert paint_over(pictures, torch.ones_like(masks)).unique().tolist() == [127]


def test_painting_over_continues_a_slope() -> None:
    slope = torch.linspace(0, 255, 64).expand(1, 3, 64, 64).to(torch.uint8)
    mask = torch.zeros(1, 64, 64)
    mask[:, 24:40, 24:40] = 1
    error = (paint_over(slope, mask).float() - slope.float()).abs().max()
    assert error < 40  # the hole spans 73 grey levels


def test_soft_masks_blend() -> None:
    white, black = torch.full((1, 3, 1, 1), 255, dtype=torch.uint8), torch.zeros(1, 3, 1, 1, dtype=torch.uint8)
    half = torch.full((1, 1, 1), 0.5)
    assert paste(white, half, black).flatten().tolist() == [128] * 3
    assert on_colour(black, half, (10.0, 20.0, 30.0)).flatten().tolist() == [5, 10, 15]
