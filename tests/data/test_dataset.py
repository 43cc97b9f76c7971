"""Rows become samples and batches; augmentation depends on (seed, epoch, row) and on nothing else."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from proxemics.core.errors import DataError, ImageError
from proxemics.data.cache import PixelCache
from proxemics.data.dataset import ImageDataset
from proxemics.data.decode import decode_tensor
from proxemics.data.preprocess import Preprocess
from proxemics.data.transforms import TrainTransform

LABELS = np.array([0, 1, 0, 1, 0, 2])


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    rng = np.random.default_rng(0)
    files = [tmp_path / f"{number}.jpg" for number in range(6)]
    for number, file in enumerate(files):
        Image.fromarray(rng.integers(0, 256, (40 + number, 60, 3), dtype=np.uint8)).save(file)
    return [str(file) for file in files]


def train(paths: list[str], **options: object) -> ImageDataset:
    return ImageDataset(paths, LABELS, **{"transform": TrainTransform(16), **options})


def test_a_sample_and_a_batch_agree(paths: list[str]) -> None:
    dataset = train(paths, domains=np.array([5, 4, 3, 2, 1, 0]), seed=3)
    assert len(dataset) == 6
    batch = dataset.batch([4, 1, 1])
    assert batch["image"].shape == (3, 3, 16, 16)
    assert batch["image"].dtype == torch.uint8
    assert batch["label"].tolist() == [0, 1, 1]
    assert batch["domain"].tolist() == [1, 4, 4]
    assert batch["id"].tolist() == [4, 1, 1]
    assert {batch[key].dtype for key in ("label", "domain", "id")} == {torch.int64}
    sample = dataset[4]
    assert torch.equal(batch["image"][0], sample["image"])
    assert (sample["label"], sample["domain"], sample["id"]) == (0, 1, 4)
    assert torch.equal(batch["image"][1], batch["image"][2])


def test_augmentation_depends_on_seed_epoch_and_row_only(paths: list[str]) -> None:
    """user-pains 15, 16: distinct over rows and epochs, equal when repeated, whatever was read before."""
    twins = [paths[0]] * 6
    dataset = train(twins, seed=1)
    seen = []
    for epoch in (0, 1):
        dataset.set_epoch(epoch)
        seen += [dataset[row]["image"] for row in range(6)]
    assert len({image.numpy().tobytes() for image in seen}) == 12
    other = train(twins, seed=1)
    other.set_epoch(1)
    assert other.epoch == 1
    np.random.seed(0)  # noqa: NPY002  # the global state must not matter
    torch.manual_seed(0)
    assert torch.equal(other[3]["image"], seen[9])
    assert not torch.equal(train(twins, seed=2)[3]["image"], seen[3])


def test_evaluation_uses_the_one_preprocessing(paths: list[str]) -> None:
    preprocess = Preprocess(size=16, resize=20)
    dataset = ImageDataset(paths, LABELS, transform=preprocess)
    before = dataset[2]["image"]
    assert torch.equal(before, preprocess.crop(decode_tensor(paths[2])))
    dataset.set_epoch(9)
    assert torch.equal(dataset[2]["image"], before)


def test_cache_gives_evaluation_the_pixels_of_the_files(paths: list[str], tmp_path: Path) -> None:
    cache = PixelCache.build(paths, tmp_path / "cache", short_side=30)
    for resize in (20, 30, 36):
        preprocess = Preprocess(size=16, resize=resize)
        plain = ImageDataset(paths, LABELS, transform=preprocess).batch(range(6))
        cached = ImageDataset(paths, LABELS, transform=preprocess, cache=cache).batch(range(6))
        assert torch.equal(plain["image"], cached["image"])


def test_cache_feeds_training_without_the_files(paths: list[str], tmp_path: Path) -> None:
    cache = PixelCache.build(paths[::-1], tmp_path / "cache", short_side=64)
    plain = train(paths).batch(range(6))["image"]
    dataset = train(paths, cache=cache)
    for path in paths:
        Path(path).unlink()
    assert torch.equal(dataset.batch(range(6))["image"], plain), "stored whole: the same crops"


def test_reading_errors_name_the_path(paths: list[str]) -> None:
    Path(paths[3]).write_bytes(b"")
    with pytest.raises(ImageError, match=r"3\.jpg cannot be read: the file is empty"):
        train(paths)[3]


def test_skip_takes_the_next_of_the_class_and_counts(paths: list[str]) -> None:
    """user-pains 66: the policy skip replaces an unreadable picture by another of its class."""
    Path(paths[2]).write_text("no picture")
    dataset = train(paths, on_error="skip", domains=np.arange(6))
    batch = dataset.batch([2, 0, 2, 4])
    assert batch["id"].tolist() == [4, 0, 4, 4]
    assert batch["label"].tolist() == [0, 0, 0, 0]
    assert batch["domain"].tolist() == [4, 0, 4, 4]
    assert dataset.skipped == [paths[2]]
    assert not torch.equal(batch["image"][0], batch["image"][3]), "the replacement has a crop of its own"
    Path(paths[4]).unlink()
    again = train(paths, on_error="skip")
    assert again.batch([2, 4])["id"].tolist() == [0, 0], "the next row comes after a turn of the circle"
    assert again.skipped == [paths[2], paths[4]]


def test_skip_gives_up_when_a_class_has_nothing_left(paths: list[str]) -> None:
    Path(paths[5]).write_text("no picture")
    dataset = train(paths, on_error="skip")
    for _ in range(2):
        with pytest.raises(ImageError, match=r"No picture of the class of .*5\.jpg can be read \(1 unreadable files"):
            dataset[5]


def test_evaluation_never_replaces(paths: list[str]) -> None:
    with pytest.raises(DataError, match="on_error='skip' would evaluate some pictures twice; take"):
        train(paths, transform=Preprocess(size=8, resize=8), on_error="skip")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"labels": LABELS[:5]}, r"labels must be 6 integers, one a path, not \(5,\) int64"),
        ({"labels": LABELS.astype(str)}, r"not \(6,\) <U21; encode names with LabelMap first"),
        ({"labels": LABELS / 2}, "float64"),
        ({"domains": np.zeros((6, 2), int)}, r"domains must be 6 integers, one a path, not \(6, 2\) int64"),
        ({"size": 32}, "size=32 differs from the transform's size=16"),
        ({"on_error": "ignore"}, "on_error='ignore' must be 'raise' or 'skip'"),
    ],
)
def test_what_does_not_fit_is_told(paths: list[str], options: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        ImageDataset(paths, **{"labels": LABELS, "transform": TrainTransform(16), **options})


def test_rows_out_of_range(paths: list[str]) -> None:
    for row in (6, -1):
        with pytest.raises(IndexError, match=rf"row {row} is outside 0\.\.5"):
            train(paths)[row]


def test_pickling_keeps_everything(paths: list[str], tmp_path: Path) -> None:
    dataset = train(paths, seed=4, cache=PixelCache.build(paths, tmp_path / "cache", short_side=20))
    dataset.set_epoch(7)
    copy = pickle.loads(pickle.dumps(dataset))
    assert copy.epoch == 7
    assert torch.equal(copy.batch([0, 5])["image"], dataset.batch([0, 5])["image"])
