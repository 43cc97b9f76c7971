"""Loading in real worker processes: fork and spawn, epochs, errors, what depends on nothing."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from proxemics.core.errors import DataError, ImageError
from proxemics.data.cache import PixelCache
from proxemics.data.dataset import Batch, ImageDataset
from proxemics.data.loader import make_loader
from proxemics.data.preprocess import Preprocess
from proxemics.data.transforms import TrainTransform

ROWS = [[0, 5, 2], [7, 7, 1], [3, 4, 6], [8, 9, 0], [2, 1, 5], [6, 3, 9]]


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    rng = np.random.default_rng(0)
    files = [tmp_path / f"{number}.jpg" for number in range(10)]
    for file in files:
        Image.fromarray(rng.integers(0, 256, (30, 40, 3), dtype=np.uint8)).save(file)
    return [str(file) for file in files]


def dataset_of(paths: list[str], **options: object) -> ImageDataset:
    return ImageDataset(paths, np.arange(10) % 3, **{"transform": TrainTransform(16), **options})


def equal(first: list[Batch], second: list[Batch]) -> bool:
    return len(first) == len(second) and all(
        torch.equal(one[key], two[key])  # type: ignore[literal-required]
        for one, two in zip(first, second, strict=True)
        for key in ("image", "label", "domain", "id")
    )


def epochs(dataset: ImageDataset, workers: int, context: str | None = None) -> list[list[Batch]]:
    loader = make_loader(dataset, ROWS, workers=workers, context=context)
    result = []
    for epoch in (0, 1):
        dataset.set_epoch(epoch)
        result.append([{key: value.clone() for key, value in batch.items()} for batch in loader])
    return result


@pytest.mark.parametrize("workers", [1, 2])
def test_forked_workers_give_what_none_give(paths: list[str], workers: int) -> None:
    """user-pains 16: epoch 1 differs from epoch 0, also in workers that stay alive."""
    alone = epochs(dataset_of(paths), 0)
    shared = epochs(dataset_of(paths), workers, "fork")
    assert equal(alone[0], shared[0])
    assert equal(alone[1], shared[1])
    assert not torch.equal(alone[0][0]["image"], alone[1][0]["image"])
    assert [batch["id"].tolist() for batch in shared[0]] == ROWS


def test_spawned_workers_with_a_cache(paths: list[str], tmp_path: Path) -> None:
    """user-pains 73: everything pickles; the epoch and the list of skipped files are shared all the same."""
    Path(paths[4]).write_bytes(b"")
    cache = PixelCache.build(paths, tmp_path / "cache", short_side=24, on_error="skip")
    alone = epochs(dataset_of(paths, cache=cache, on_error="skip"), 0)
    dataset = dataset_of(paths, cache=cache, on_error="skip")
    spawned = epochs(dataset, 2, "spawn")
    assert equal(alone[0], spawned[0])
    assert equal(alone[1], spawned[1])
    assert dataset.skipped == [paths[4]]
    assert 4 not in torch.cat([batch["id"] for batch in spawned[0]])


@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker")
def test_crops_are_distinct_over_workers_and_epochs_and_come_again(paths: list[str]) -> None:
    """user-pains 15: one picture behind every row, four workers, two epochs: no crop comes twice."""

    def crops() -> list[bytes]:
        dataset = ImageDataset([paths[0]] * 40, np.zeros(40, int), transform=TrainTransform(16), seed=5)
        loader = make_loader(dataset, 5, workers=4, context="fork")
        seen = []
        for epoch in (0, 1):
            dataset.set_epoch(epoch)
            seen += [image.numpy().tobytes() for batch in loader for image in batch["image"]]
        return seen

    first = crops()
    assert len(first) == 80
    assert len(set(first)) == 80
    assert crops() == first


@pytest.mark.parametrize("workers", [0, 2])
def test_an_unreadable_file_is_one_line_with_its_path(paths: list[str], workers: int) -> None:
    """user-pains 66: never a crash in a worker without the path."""
    Path(paths[7]).write_bytes(Path(paths[7]).read_bytes()[:300])
    loader = make_loader(dataset_of(paths), ROWS, workers=workers, context="fork")
    others = set(multiprocessing.active_children())
    for _ in range(2):
        with pytest.raises(ImageError) as error:
            list(loader)
        assert str(error.value).startswith(f"{paths[7]} cannot be read: ")
        assert "\n" not in str(error.value)
        assert set(multiprocessing.active_children()) <= others, "no process is left behind"
    Path(paths[7]).write_bytes(Path(paths[6]).read_bytes())
    assert len(list(loader)) == 6, "the loader is still good"
    loader.close()
    assert set(multiprocessing.active_children()) <= others


def test_skipped_files_are_known_to_the_main_process(paths: list[str]) -> None:
    Path(paths[7]).write_text("text")
    dataset = dataset_of(paths, on_error="skip")
    ids = [batch["id"].tolist() for batch in make_loader(dataset, ROWS, workers=2, context="fork")]
    assert ids[1] == [1, 1, 1], "rows 1, 4 and 7 are a class; after 7 comes 1"
    assert dataset.skipped == [paths[7]]


def test_leaving_early_does_not_leak_into_the_next_epoch(paths: list[str]) -> None:
    dataset = dataset_of(paths)
    loader = make_loader(dataset, ROWS, workers=2, context="fork")
    for _ in loader:
        break
    dataset.set_epoch(1)
    assert equal(list(loader), epochs(dataset_of(paths), 0)[1])


@pytest.mark.parametrize(("size", "sizes"), [(1, [1] * 10), (3, [3, 3, 3, 1]), (5, [5, 5]), (10, [10]), (99, [10])])
def test_a_batch_size_reads_all_rows_in_order(paths: list[str], size: int, sizes: list[int]) -> None:
    loader = make_loader(dataset_of(paths, transform=Preprocess(size=8, resize=8)), size)
    batches = list(loader)
    assert len(loader) == len(batches)
    assert [len(batch["id"]) for batch in batches] == sizes
    assert torch.cat([batch["id"] for batch in batches]).tolist() == list(range(10))


@pytest.mark.parametrize("workers", [0, 1])
def test_no_global_random_number_is_used(paths: list[str], workers: int) -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    list(make_loader(dataset_of(paths), ROWS, workers=workers, context="fork"))
    assert torch.equal(torch.get_rng_state(), before)
    assert (np.random.get_state()[1] == state).all()  # noqa: NPY002


def test_a_plain_torch_loader_works_too(paths: list[str]) -> None:
    dataset = dataset_of(paths)
    plain = torch.utils.data.DataLoader(dataset, batch_sampler=ROWS)
    assert equal(list(plain), list(make_loader(dataset, ROWS)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": -1}, "workers=-1 and prefetch=2: give workers >= 0 and prefetch >= 1"),
        ({"context": "spwan", "workers": 1}, r"context='spwan' must be one of .*Did you mean 'spawn'\?"),
        ({"batches": 0}, "A batch of 0 pictures is empty"),
    ],
)
def test_wrong_options_are_told(paths: list[str], options: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        make_loader(dataset_of(paths), **{"batches": 2, **options})
