"""The pixel cache: right pixels, atomic builds, rebuilt when a file changes, checked before it is trusted."""

from __future__ import annotations

import os
import pickle
import shutil
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from proxemics.core.errors import DataError, ImageError
from proxemics.data.cache import PixelCache
from proxemics.data.decode import decode_tensor
from proxemics.data.preprocess import Preprocess, resize

SIZES = [(80, 60), (30, 90), (40, 40), (25, 20), (200, 33)]


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    rng = np.random.default_rng(0)
    files = []
    for number, (width, height) in enumerate(SIZES):
        pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        files.append(tmp_path / f"größe {number}.{'jpg' if number % 2 else 'png'}")
        Image.fromarray(pixels).save(files[-1])
    return files


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("workers", [1, 3])
def test_pictures_come_back(paths: list[Path], tmp_path: Path, workers: int, interpolation: str) -> None:
    cache = PixelCache.build(paths, tmp_path / "cache", short_side=32, workers=workers, interpolation=interpolation)
    assert len(cache) == 5
    assert cache.paths == tuple(map(str, paths))
    shapes = [(32, 42), (90, 30), (32, 32), (20, 25), (32, 193)]
    for position, (path, shape) in enumerate(zip(paths, shapes, strict=True)):
        stored = cache.get(position)
        assert stored.shape == (3, *shape)
        whole = decode_tensor(path)
        expected = resize(whole, *shape, interpolation=interpolation) if min(whole.shape[1:]) > 32 else whole
        assert torch.equal(stored, expected)
    assert cache.num_bytes == 3 * sum(height * width for height, width in shapes)
    assert cache.positions([paths[3], str(paths[1])]).tolist() == [3, 1]


def test_writing_to_a_picture_leaves_the_file_alone(paths: list[Path], tmp_path: Path) -> None:
    cache = PixelCache.build(paths, tmp_path / "cache", short_side=32)
    before = cache.get(0).clone()
    cache.get(0).zero_()
    assert torch.equal(PixelCache.open(tmp_path / "cache").get(0), before)


def test_what_fits_is_used_again_and_what_changed_is_rebuilt(paths: list[Path], tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    built = PixelCache.build(paths, folder, short_side=32)
    (pixels,) = folder.glob("pixels-*.bin")
    first = pixels.stat().st_ino, pixels.stat().st_mtime_ns

    def untouched() -> bool:
        return pixels.exists() and (pixels.stat().st_ino, pixels.stat().st_mtime_ns) == first

    again = PixelCache.build(paths[1:3], folder, short_side=32)
    assert untouched()
    assert torch.equal(again.get(int(again.positions([paths[2]])[0])), built.get(2))

    Image.new("RGB", (50, 50), "red").save(paths[0])
    os.utime(paths[0], ns=(1, 1))
    rebuilt = PixelCache.build(paths, folder, short_side=32)
    assert not untouched()
    assert rebuilt.get(0)[:, 0, 0].tolist() == [255, 0, 0]
    assert built.get(1).shape == (3, 90, 30), "the old map stays readable for those who hold it"
    assert len(names(folder)) == 2

    assert PixelCache.build(paths, folder, short_side=16).get(0).shape == (3, 16, 16)
    assert PixelCache.build(paths, folder, short_side=16, interpolation="bicubic").interpolation == "bicubic"
    extra = tmp_path / "new.png"
    Image.new("L", (5, 5)).save(extra)
    assert len(PixelCache.build([*paths, extra], folder, short_side=16)) == 6
    assert len(names(folder)) == 2


def test_same_size_and_new_time_stamp_is_a_change(paths: list[Path], tmp_path: Path) -> None:
    PixelCache.build(paths, tmp_path / "cache", short_side=32)
    size, before = paths[2].stat().st_size, paths[2].stat().st_mtime_ns
    Image.new("RGB", (40, 40), "lime").save(paths[2])
    with paths[2].open("ab") as file:
        file.write(b"\0" * (size - file.tell()))
    assert paths[2].stat().st_size == size
    os.utime(paths[2], ns=(before, before + 5))
    assert PixelCache.build(paths, tmp_path / "cache", short_side=32).get(2)[1, 0, 0] == 255


def test_a_failed_build_leaves_the_old_cache(paths: list[Path], tmp_path: Path) -> None:
    """user-pains 66: the error names the file, and nothing half-written stays."""
    folder = tmp_path / "cache"
    PixelCache.build(paths[:3], folder, short_side=32)
    before = names(folder)
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(paths[1].read_bytes()[:200])
    with pytest.raises(ImageError) as error:
        PixelCache.build([*paths, broken], folder, short_side=32, workers=2)
    assert str(error.value).startswith(f"{broken} cannot be read: ")
    assert names(folder) == before
    assert len(PixelCache.open(folder)) == 3


def test_what_a_killed_build_left_is_removed_later(paths: list[Path], tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    running, killed = folder / ".pixels-1.bin.a.bin", folder / ".pixels-1.bin.b.bin"
    running.touch()
    killed.touch()
    os.utime(killed, (1, 1))
    PixelCache.build(paths, folder, short_side=8)
    assert running.exists()
    assert not killed.exists()


def test_skipping_notes_failures(paths: list[Path], tmp_path: Path) -> None:
    broken = tmp_path / "broken.png"
    broken.touch()
    everything = [paths[0], broken, tmp_path / "absent.png", paths[1]]
    cache = PixelCache.build(everything, tmp_path / "cache", short_side=32, on_error="skip")
    assert sorted(cache.failures) == [1, 2]
    assert cache.get(3).shape == (3, 90, 30)
    for position, reason in ((1, "the file is empty"), (2, "there is no such file")):
        with pytest.raises(ImageError, match=reason):
            cache.get(position)
    assert torch.equal(PixelCache.open(tmp_path / "cache").get(3), cache.get(3))
    with pytest.raises(ImageError, match="the file is empty"):
        PixelCache.build(everything, tmp_path / "cache", short_side=32)


def test_a_full_disk_is_told_before_anything_is_decoded(
    paths: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")  # the shape of shutil's own answer
    needed = 3 * sum(height * width for height, width in [(32, 42), (90, 30), (32, 32), (20, 25), (32, 193)])
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**6, 10**6 - needed, needed))
    with pytest.raises(DataError) as error:
        PixelCache.build(paths, tmp_path / "cache", short_side=32)
    assert "GiB are free; free some space, choose another folder, or lower short_side=32." in str(error.value)
    assert names(tmp_path / "cache") == []
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**6, 0, int(needed * 1.1)))
    assert PixelCache.build(paths, tmp_path / "cache", short_side=32).num_bytes == needed


def test_damage_is_noticed(paths: list[Path], tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    PixelCache.build(paths, folder, short_side=32)
    (pixels,) = folder.glob("pixels-*.bin")
    os.truncate(pixels, 100)
    with pytest.raises(DataError, match=r"is 100 bytes, \d+ bytes are expected; delete .* and build it again"):
        PixelCache.open(folder)
    pixels.unlink()
    with pytest.raises(DataError, match="is missing"):
        PixelCache.open(folder)
    with pytest.raises(DataError, match=r"holds no finished pixel cache; make one with PixelCache\.build"):
        PixelCache.open(tmp_path)


def test_wrong_arguments_and_unknown_paths(paths: list[Path], tmp_path: Path) -> None:
    with pytest.raises(DataError, match="short_side=0, workers=1, on_error='raise': give short_side >= 1"):
        PixelCache.build(paths, tmp_path / "cache", short_side=0)
    cache = PixelCache.build(paths[:1], tmp_path / "cache", short_side=8)
    with pytest.raises(DataError, match=r"other\.png is not in the pixel cache .* build the cache from all paths"):
        cache.positions(["other.png"])


def test_duplicates_are_stored_once(paths: list[Path], tmp_path: Path) -> None:
    cache = PixelCache.build([paths[0], paths[1], paths[0]], tmp_path / "cache", short_side=8)
    assert len(cache) == 2
    assert cache.positions([paths[0], paths[1], paths[0]]).tolist() == [0, 1, 0]


def test_it_travels_as_its_folder(paths: list[Path], tmp_path: Path) -> None:
    cache = PixelCache.build(paths, tmp_path / "cache", short_side=32)
    data = pickle.dumps(cache)
    assert len(data) < cache.num_bytes
    assert torch.equal(pickle.loads(data).get(2), cache.get(2))


def test_exact_for_says_when_evaluation_may_use_it(paths: list[Path], tmp_path: Path) -> None:
    cache = PixelCache.build(paths, tmp_path / "cache", short_side=32)
    same = Preprocess(size=24, resize=32)
    for position, path in enumerate(paths):
        assert cache.exact_for(position, same)
        assert torch.equal(same.crop(cache.get(position)), same.crop(decode_tensor(path)))
    smaller = Preprocess(size=24, resize=28)
    assert [cache.exact_for(position, smaller) for position in range(5)] == [False, True, False, True, False]
    assert not cache.exact_for(0, Preprocess(size=24, resize=32, interpolation="bicubic"))
