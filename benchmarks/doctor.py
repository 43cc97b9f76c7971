"""What the doctor costs: headers and equal bytes, decoding, the search for near-duplicates; and the sampler's plan.

Usage: ``python benchmarks/doctor.py --data ../shared/data/cars196 [--rounds 3]``, a folder or table of real pictures.
Writes benchmarks/results/doctor.json. The floor is the least that does the same job: reading, hashing and opening each
file once; decoding each once at reduced size; all pairs of pictures by matrix products; one permutation of the labels.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
from _measure import Sample, Task, compare, describe, one_thread, row, write_results
from PIL import Image

from proxemics.data.facts import inspect_files
from proxemics.data.hashing import equal_files
from proxemics.data.sampler import MPerClass
from proxemics.data.similar import similar_pictures
from proxemics.data.sources import load_table


def headers(paths: list[str]) -> None:
    facts = inspect_files(paths, decode=False, workers=1)
    equal_files(paths, [fact.num_bytes for fact in facts])


def headers_floor(paths: list[str]) -> None:
    for path in paths:
        data = Path(path).read_bytes()
        hashlib.blake2b(data).digest()
        with Image.open(BytesIO(data)) as image:
            assert image.size


def decoded_floor(paths: list[str]) -> None:
    for path in paths:
        with Image.open(path) as image:
            image.draft("RGB", (64, 64))
            image.load()


def all_pairs(thumbs: np.ndarray) -> None:
    rows = thumbs.reshape(len(thumbs), -1).astype(np.float32)
    rows -= rows.mean(axis=1, keepdims=True)
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-6)
    for begin in range(0, len(rows), 512):
        np.nonzero(rows[begin : begin + 512] @ rows[begin:].T >= 0.99)


def spread(thumbs: np.ndarray, number: int) -> np.ndarray:
    """Make many different pictures out of few: mirrored and shifted."""
    shifts = range(2, 2 + number // len(thumbs))
    return np.concatenate([thumbs, thumbs[:, :, ::-1]] + [np.roll(thumbs, k, axis=1 + k % 2) for k in shifts])[:number]


def main() -> None:
    one_thread()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    paths = load_table(arguments.data)["path"].tolist()
    thumbs = np.stack([fact.thumb for fact in inspect_files(paths, workers=1) if fact.thumb is not None])
    many = spread(thumbs, 100_000)
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(20_000), 5))

    def sampler() -> object:
        return MPerClass(labels, 128, 4).plan(0)

    jobs: dict[str, tuple[Callable[[], object], Callable[[], object] | None]] = {
        f"doctor_headers_and_hash_{len(paths)}_files": (lambda: headers(paths), lambda: headers_floor(paths)),
        f"doctor_decode_{len(paths)}_files": (lambda: inspect_files(paths, workers=1), lambda: decoded_floor(paths)),
        f"near_duplicates_{len(thumbs)}": (lambda: similar_pictures(thumbs), lambda: all_pairs(thumbs)),
        "near_duplicates_100000": (lambda: similar_pictures(many), None),
        "m_per_class_epoch_20000x5": (sampler, lambda: np.random.default_rng(0).permutation(labels)),
    }
    rows = []
    for name, (step, floor) in jobs.items():
        samples: dict[str, list[Sample]] = compare(
            {"ours": lambda step=step, floor=floor: Task(step, floor, repeats=1)}, arguments.rounds
        )
        rows.append(row(name, samples))
        if name.startswith("doctor"):
            rows[-1]["files_per_cpu_second"] = round(len(paths) / rows[-1]["ours"])
            rows[-1]["megabytes"] = round(sum(Path(path).stat().st_size for path in paths) / 1e6, 1)
        print(describe(rows[-1]))
    write_results("doctor", rows, ["numpy", "pillow", "pandas"])


if __name__ == "__main__":
    main()
