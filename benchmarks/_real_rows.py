"""What a run of the study on real pictures leaves, as a row and class sums, and what it is expected to cost."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from _real_protocols import MEASURES, METRICS, mean, measure_sums, pair_sums

from proxemics.core.files import atomic_path, write_json
from proxemics.evaluation.paired import paired_bootstrap
from proxemics.methods.build import methods_label
from proxemics.training.sweep.cells import Cell
from proxemics.training.sweep.locks import acquire

TRASH = ("checkpoint", "bundle", "embeddings.npy", "embeddings_untrained.npy", "asked.yaml")
"""What a finished run leaves that its row does not need."""
STEP, PICTURE, FORWARD, START = 0.85, 0.013, 0.005, 12.0
"""CPU seconds on one busy core: a step of the base with 64 pictures; a picture through the frozen stages; the rest of
the trunk without a gradient; starting a run and closing it."""
FACTORS = {"see": 0.05, "probabilistic": 0.1, "couce": 2.0, "center_polar": 1.2}
"""What a method adds to a step, in steps of the base."""


def settle(cell: Cell, out: Path) -> None:
    """Turn a finished run into ``row.json`` and ``classes.parquet``, then throw away its weights."""
    if cell.state != "done" or (cell.folder / "row.json").exists():
        return
    lock = acquire(cell.folder / "lock", out)
    if lock is None:
        return
    try:
        row, sums = measure(cell)
        with atomic_path(cell.folder / "classes.parquet") as temporary:
            sums.to_parquet(temporary, index=False)
        write_json(cell.folder / "row.json", row)
        for name in TRASH:
            place = cell.folder / name
            if place.is_dir():
                shutil.rmtree(place)
            else:
                place.unlink(missing_ok=True)
    finally:
        lock.release()


def measure(cell: Cell) -> tuple[dict[str, Any], pd.DataFrame]:
    """Measure the embeddings of a finished run under the measures of its set; return its row and its class sums."""
    result = cell.run.read_result()
    split = pd.read_parquet(cell.run.split)
    rows = split[split["split"] == "test"].reset_index(drop=True)
    measures = MEASURES[cell.dataset]
    pairs = list(dict.fromkeys(pair for one in measures.values() for pair in one))

    def read(name: str) -> pd.DataFrame:
        with warnings.catch_warnings():  # the run's own log warns of collapsed embeddings, once
            warnings.simplefilter("ignore", UserWarning)
            return pair_sums(np.load(cell.folder / f"{name}.npy", allow_pickle=False), rows, pairs)

    sums = read("embeddings")
    trained, config = result["rows"][0], result["config"]
    label = methods_label(config["methods"])
    shared = {
        "dataset": cell.dataset, "protocol": next(iter(measures)), "trunk": trained["trunk"], "size": trained["size"],
        "seed": cell.seed, "fingerprint": result["data"]["fingerprint"],
    }  # fmt: skip
    row = {
        **shared, "base": config["loss"]["name"], "method": "combined" if "+" in label else label, "parts": label,
        "augmentation": config["data"]["augmentation"], "split": trained["split"], **numbers(sums, cell.dataset),
        "pairs": {
            f"{q} > {g}": {metric: round(mean(sums, [(q, g)], metric), 5) for metric in ("recall_at_1", "map_at_r")}
            for q, g in pairs if len(pairs) > 1
        },
        "methods": config["methods"], "lr": config["optim"]["lr"], "timing": result["timing"],
        "peak_memory_mb": result["peak_memory_mb"],
    }  # fmt: skip
    found: dict[str, Any] = {"row": row}
    if not config["methods"]:  # the untrained trunk is the same for all, so the base has it measured
        found["frozen"] = {
            **shared, "base": "frozen", "method": "frozen", "parts": "frozen", "augmentation": "plain",
            "split": "test", **numbers(read("embeddings_untrained"), cell.dataset),
        }  # fmt: skip
    traced = {name: result[name] for name in ("commit", "versions", "machine")}
    traced |= {"splits": result["data"]["splits"]}
    return {**found, **traced}, sums


def numbers(sums: pd.DataFrame, dataset: str) -> dict[str, Any]:
    """Return the metrics of the measure that counts, their intervals over classes, and the other measures."""
    measures = MEASURES[dataset]
    first = next(iter(measures.values()))
    intervals = {}
    for metric in ("recall_at_1", "map_at_r"):
        one = paired_bootstrap([measure_sums(sums, first, metric)])
        intervals[metric] = [round(one.low, 5), round(one.high, 5)]
    return {
        "metrics": {metric: mean(sums, first, metric) for metric in METRICS},
        "intervals": intervals,
        "measures": {
            name: {metric: round(mean(sums, pairs, metric), 5) for metric in ("recall_at_1", "map_at_r")}
            for name, pairs in measures.items()
        },
    }


def per_class(sums: pd.DataFrame, dataset: str) -> dict[str, Any]:
    """Return the class sums of the measure that counts, weighted so that pairs count alike, as `evaluate` does."""
    first = next(iter(MEASURES[dataset].values()))
    found = {metric: measure_sums(sums, first, metric) for metric in ("recall_at_1", "map_at_r")}
    one = next(iter(found.values()))
    asked = sums[[pair in first for pair in zip(sums["query"], sums["gallery"], strict=True)]]
    scale = float(asked["count"].sum()) / len(first)
    return {
        "labels": one.names.tolist(),
        "count": [round(float(value) * scale, 8) for value in one.count],
        **{metric: [round(float(value) * scale, 8) for value in of.total] for metric, of in found.items()},
    }


def seconds(cell: Cell, sizes: dict[str, tuple[int, int]]) -> float:
    """Estimate the CPU seconds of a run whose pictures are stored already, where they can be.

    Args:
        cell: the run.
        sizes: split to (pictures, classes).
    """
    train, (images, classes) = cell.config.train, sizes["train"]
    batch = train.batch_size or 64
    steps = max(images // batch, -(-classes * train.per_class // batch)) * train.epochs
    factor = 1 + sum(FACTORS.get(name, 1.0) for name in cell.config.methods)
    stored = "couce" not in cell.config.methods  # which changes the pictures themselves
    embedded = train.epochs * sizes["val"][0] + 2 * sizes["test"][0]
    return START + STEP * factor * steps + (FORWARD if stored else FORWARD + PICTURE) * embedded


def store_seconds(cell: Cell, sizes: dict[str, tuple[int, int]]) -> float:
    """Estimate the CPU seconds of storing the training pictures for one seed and augmentation."""
    views = min(cell.config.data.views, cell.config.train.epochs)
    return PICTURE * views * sizes["train"][0]
