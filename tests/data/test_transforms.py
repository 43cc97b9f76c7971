"""Random crops: where they lie, what they look like, and what they depend on."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from proxemics.core.errors import ConfigError
from proxemics.core.seeds import numpy_generator
from proxemics.data.transforms import TrainTransform, color_jitter, crop_box, random_erase, to_grayscale


def picture(height: int = 60, width: int = 80, seed: int = 0) -> Tensor:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return torch.from_numpy(pixels).permute(2, 0, 1)


def test_boxes_lie_inside_and_cover_the_asked_range() -> None:
    generator = np.random.default_rng(0)
    boxes = np.array([crop_box(300, 400, generator, scale=(0.08, 1), ratio=(3 / 4, 4 / 3)) for _ in range(4000)])
    top, left, height, width = boxes.T
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (top + height <= 300).all()
    assert (left + width <= 400).all()
    area = height * width / 120_000
    assert area.min() < 0.09
    assert area.min() > 0.06
    assert area.max() > 0.9
    assert 0.72 < (width / height).min() < 0.77
    assert 1.31 < (width / height).max() < 1.36
    small = np.array([crop_box(400, 400, generator, scale=(0.1, 0.5), ratio=(1 / 4, 4)) for _ in range(2000)])
    assert abs(np.median(np.log(small[:, 3] / small[:, 2]))) < 0.1, "the ratio is uniform on a log scale"
    assert len({tuple(box) for box in boxes}) > 3900
    centre = ((left + width / 2) / 400).mean()
    assert abs(centre - 0.5) < 0.01


@pytest.mark.parametrize("size", [(1, 1), (1, 500), (500, 1), (2, 3)])
def test_boxes_of_slivers_and_dots(size: tuple[int, int]) -> None:
    generator = np.random.default_rng(0)
    for _ in range(50):
        top, left, height, width = crop_box(*size, generator, scale=(0.08, 1), ratio=(3 / 4, 4 / 3))
        assert 0 <= top < top + height <= size[0]
        assert 0 <= left < left + width <= size[1]


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_crop_is_that_of_torchvision(interpolation: str) -> None:
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms.v2 import functional as vision

    transform = TrainTransform(32, flip=0.0, interpolation=interpolation)
    for trial in range(20):
        box = crop_box(60, 80, numpy_generator(trial), scale=transform.scale, ratio=transform.ratio)
        theirs = vision.resized_crop(
            picture(), *box, [32, 32], interpolation=InterpolationMode(interpolation), antialias=True
        )
        assert torch.equal(transform(picture(), numpy_generator(trial)), theirs)


def test_flip_is_a_mirror_with_its_probability() -> None:
    never, always = TrainTransform(16, flip=0.0), TrainTransform(16, flip=1.0)
    assert torch.equal(never(picture(), numpy_generator(1)).flip(-1), always(picture(), numpy_generator(1)))
    half = TrainTransform(16)
    same = [torch.equal(half(picture(), numpy_generator(n)), never(picture(), numpy_generator(n))) for n in range(200)]
    assert 70 < sum(same) < 130


def test_equal_generators_give_equal_pictures_and_the_input_stays() -> None:
    transform = TrainTransform(16, jitter=(0.4, 0.4, 0.4, 0.1))
    image = picture()
    before = image.clone()
    first, second = (transform(image, numpy_generator(5, "augment")) for _ in range(2))
    assert torch.equal(first, second)
    assert first.shape == (3, 16, 16)
    assert first.dtype == torch.uint8
    assert torch.equal(image, before)
    assert not torch.equal(first, transform(image, numpy_generator(6, "augment")))


def test_jitter_is_off_by_default_and_each_part_acts() -> None:
    image = picture(8, 8)
    assert torch.equal(color_jitter(image, numpy_generator(0), (0, 0, 0, 0)), image)
    for part, strength in enumerate((0.9, 0.9, 0.9, 0.5)):
        jitter = tuple(strength if part == other else 0.0 for other in range(4))
        assert not torch.equal(color_jitter(image, numpy_generator(0), jitter), image), part
    grey = torch.full((3, 8, 8), 90, dtype=torch.uint8)
    turned = color_jitter(grey, numpy_generator(0), (0, 0, 0.9, 0.5))
    assert (turned.int() - grey.int()).abs().max() <= 1, "grey has no hue"


class Counting:
    """A generator that counts what is asked of it."""

    def __init__(self, seed: int) -> None:
        self._inside, self.draws = numpy_generator(seed), 0

    def __getattr__(self, name: str) -> object:
        self.draws += 1
        return getattr(self._inside, name)


def test_options_that_are_off_draw_nothing() -> None:
    plain, off = TrainTransform(16), TrainTransform(16, jitter_probability=0.3, grayscale=0.0, erase=0.0)
    counts = []
    for transform in (plain, off, TrainTransform(16, grayscale=1e-12), TrainTransform(16, erase=1e-12)):
        generator = Counting(4)
        assert torch.equal(transform(picture(), generator), plain(picture(), numpy_generator(4)))
        counts.append(generator.draws)
    assert counts[0] == counts[1] == counts[2] - 1 == counts[3] - 1


def test_the_pixels_of_earlier_runs_stay() -> None:
    """Sums taken before grey and erasing existed."""
    assert [int(TrainTransform(16)(picture(), numpy_generator(n)).long().sum()) for n in range(3)] == [
        97_936,
        99_008,
        98_203,
    ]
    jittered = TrainTransform(16, jitter=(0.4, 0.4, 0.4, 0.1))
    assert [int(jittered(picture(), numpy_generator(n)).long().sum()) for n in range(3)] == [84_761, 102_147, 82_740]


def test_jitter_acts_with_its_probability() -> None:
    jitter = (0.4, 0.4, 0.4, 0.1)
    never, often = (
        TrainTransform(8, jitter=jitter, jitter_probability=0.0),
        TrainTransform(8, jitter=jitter, jitter_probability=0.8),
    )
    same = [torch.equal(often(picture(), numpy_generator(n)), never(picture(), numpy_generator(n))) for n in range(300)]
    assert 35 < sum(same) < 90


def test_grey_is_that_of_pillow_and_comes_with_its_probability() -> None:
    from PIL import Image

    image = picture()
    theirs = np.asarray(Image.fromarray(image.permute(1, 2, 0).numpy()).convert("L"), dtype=np.int64)
    grey = to_grayscale(image)
    assert grey.dtype == torch.uint8
    assert np.abs(grey.numpy().astype(np.int64) - theirs).max() <= 1
    for value in (0, 255):
        assert bool((to_grayscale(torch.full((3, 2, 2), value, dtype=torch.uint8)) == value).all())
    transform = TrainTransform(8, grayscale=0.2)
    seen = [transform(picture(), numpy_generator(n)) for n in range(400)]
    assert 50 < sum(bool((one[0] == one[1]).all() and (one[0] == one[2]).all()) for one in seen) < 115


def test_erasing_fills_one_rectangle_of_the_stated_size_with_noise() -> None:
    black = torch.zeros(3, 100, 100, dtype=torch.uint8)
    shares, ratios, noise, centres = [], [], [], []
    for trial in range(600):
        erased = random_erase(black, numpy_generator(trial))
        rows = erased.amax(dim=(0, 2)).nonzero().flatten()
        columns = erased.amax(dim=(0, 1)).nonzero().flatten()
        height, width = len(rows), len(columns)
        assert rows[-1] - rows[0] == height - 1
        assert columns[-1] - columns[0] == width - 1
        shares.append(height * width / 10_000)
        ratios.append(np.log(width / height))
        centres.append(float(rows[0] + rows[-1]) / 2 / 99)
        noise.append(erased[:, rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].flatten())
    assert 0.018 < min(shares) < 0.03
    assert 0.19 < max(shares) < 0.205
    assert abs(np.mean(shares) - 0.11) < 0.01, "uniform share"
    assert abs(np.mean(ratios)) < 0.1, "uniform on a log scale"
    assert np.exp(max(np.abs(ratios))) < 3.7
    assert abs(np.mean(centres) - 0.5) < 0.03
    values = torch.cat(noise).double()
    assert abs(values.mean() - 127.5) < 0.5
    assert abs(values.std() - 256 / 12**0.5) < 0.5
    assert not black.any(), "the input stays"


def test_erasing_comes_with_its_probability_and_fits_any_picture() -> None:
    never, sometimes = TrainTransform(32), TrainTransform(32, erase=0.25)
    same = [
        torch.equal(sometimes(picture(), numpy_generator(n)), never(picture(), numpy_generator(n))) for n in range(400)
    ]
    assert 265 < sum(same) < 335
    for shape in ((1, 1), (1, 60), (60, 1), (3, 5)):
        for trial in range(30):
            image = torch.zeros(3, *shape, dtype=torch.uint8)
            assert random_erase(image, numpy_generator(trial)).shape == image.shape


def test_strong_uses_all_and_depends_on_the_generator_alone() -> None:
    strong = TrainTransform.strong(24, scale=(0.5, 1.0), interpolation="bicubic")
    assert (strong.size, strong.scale, strong.interpolation) == (24, (0.5, 1.0), "bicubic")
    assert (strong.jitter, strong.jitter_probability) == ((0.4, 0.4, 0.4, 0.1), 0.8)
    assert (strong.grayscale, strong.erase) == (0.2, 0.25)
    for trial in range(20):
        first, second = (strong(picture(), numpy_generator(trial)) for _ in range(2))
        assert torch.equal(first, second)
        assert (first.shape, first.dtype) == ((3, 24, 24), torch.uint8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "size=0 is not a picture size"),
        ({"scale": (0.5, 0.1)}, r"scale=\(0.5, 0.1\) must be two rising fractions of the area in \(0, 1\]"),
        ({"scale": (0.0, 1.0)}, "must be two rising fractions"),
        ({"ratio": (2.0, 1.0)}, r"ratio=\(2.0, 1.0\) must be two rising positive numbers"),
        ({"flip": 1.5}, "flip=1.5 is not a probability"),
        ({"jitter_probability": -0.1}, "jitter_probability=-0.1 is not a probability"),
        ({"grayscale": 2}, r"grayscale=2 is not a probability; give a number in \[0, 1\]"),
        ({"erase": float("nan")}, "erase=nan is not a probability"),
        ({"interpolation": "bicubik"}, "must be 'bilinear' or 'bicubic'. Did you mean 'bicubic'?"),
        ({"jitter": (0, 0, 0, 0.9)}, r"the last one \(hue\) in \[0, 0.5\]"),
    ],
)
def test_wrong_options_are_told(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainTransform(**{"size": 8, **options})
