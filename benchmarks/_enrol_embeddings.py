"""Models and embeddings for ``enrol.py``: trained once, computed once, kept as float16 in the folder of the runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from proxemics.core.files import atomic_path
from proxemics.data.sources import load_table
from proxemics.data.split_files import load_split
from proxemics.evaluation.extract import extract_with_certainty
from proxemics.models.embedder import Embedder
from proxemics.training.evaluate_run import open_model

SIZE = 160
SETTINGS = [
    "model.trunk=tf_efficientnet_lite0", "model.dim=256", "model.freeze_stages=3", f"data.size={SIZE}",
    "data.cache=memory", "data.workers=0", "loss.name=proxy_anchor", "optim.lr=2e-4", "optim.warmup_epochs=1",
    "train.epochs=4", "train.batch_size=64", "train.per_class=4", "train.tensorboard=false",
    "train.checkpoint_steps=100", "evaluation.bootstrap=200",
]  # fmt: skip
METHODS = {"none": [], "probabilistic": ["--method", "probabilistic"]}
_SCALE = 64  # lengths are stored over it, so that they keep their digits in float16


def train(data: Path, dataset: str, method: str, runs: Path, threads: int) -> Path:
    """Train a model for a few epochs, unless that is done; an interrupted run goes on."""
    out = runs / f"{dataset}-{method}"
    if not (out / "bundle" / "model.safetensors").exists():
        line = [sys.executable, "-m", "proxemics", "train", str(data), "--where", f"dataset={dataset}", "--seed", "0"]
        line += ["--out", str(out), "--quiet", "--no-report", *METHODS[method]]
        line += [part for one in SETTINGS for part in ("--set", one)]
        subprocess.run(line, check=True, env={**os.environ, "OMP_NUM_THREADS": str(threads)})
    return out


def rows_of(data: Path, dataset: str) -> pd.DataFrame:
    """All pictures of a set; ``split`` is train or test, by class."""
    return load_table(data, where={"dataset": dataset}).reset_index(drop=True)


def unseen_rows(run: Path) -> pd.DataFrame:
    """Pictures of a run whose classes did not train: ``split`` is val or test."""
    table = load_split(run / "split.parquet")
    return table[table["split"].isin(["val", "test"])].reset_index(drop=True)


def embedded(
    name: str, make: Callable[[], Embedder], rows: pd.DataFrame, folder: Path
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Read embeddings from the cache, or compute them.

    Args:
        name: of the file.
        make: builds the model; called only when the file is absent.
        rows: with ``path``.
        folder: of the cache.

    Returns:
        (N, D) float32 unit embeddings that were rounded to float16 once, and the N lengths of the raw ones.
    """
    file = folder / f"{name}.npy"
    if not file.exists():
        units, lengths = extract_with_certainty(make(), rows["path"].to_list(), batch_size=32)
        with atomic_path(file) as temporary:
            np.save(temporary, np.concatenate([units, lengths[:, None] / _SCALE], axis=1).astype(np.float16))
    stored = np.load(file, allow_pickle=False).astype(np.float32)
    if len(stored) != len(rows):
        raise SystemExit(f"{file} holds {len(stored)} rows and the table {len(rows)}; remove the file.")
    units, lengths = stored[:, :-1], stored[:, -1] * _SCALE
    return units / np.linalg.norm(units, axis=1, keepdims=True), lengths


def frozen() -> Embedder:
    """The untrained trunk, with its ImageNet weights."""
    return Embedder("tf_efficientnet_lite0", dim=0, size=SIZE)


def trained(run: Path) -> Embedder:
    """The model of a run."""
    return open_model(run)
