"""Base losses on real pictures against the frozen trunk: dataset x loss x seed, resumable, one row a run.

    python benchmarks/real_base.py --data ../shared/data/index.csv --runs runs/real_base

A finished run is not computed again: its row is read from its folder. An interrupted run goes on from its checkpoint.
Every run has the same budget and the same settings for all losses of a data set, chosen on validation classes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

RESULT = Path(__file__).parent / "results" / "real_base.json"

SETTINGS = [
    "model.trunk=tf_efficientnet_lite0",
    "data.size=112",
    "data.cache=memory",
    "data.workers=0",
    "model.freeze_stages=3",
    "optim.lr=2e-4",
    "train.epochs=8",
    "train.batch_size=64",
    "train.per_class=4",
    "train.tensorboard=false",
]
DATASETS: dict[str, list[str]] = {
    "cub200_2010": [],
    "cars196": [],
    "grocery": [
        "evaluation.protocol=cross_domain",
        "evaluation.query_domain=natural",
        "evaluation.gallery_domain=iconic",
    ],
}
LOSSES: dict[str, list[str]] = {"proxy_anchor": [], "norm_softmax": []}


def command(data: Path, runs: Path, dataset: str, loss: str, seed: int, extra: list[str]) -> tuple[list[str], Path]:
    """Return the command of one run and its folder."""
    out = runs / f"{dataset}-{loss}-{seed}"
    settings = [*SETTINGS, *DATASETS[dataset], f"loss.name={loss}", *LOSSES[loss], *extra]
    line = ["-m", "proxemics", "train", "--data", str(data), "--where", f"dataset={dataset}", "--seed", str(seed)]
    line += ["--out", str(out), "--quiet", *(part for one in settings for part in ("--set", one))]
    return line, out


def collect(runs: Path) -> list[dict[str, Any]]:
    """Read the result files of all finished runs."""
    return [json.loads(path.read_text()) for path in sorted(runs.glob("*/result.json"))]


def shared_settings(result: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that must be the same for all rows of one file."""
    return {key: value for key, value in result["config"].items() if key not in ("seed", "loss", "evaluation", "data")}


def write(results: list[dict[str, Any]], line: str) -> None:
    """Write the rows of all runs as one result file."""
    if not results:
        return
    first = results[0]
    rows = []
    seen: set[tuple[str, int]] = set()
    for result in results:
        for row in result["rows"]:
            key = (row["dataset"], row["seed"])
            if row["method"] == "frozen":
                if key in seen:
                    continue
                seen.add(key)
                row = {**row, "base": "frozen", "split": "test"}
            rows.append({**row, "fingerprint": result["data"]["fingerprint"], "timing": result["timing"]})
    config = shared_settings(first)
    for result in results[1:]:
        if shared_settings(result) != config:
            raise SystemExit("The runs in the folder were made with different settings; give each set its own --runs.")
    whole = {key: first[key] for key in ("schema", "commit", "versions", "machine")}
    RESULT.write_text(json.dumps({**whole, "command": line, "config": config, "rows": rows}, indent=1) + "\n")


def table(results: list[dict[str, Any]]) -> str:
    """Format mean and paired difference to the frozen trunk."""
    lines = [f"{'dataset':<14}{'loss':<14}{'R@1':>8}{'frozen':>8}{'difference, per seed':>30}{'MAP@R':>8}"]
    cells: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    for result in results:
        trained, frozen = result["rows"]
        cells.setdefault((trained["dataset"], trained["base"]), []).append(
            (trained["metrics"]["recall_at_1"], frozen["metrics"]["recall_at_1"], trained["metrics"]["map_at_r"])
        )
    for (dataset, loss), values in sorted(cells.items()):
        array = 100 * np.array(values)
        differences = ", ".join(f"{d:+.1f}" for d in array[:, 0] - array[:, 1])
        mean = array.mean(axis=0)
        lines.append(f"{dataset:<14}{loss:<14}{mean[0]:8.1f}{mean[1]:8.1f}{differences:>30}{mean[2]:8.1f}")
    return "\n".join(lines)


def main() -> None:
    """Run what is missing and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--runs", type=Path, default=Path("runs/real_base"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--datasets", nargs="+", default=list(DATASETS), choices=list(DATASETS))
    parser.add_argument("--losses", nargs="+", default=list(LOSSES), choices=list(LOSSES))
    parser.add_argument("--set", dest="extra", action="append", default=[], help="passed on to every run")
    parser.add_argument("--collect", action="store_true", help="only read the finished runs")
    args = parser.parse_args()
    shown = " ".join(["python benchmarks/real_base.py --data DATA/index.csv", *(f"--set {one}" for one in args.extra)])
    for seed in args.seeds:
        for dataset in args.datasets:
            for loss in args.losses:
                line, out = command(args.data, args.runs, dataset, loss, seed, args.extra)
                if not args.collect and not (out / "result.json").exists():
                    subprocess.run([sys.executable, *line], check=True)
                write(collect(args.runs), shown)
    print(table(collect(args.runs)))


if __name__ == "__main__":
    main()
