"""EfficientNet-Lite0 at 224 px: what each engine costs beside eager torch, how near its vectors are, and whole jobs.

Rows of results/embed.json:

* ``engines_batch32``: CPU seconds to embed 32 prepared photographs on one thread. The floor is eager torch in the
  default (NCHW) memory order, timed in the same process before and after; ``times_eager`` is the speed against it
  (min, median, max over the rounds).
* ``cosine``: cosine of each engine's vectors to eager torch on photographs.
* ``end_to_end``: pictures a second from JPEG files to vectors. ``decode`` and ``model`` are the stages alone on one
  thread, ``job`` is both with two threads; ``job_over_slower`` is the job against the slower stage, from the wall clock
  of turns taken, and from CPU time (two threads that never wait do 2 / (CPU seconds a picture)).
* ``recall_drift``: Recall@1 of photographs of unseen classes by each engine's vectors, with the frozen network.

int8 is calibrated on 64 training photographs. ``DATA`` is the folder that holds ``index.csv``.
Usage: ``python benchmarks/embed.py --data DATA [--rounds 3] [--pictures 600]``.
"""

from __future__ import annotations

from _measure import Task, compare, one_thread, row, write_results  # isort: skip  # first: it sets one thread

import argparse
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from proxemics.evaluation import evaluate_embeddings
from proxemics.export.engines.base import Engine
from proxemics.export.engines.onnx_file import INT8, onnx_file
from proxemics.export.engines.open import open_engine
from proxemics.export.engines.torch_engine import TorchEngine
from proxemics.export.jobs.batches import BATCH, Batch, cut_batches
from proxemics.export.jobs.local import run_local
from proxemics.export.jobs.pictures import Pictures, open_pictures
from proxemics.export.jobs.places import PlaceReader
from proxemics.export.jobs.prepare import prepare_batch
from proxemics.export.quantize import quantize_onnx
from proxemics.models.bundle import load_bundle, save_bundle
from proxemics.models.embedder import Embedder

WANTED = {
    "torch channels_last": ("torch", "float32"),
    "torch bf16 autocast": ("torch", "bf16"),
    "onnxruntime float32": ("onnxruntime", "float32"),
    "openvino float32": ("openvino", "float32"),
    "openvino bf16": ("openvino", "bf16"),
    "onnxruntime int8": ("onnxruntime", "int8"),
}
MAX_PIXELS = 10**8
CALIBRATION = 64


def pictures_of(data: Path, split: str) -> Pictures:
    return open_pictures(data / "index.csv", where={"dataset": "cub200_2010", "split": split})


def prepared(pictures: Pictures, rows: Iterable[int], bundle: Path) -> np.ndarray:
    places = [pictures.places[row] for row in rows]
    return prepare_batch(load_bundle(bundle).preprocess, PlaceReader(), Batch(0, 0, places), max_pixels=MAX_PIXELS)[0]


def build(bundle: Path, data: Path) -> None:
    """Write the model, its ONNX file and its int8 file into one bundle, which records them."""
    embedder, plain = Embedder("auto", dim=512), bundle.with_name("plain")
    save_bundle(embedder, plain)
    training = pictures_of(data, "train")
    rows = np.linspace(0, len(training) - 1, CALIBRATION).astype(int).tolist()
    pixels = prepared(training, rows, plain)

    def more(folder: Path) -> None:
        full = folder / "onnx" / "model.onnx"
        full.parent.mkdir()
        full.write_bytes(onnx_file(plain, load_bundle(plain)).read_bytes())
        quantize_onnx(full, folder / INT8, [pixels[start : start + 16] for start in range(0, CALIBRATION, 16)])

    save_bundle(embedder, bundle, more=more)


def eager(bundle: Path) -> TorchEngine:
    """Torch as it comes: the default memory order."""
    found = load_bundle(bundle)
    found.arguments["channels_last"] = False
    return TorchEngine(found.to(memory_format=torch.contiguous_format), threads=1)


def task(bundle: Path, data: Path, name: str) -> Task:
    pictures = pictures_of(data, "test")
    pixels = prepared(pictures, range(0, len(pictures), len(pictures) // BATCH)[:BATCH], bundle)
    engine, precision = WANTED[name]
    ours = open_engine(bundle, engine=engine, precision=precision, threads=1, device="cpu")
    reference, plain = eager(bundle), np.ascontiguousarray(pixels)
    return Task(lambda: ours.encode(pixels), lambda: reference.encode(plain), repeats=1)


def engine_row(bundle: Path, data: Path, rounds: int) -> dict[str, Any]:
    samples = compare({name: partial(task, bundle, data, name) for name in WANTED}, rounds)
    found = row("engines_batch32", samples, ours="onnxruntime float32")
    faster: dict[str, list[float]] = {}
    for name, runs in samples.items():
        times = sorted(run.floor / run.cpu for run in runs if run.floor)
        faster[name] = [round(times[0], 2), round(statistics.median(times), 2), round(times[-1], 2)]
    eager_rate = BATCH / found["floor"]
    rates = {name: round(eager_rate * middle, 1) for name, (_, middle, _) in faster.items()}
    return {**found, "times_eager": faster, "pictures_per_cpu_s": {"torch eager NCHW": round(eager_rate, 1), **rates}}


def apart(work: Callable[..., Any], *arguments: Any) -> Any:
    """Run a function in a process of its own, so that no runtime is forked after it started its threads."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=lambda: sender.send(work(*arguments)))
    process.start()
    sender.close()
    try:
        return receiver.recv()
    finally:
        process.join()


def embed_all(bundle: Path, data: Path, name: str, rows: list[int]) -> np.ndarray:
    pictures = pictures_of(data, "test")
    engine: Engine
    if name == "torch eager NCHW":
        engine = eager(bundle)
    else:
        kind, precision = WANTED[name]
        engine = open_engine(bundle, engine=kind, precision=precision, threads=1, device="cpu")
    parts = [rows[start : start + BATCH] for start in range(0, len(rows), BATCH)]
    return np.concatenate([engine.encode(prepared(pictures, part, bundle))[0] for part in parts])


def quality_rows(bundle: Path, data: Path, count: int) -> list[dict[str, Any]]:
    labels = pictures_of(data, "test").frame["label"].to_list()
    rows = list(range(min(count, len(labels))))
    near, drift = {}, {}
    exact = apart(embed_all, bundle, data, "torch eager NCHW", rows[::4])
    reference = apart(embed_all, bundle, data, "onnxruntime float32", rows)
    full = evaluate_embeddings(reference, [labels[row] for row in rows])["recall_at_1"]
    for name in WANTED:
        found = reference if name == "onnxruntime float32" else apart(embed_all, bundle, data, name, rows)
        cosine = np.sum(found[::4].astype(np.float64) * exact, axis=1)
        near[name] = {
            "min": round(float(cosine.min()), 6),
            "percentile_5": round(float(np.percentile(cosine, 5)), 6),
            "mean": round(float(cosine.mean()), 6),
            "max_difference": float(f"{np.abs(found[::4] - exact).max():.3g}"),
        }
        recall = evaluate_embeddings(found, [labels[row] for row in rows])["recall_at_1"]
        drift[name] = {"recall_at_1": round(recall, 5), "minus_float32": round(recall - full, 5)}
    return [
        {"name": "cosine", "pictures": len(exact), "engines": near},
        {"name": "recall_drift", "dataset": "cub200_2010", "pictures": len(rows), "engines": drift},
    ]


def end_to_end(bundle: Path, data: Path, name: str, count: int, rounds: int) -> dict[str, Any]:
    """Time decoding, model and job in turns; runs in a process of its own."""
    pictures = pictures_of(data, "test")
    places = pictures.places[: count // BATCH * BATCH]
    batches = list(cut_batches(places, range(len(places) // BATCH), part_rows=BATCH))
    kind, precision = WANTED[name]
    single = open_engine(bundle, engine=kind, precision=precision, threads=1, device="cpu")
    double = open_engine(bundle, engine=kind, precision=precision, threads=2, calls=2, device="cpu")
    reader, pixels = PlaceReader(), prepared(pictures, range(BATCH), bundle)

    def decode() -> None:
        for batch in batches:
            prepare_batch(single.preprocess, reader, batch, max_pixels=MAX_PIXELS)

    def model() -> None:
        for _ in batches:
            single.encode(pixels)

    def job() -> None:
        for _ in run_local(double, batches, workers=2, max_pixels=MAX_PIXELS):
            pass

    wall: dict[str, list[float]] = {"decode": [], "model": [], "job": []}
    cpu: dict[str, list[float]] = {"decode": [], "model": [], "job": []}
    stages = {"decode": decode, "model": model, "job": job}
    for number in range(rounds + 1):
        for stage, work in stages.items():
            start, busy = time.perf_counter(), time.process_time()
            work()
            if number:  # the first round warms everything up
                wall[stage].append(time.perf_counter() - start)
                cpu[stage].append(time.process_time() - busy)
    ratio = statistics.median(
        max(one, other) / both for one, other, both in zip(wall["decode"], wall["model"], wall["job"], strict=True)
    )
    each = {stage: statistics.median(values) / len(places) for stage, values in cpu.items()}
    return {
        "name": "end_to_end",
        "engine": name,
        "pictures": len(places),
        "cpu_s_a_picture": {stage: float(f"{value:.4g}") for stage, value in each.items()},
        "pictures_per_s": {
            "decode, 1 thread": round(1 / each["decode"], 1),
            "model, 1 thread": round(1 / each["model"], 1),
            "job, 2 threads": round(2 / each["job"], 1),
        },
        "job_over_slower": {
            "cpu": round(2 * max(each["decode"], each["model"]) / each["job"], 3),
            "wall": round(ratio, 3),
        },
        "unit": "CPU s",
    }


def told(result: dict[str, Any]) -> dict[str, Any]:
    shown = {key: value for key, value in result.items() if key not in ("over_floor", "peers_peak_growth_mb")}
    print(shown, flush=True)
    return result


def main() -> None:
    one_thread()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pictures", type=int, default=600)
    options = parser.parse_args()
    data, rounds, count = options.data.resolve(), options.rounds, options.pictures
    with tempfile.TemporaryDirectory() as folder:
        bundle = Path(folder) / "bundle"
        apart(build, bundle, data)
        for name in WANTED:
            apart(partial(embed_all, bundle, data), name, [0])  # the comparison with torch, once
        rows = [told(engine_row(bundle, data, rounds))]
        rows += [told(one) for one in quality_rows(bundle, data, count)]
        ends = ("onnxruntime float32", "openvino bf16", "torch channels_last")
        rows += [told(apart(end_to_end, bundle, data, name, min(count, 256), rounds)) for name in ends]
    packages = ["proxemics", "torch", "onnxruntime", "openvino", "numpy", "pillow", "simplejpeg"]
    print(write_results("embed", rows, packages))


if __name__ == "__main__":
    main()
