"""From a JPEG of about 500 x 400 pixels to the 224 square that a trunk sees, and training crops from the pixel cache.

The pictures are photographs that scikit-image ships, written as JPEG (quality 90, 4:2:0) into a temporary folder. The
floor is the bare decoder. Writes benchmarks/results/loader.json; times are CPU seconds a picture on one core.
Usage: ``python benchmarks/loader.py [--rounds 5]``.
"""

from __future__ import annotations

from _measure import Sample, Task, compare, row, write_results  # isort: skip  # first: it sets one thread

import argparse
import tempfile
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
import torch
from PIL import Image
from torchvision import io
from torchvision.transforms import v2

from proxemics.data.cache import PixelCache
from proxemics.data.dataset import ImageDataset
from proxemics.data.decode import decode_tensor
from proxemics.data.preprocess import Preprocess
from proxemics.data.transforms import TrainTransform

PHOTOS = ("astronaut", "chelsea", "coffee", "rocket", "immunohistochemistry", "retina", "hubble_deep_field")
SHAPES = ((500, 400), (500, 375), (400, 500), (500, 334))
RESIZE, SIZE, TRAIN_SIZE = 256, 224, 128
PREPROCESS = Preprocess(size=SIZE, resize=RESIZE)
Read = Callable[[Path], Any]


def make_pictures(folder: Path) -> list[Path]:
    photos = import_module("skimage.data")
    paths = []
    for name in PHOTOS:
        pixels = getattr(photos, name)()[..., :3]
        for width, height in SHAPES:
            paths.append(folder / f"{name}_{width}x{height}.jpg")
            whole = Image.fromarray(pixels)
            scale = max(width / whole.width, height / whole.height)
            box_width, box_height = width / scale, height / scale
            left, top = (whole.width - box_width) / 2, (whole.height - box_height) / 2
            box = (left, top, left + box_width, top + box_height)
            picture = whole.resize((width, height), Image.Resampling.LANCZOS, box=box)
            picture.save(paths[-1], quality=90, subsampling="4:2:0")
    return paths


def geometry(width: int, height: int) -> tuple[int, int, int, int]:
    long = int(RESIZE * max(width, height) / min(width, height))
    new_width, new_height = (RESIZE, long) if width <= height else (long, RESIZE)
    return new_width, new_height, round((new_width - SIZE) / 2), round((new_height - SIZE) / 2)


def pillow(path: Path) -> np.ndarray:
    with Image.open(path) as file:
        image = file.convert("RGB")
    width, height, left, top = geometry(*image.size)
    resized = image.resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(resized.crop((left, top, left + SIZE, top + SIZE)))


def pillow_box(path: Path) -> np.ndarray:
    with Image.open(path) as file:
        image = file.convert("RGB")
    width, height, left, top = geometry(*image.size)
    x, y = image.width / width, image.height / height
    box = (left * x, top * y, (left + SIZE) * x, (top + SIZE) * y)
    return np.asarray(image.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box=box))


def torchvision(path: Path) -> np.ndarray:
    image = io.decode_jpeg(io.read_file(str(path)))
    resized = v2.functional.resize(image, [RESIZE], antialias=True)
    return v2.functional.center_crop(resized, [SIZE]).permute(1, 2, 0).numpy()


def ours(path: Path) -> np.ndarray:
    return PREPROCESS.crop(decode_tensor(path)).permute(1, 2, 0).numpy()


def ours_exact(path: Path) -> np.ndarray:
    return PREPROCESS.crop_exact(path)


def bare_decoder(path: Path) -> np.ndarray:
    with path.open("rb") as file:
        return simplejpeg.decode_jpeg(file.read())


def float_batches(paths: Sequence[Path], read: Callable[[Sequence[Path]], torch.Tensor]) -> Callable[[], None]:
    def step() -> None:
        for start in range(0, len(paths), 14):
            read(paths[start : start + 14])

    return step


def pillow_float(paths: Sequence[Path]) -> torch.Tensor:
    normalize = v2.Normalize(PREPROCESS.mean, PREPROCESS.std)
    crops = [torch.from_numpy(pillow(path).copy()).permute(2, 0, 1) for path in paths]
    return torch.stack([normalize(v2.functional.to_dtype(crop, torch.float32, scale=True)) for crop in crops])


def ours_float(paths: Sequence[Path]) -> torch.Tensor:
    return PREPROCESS.batch([decode_tensor(path) for path in paths])


def training(paths: Sequence[Path], cache: PixelCache | None) -> Callable[[], None]:
    labels = np.zeros(len(paths), dtype=np.int64)
    dataset = ImageDataset(paths, labels, transform=TrainTransform(TRAIN_SIZE), cache=cache)

    def step() -> None:
        dataset.set_epoch(dataset.epoch + 1)
        dataset.batch(range(len(paths)))

    return step


def training_pillow(paths: Sequence[Path]) -> Callable[[], None]:
    augment = v2.Compose([v2.RandomResizedCrop(TRAIN_SIZE), v2.RandomHorizontalFlip()])

    def step() -> None:
        crops = []
        for path in paths:
            with Image.open(path) as file:
                crops.append(torch.from_numpy(np.array(augment(file.convert("RGB")))))
        torch.stack(crops)

    return step


def timing(
    name: str, steps: dict[str, Callable[[], object]], paths: Sequence[Path], rounds: int, **extra: Any
) -> dict[str, Any]:
    def floor() -> None:
        for path in paths:
            bare_decoder(path)

    samples = compare({key: lambda step=step: Task(step, floor) for key, step in steps.items()}, rounds)
    count = len(paths)
    each = {
        key: [Sample(run.cpu / count, run.floor / count if run.floor else None, run.growth_mb) for run in runs]
        for key, runs in samples.items()
    }
    result = row(name, each)
    rates = {key: round(1 / seconds) for key, seconds in {"ours": result["ours"], **result["peers"]}.items()}
    return {**result, **extra, "images_per_cpu_s": rates}


def difference(read: Read, paths: Sequence[Path]) -> dict[str, float]:
    apart = [np.abs(read(path).astype(int) - pillow(path)) for path in paths]
    return {
        "max": int(max(each.max() for each in apart)),
        "mean": round(float(np.mean([each.mean() for each in apart])), 5),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        paths = make_pictures(Path(folder))
        cache = PixelCache.build(paths, Path(folder) / "cache", short_side=160)
        readers: dict[str, Read] = {
            "ours": ours,
            "pillow resize+crop": pillow,
            "pillow resize(box)": pillow_box,
            "torchvision decode+resize+crop": torchvision,
            "ours, exact engine": ours_exact,
        }

        def sweep(read: Read) -> Callable[[], None]:
            return lambda: [read(path) for path in paths] and None

        rows = [
            timing(
                "jpeg_500x400_to_224_uint8",
                {name: sweep(read) for name, read in readers.items()},
                paths,
                rounds,
                grey_levels_from_pillow={name: difference(read, paths) for name, read in readers.items()},
            ),
            timing(
                "jpeg_500x400_to_224_float_batch",
                {"ours": float_batches(paths, ours_float), "pillow+torchvision": float_batches(paths, pillow_float)},
                paths,
                rounds,
            ),
            timing(
                "training_crop_128_uint8_batch",
                {
                    "ours": training(paths, cache),
                    "ours, no cache": training(paths, None),
                    "pillow+torchvision": training_pillow(paths),
                },
                paths,
                rounds,
            ),
        ]
    for result in rows:
        print(result["name"])
        floor = result["floor"]
        for key, rate in result["images_per_cpu_s"].items():
            apart = result.get("grey_levels_from_pillow", {}).get(key, "")
            seconds = result["ours"] if key == "ours" else result["peers"][key]
            print(f"  {key:32} {rate:6} images/s  x{seconds / floor:.2f} of the bare decoder  {apart}")
    packages = ["proxemics", "torch", "torchvision", "pillow", "simplejpeg", "numpy", "scikit-image"]
    print(write_results("loader", rows, packages))


if __name__ == "__main__":
    main()
