"""The one preprocessing: its exact engine against Pillow and torchvision, its fast engine against the exact one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from pydantic import ValidationError
from torch import Tensor

from proxemics.core.errors import ConfigError, ImageError
from proxemics.data.decode import decode_tensor, to_tensor
from proxemics.data.preprocess import Preprocess, resize, resized_shape

FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


def photo(width: int, height: int, seed: int = 0) -> Image.Image:
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (9, 9, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC), dtype=np.int16)
    return Image.fromarray((smooth + rng.integers(-9, 10, smooth.shape)).clip(0, 255).astype(np.uint8))


def pixels(image: Tensor) -> np.ndarray:
    return image.permute(1, 2, 0).numpy().astype(int)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(500, 400), (333, 500), (90, 300), (256, 256), (100, 60)])
def test_exact_engine_is_pillow_width_first(size: tuple[int, int], interpolation: str) -> None:
    preprocess = Preprocess(size=224, resize=256, interpolation=interpolation)
    image = photo(*size)
    width, height = size
    long = int(256 * max(size) / min(size))
    new = (256, long) if width <= height else (long, 256)
    how = FILTERS[interpolation]
    resized = image.resize((new[0], height), how).resize(new, how)
    left, top = round((new[0] - 224) / 2), round((new[1] - 224) / 2)
    expected = np.asarray(resized.crop((left, top, left + 224, top + 224)))
    assert (preprocess.crop_exact(image) == expected).all()


@pytest.mark.parametrize("size", [(500, 400), (333, 500), (97, 300), (101, 60)])
def test_exact_engine_is_torchvision_on_pillow(size: tuple[int, int]) -> None:
    """Up to the order of the two passes, which Pillow chooses by its version: one level for bilinear."""
    from torchvision.transforms import v2

    image = photo(*size)
    theirs = v2.Compose([v2.Resize(161), v2.CenterCrop(128)])(image)
    ours = Preprocess(size=128, resize=161).crop_exact(image)
    assert np.abs(np.asarray(theirs, dtype=int) - ours).max() <= 1


def test_normalisation_follows_the_formula_in_both_engines() -> None:
    preprocess = Preprocess(size=32, resize=40, mean=(0.1, 0.4, 0.5), std=(0.2, 0.25, 0.5))
    image = photo(80, 60)
    exact = preprocess(image)
    expected = (preprocess.crop_exact(image) / 255.0 - [0.1, 0.4, 0.5]) / [0.2, 0.25, 0.5]
    assert exact.shape == (3, 32, 32)
    assert exact.dtype == np.float32
    assert exact.flags.c_contiguous
    np.testing.assert_allclose(exact, expected.transpose(2, 0, 1), atol=2e-6)
    same = preprocess.normalize(torch.from_numpy(preprocess.crop_exact(image).copy()).permute(2, 0, 1))
    assert torch.equal(same, torch.from_numpy(exact)), "equal pixels must give bit-equal inputs"


def test_normalize_gives_the_same_for_every_memory_layout() -> None:
    preprocess = Preprocess(size=4, resize=4, mean=(0.1, 0.4, 0.5), std=(0.2, 0.25, 0.5))
    planar = torch.randint(0, 256, (2, 3, 5, 7), dtype=torch.uint8)
    interleaved = planar.contiguous(memory_format=torch.channels_last)
    sliced = torch.randint(0, 256, (2, 3, 6, 9), dtype=torch.uint8)
    sliced[:, :, 1:, 2:] = planar
    expected = preprocess.normalize(planar)
    assert torch.equal(preprocess.normalize(interleaved), expected)
    assert torch.equal(preprocess.normalize(sliced[:, :, 1:, 2:]), expected)
    assert torch.equal(preprocess.normalize(interleaved[1]), expected[1])
    assert preprocess.normalize(interleaved).is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_normalize_takes_floats_keeps_gradients_and_is_undone(layout: torch.memory_format) -> None:
    preprocess = Preprocess(size=4, resize=4)
    levels = (torch.rand(2, 3, 4, 4) * 255).contiguous(memory_format=layout)
    before = levels.clone()
    levels.requires_grad_()
    out = preprocess.normalize(levels)
    out.sum().backward()
    assert levels.grad is not None
    torch.testing.assert_close(levels.grad[0, :, 0, 0], 1 / (255 * torch.tensor(preprocess.std)))
    assert torch.equal(levels.detach(), before)
    torch.testing.assert_close(preprocess.denormalize(out.detach()), before, atol=1e-3, rtol=0)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("shape", [(256, 224), (160, 128), (300, 288)])
def test_fast_engine_is_within_one_grey_level(shape: tuple[int, int], interpolation: str) -> None:
    preprocess = Preprocess(size=shape[1], resize=shape[0], interpolation=interpolation)
    for seed, size in enumerate([(500, 400), (375, 500), (160, 213), (96, 96), (640, 120)]):
        image = photo(*size, seed=seed)
        apart = np.abs(preprocess.crop_exact(image) - pixels(preprocess.crop(to_tensor(image))))
        assert apart.max() <= 2
        assert (apart > 1).mean() < 1e-4
        assert apart.mean() < 0.1


def test_fast_engine_on_noise_is_never_more_than_two_levels_away() -> None:
    rng = np.random.default_rng(0)
    for trial in range(60):
        width, height = (int(side) for side in rng.integers(2, 300, 2))
        noise = rng.integers(0, 2, (height, width, 3), dtype=np.uint8) * 255
        short = int(rng.integers(8, 200))
        preprocess = Preprocess(
            size=int(rng.integers(4, short + 1)), resize=short, interpolation=("bilinear", "bicubic")[trial % 2]
        )
        apart = np.abs(
            preprocess.crop_exact(Image.fromarray(noise))
            - pixels(preprocess.crop(torch.from_numpy(noise).permute(2, 0, 1)))
        )
        assert apart.max() <= 2
        assert (apart > 1).mean() < 1e-3


@pytest.mark.data
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_fast_engine_on_real_pictures(interpolation: str, shared_data: Path) -> None:
    preprocess = Preprocess(size=128, resize=160, interpolation=interpolation)
    paths = [path for path in sorted(shared_data.glob("*/*/*"))[::230] if path.is_file()]
    assert len(paths) > 30
    beyond = values = 0
    for path in paths:
        apart = np.abs(preprocess.crop_exact(path) - pixels(preprocess.crop(decode_tensor(path))))
        assert apart.max() <= (1 if interpolation == "bilinear" else 2), path
        beyond += int((apart > 1).sum())
        values += apart.size
    assert beyond / values < 1e-5


def test_memory_layout_of_the_input_does_not_matter() -> None:
    interleaved = to_tensor(photo(90, 70))
    planar = interleaved.contiguous()
    assert planar.stride() != interleaved.stride()
    for how in ("bilinear", "bicubic"):
        assert torch.equal(resize(interleaved, 40, 50, interpolation=how), resize(planar, 40, 50, interpolation=how))


def test_batch_takes_pictures_of_any_sizes() -> None:
    preprocess = Preprocess(size=24, resize=30)
    images = [to_tensor(photo(*size)) for size in [(50, 40), (30, 30), (20, 90)]]
    batch = preprocess.batch(images)
    assert batch.shape == (3, 3, 24, 24)
    assert batch.dtype == torch.float32
    assert batch.is_contiguous(memory_format=torch.channels_last)
    for row, image in enumerate(images):
        assert torch.equal(batch[row], preprocess.normalize(preprocess.crop(image)))
    assert preprocess.batch([]).shape == (0, 3, 24, 24)


@pytest.mark.parametrize("size", [(100_000, 2), (1, 50_000), (900, 100)])
def test_slivers_cost_no_more_than_the_crop(size: tuple[int, int]) -> None:
    """Resized whole, the first would be 12.8 million pixels wide."""
    preprocess = Preprocess(size=224, resize=256)
    image = Image.new("RGB", size, (10, 20, 30))
    for crop in (preprocess.crop_exact(image), preprocess.crop(to_tensor(image)).permute(1, 2, 0).numpy()):
        assert crop.shape == (224, 224, 3)
        assert (crop == (10, 20, 30)).all()


def test_sliver_is_cut_from_the_centre() -> None:
    image = Image.new("RGB", (900, 100), "red")
    image.paste("blue", (400, 0, 500, 100))
    crop = Preprocess(size=50, resize=50).crop_exact(image)
    assert (crop[:, 1:-1] == (0, 0, 255)).all()


def test_any_pillow_image_and_any_path(tmp_path: Path) -> None:
    """user-pains 68, 74: orientation and alpha are handled here too, so that a server cannot forget them."""
    preprocess = Preprocess(size=20, resize=20)
    upright = photo(60, 40)
    exif = Image.Exif()
    exif[0x0112] = 6
    upright.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "turned.png", exif=exif)
    with Image.open(tmp_path / "turned.png") as opened:
        assert (preprocess(opened) == preprocess(upright)).all()
    assert (preprocess(tmp_path / "turned.png") == preprocess(upright)).all()
    clear = preprocess(Image.new("RGBA", (30, 30), (0, 0, 0, 0)))
    assert (clear == preprocess(Image.new("L", (30, 30), 255))).all()
    with pytest.raises(ImageError, match="there is no such file"):
        preprocess(tmp_path / "absent.png")


def test_json_round_trip_and_fingerprint() -> None:
    preprocess = Preprocess(size=224, resize=256, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5), interpolation="bicubic")
    assert Preprocess.from_json(preprocess.to_json()) == preprocess
    assert Preprocess.from_json(preprocess.to_json()).fingerprint() == preprocess.fingerprint()
    changed = [{"size": 200}, {"resize": 300}, {"mean": (0, 0, 0)}, {"std": (1, 1, 1)}, {"interpolation": "bilinear"}]
    prints = {preprocess.model_copy(update=change).fingerprint() for change in changed}
    assert len(prints | {preprocess.fingerprint()}) == 6


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"size": 300, "resize": 256}', "size=300 is larger than resize=256; the crop must fit, raise resize"),
        ('{"size": 9, "resize": 9, "crop": 1}', "crop: Extra inputs are not permitted"),
        ('{"size": 9}', "resize: Field required"),
        ('{"size": 9, "resize": 9, "std": [1, 0, 1]}', "std.1: Input should be greater than 0"),
        ('{"size": 9, "resize": 9, "interpolation": "lanczos"}', "interpolation: Input should be 'bilinear'"),
        ("nonsense", "preprocess: Invalid JSON"),
    ],
)
def test_wrong_fields_are_told(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        Preprocess.from_json(text)
    assert "The preprocessing is not usable: " in str(error.value)
    assert message in str(error.value)


def test_it_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        Preprocess(size=9, resize=9).size = 8


def test_fast_engine_refuses_what_is_no_picture() -> None:
    with pytest.raises(ImageError, match=r"A picture is a \(3, H, W\) uint8 tensor, not \(1, 4, 4\) torch.uint8"):
        Preprocess(size=2, resize=2).crop(torch.zeros(1, 4, 4, dtype=torch.uint8))
    with pytest.raises(ImageError, match=r"torch\.float32"):
        Preprocess(size=2, resize=2).crop(torch.zeros(3, 4, 4))


def test_resized_shape_rounds_the_long_side_down_and_never_to_less_than_the_short_one() -> None:
    assert resized_shape(400, 500, 256) == (256, 320)
    assert resized_shape(500, 333, 256) == (384, 256)
    assert resized_shape(7, 7, 3) == (3, 3)
    assert resized_shape(1000, 1001, 3) == (3, 3)
