"""What the doctor costs: headers and equal bytes, full decoding, the search for near-duplicates, and the sampler's
plan.

    python benchmarks/doctor.py --data ../shared/data/index.csv

writes ``benchmarks/results/doctor.json``. Each row is the median of interleaved runs in CPU seconds of one process
with one thread; ``floor`` is the least that does the same job: reading and hashing each file once and opening it
with Pillow, decoding each file once at reduced size, all pairs by blocked matrix products.
"""

from __future__ import annotations

import argparse
import hashlib
import platform
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from statistics import median

import numpy as np
import pandas as pd
import PIL
from PIL import Image

from proxemics.core.files import write_json
from proxemics.data.facts import inspect_files
from proxemics.data.hashing import equal_files
from proxemics.data.sampler import MPerClass
from proxemics.data.similar import similar_pictures
from proxemics.data.sources import load_table

RUNS = 3


def headers(paths: list[str]) -> None:
    facts = inspect_files(paths, decode=False, workers=1)
    equal_files(paths, [fact.num_bytes for fact in facts])


def headers_floor(paths: list[str]) -> None:
    for path in paths:
        data = Path(path).read_bytes()
        hashlib.blake2b(data).digest()
        with Image.open(BytesIO(data)) as image:
            assert image.size


def decoded(paths: list[str]) -> None:
    inspect_files(paths, workers=1)


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


def plan(labels: np.ndarray) -> None:
    MPerClass(labels, 128, 4).plan(0)


def no_plan(labels: np.ndarray) -> None:
    np.random.default_rng(0).permutation(labels)


def spread(thumbs: np.ndarray, number: int) -> np.ndarray:
    """Many different pictures out of few: mirrored and shifted."""
    ways = [thumbs, thumbs[:, :, ::-1]] + [
        np.roll(thumbs, k, axis=1 + k % 2) for k in range(2, 2 + number // len(thumbs))
    ]
    return np.concatenate(ways)[:number]


def row(name: str, ours: Callable[[], None], floor: Callable[[], None], **extra: float) -> dict[str, object]:
    times: dict[str, list[float]] = {"ours": [], "floor": []}
    for _ in range(RUNS):
        for kind, function in (("ours", ours), ("floor", floor)):
            started = time.process_time()
            function()
            times[kind].append(time.process_time() - started)
    tracemalloc.start()
    ours()
    peak = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    figures = {kind: round(median(values), 4) for kind, values in times.items()}
    print(name, figures, round(peak, 1), extra)
    return {"name": name, **figures, "peers": {}, "unit": "CPU s", "peak_growth_mb": round(peak, 1), **extra}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="a folder or table of real pictures")
    parser.add_argument("--out", default="benchmarks/results/doctor.json")
    arguments = parser.parse_args()
    paths = load_table(arguments.data)["path"].tolist()
    megabytes = round(sum(Path(path).stat().st_size for path in paths) / 1e6, 1)
    thumbs = np.stack([fact.thumb for fact in inspect_files(paths) if fact.thumb is not None])
    many = spread(thumbs, 100_000)
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(20_000), 5))
    rows = [
        row(
            f"doctor_headers_and_hash_{len(paths)}",
            lambda: headers(paths),
            lambda: headers_floor(paths),
            megabytes=megabytes,
        ),
        row(f"doctor_decode_{len(paths)}", lambda: decoded(paths), lambda: decoded_floor(paths), megabytes=megabytes),
        row(f"near_duplicates_{len(thumbs)}", lambda: similar_pictures(thumbs), lambda: all_pairs(thumbs)),
        row("near_duplicates_100000", lambda: similar_pictures(many), lambda: all_pairs(many)),
        row("m_per_class_plan_20000x5", lambda: plan(labels), lambda: no_plan(labels)),
    ]
    for entry in rows[:2]:
        entry["files_per_cpu_second"] = round(len(paths) / float(str(entry["ours"])))
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    versions = {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "pillow": PIL.__version__,
        "pandas": pd.__version__,
    }
    content = {"schema": 1, "command": "python benchmarks/doctor.py --data ../shared/data/index.csv"}
    content |= {"commit": commit.stdout.strip(), "versions": versions, "machine": "one thread, no GPU", "rows": rows}
    write_json(arguments.out, content)


if __name__ == "__main__":
    sys.exit(main())
