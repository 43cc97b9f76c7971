"""Emoji-5: Recall@1 from every style to every other on classes that no training sees, frozen and trained.

Build the set first (``proxemics data emoji --to emoji5``), then::

    python benchmarks/emoji5.py emoji5 --runs runs/emoji5 --seeds 0 1 2
    python benchmarks/emoji5.py --page docs/emoji5.md

A finished run is not trained again, an interrupted one goes on. The epoch is the last one. ``--page`` writes the tables
of the result file into the page.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from _page import publish
from _results import write_results

from proxemics.core.config import EvaluationConfig
from proxemics.models.bundle import save_bundle
from proxemics.models.embedder import Embedder
from proxemics.training.evaluate_run import evaluate

TRUNK, SIZE, SOURCE = "tf_efficientnet_lite0", 128, "noto"
SETTINGS = [
    "evaluation.protocol=cross_domain", f"evaluation.source_domain={SOURCE}", f"model.trunk={TRUNK}",
    f"data.size={SIZE}", "data.cache=memory", "data.workers=0", "model.freeze_stages=3", "optim.lr=2e-4",
    "train.epochs=8", "train.batch_size=64", "train.per_class=0", "train.select=last", "train.tensorboard=false",
    "evaluation.bootstrap=0",
]  # fmt: skip
PROTOCOL = EvaluationConfig(protocol="cross_domain", recall_at=(1, 2, 4, 8), bootstrap=1000)
WHERE = {"split": "test", "variant": "default"}


def frozen(table: Path) -> dict[str, Any]:
    """Measure the trunk as it comes."""
    with tempfile.TemporaryDirectory() as folder:
        save_bundle(Embedder(TRUNK, dim=0, size=SIZE), folder)
        (row,) = measure(Path(folder), table)
    return {**row, "trunk": TRUNK, "base": "frozen", "method": "frozen"}


def trained(table: Path, folder: Path, seed: int, threads: int) -> dict[str, Any]:
    """Train on one style, and measure."""
    if not (folder / "result.json").exists():
        line = [
            "-m",
            "proxemics",
            "train",
            str(table),
            "--seed",
            str(seed),
            "--out",
            str(folder),
            "--quiet",
            "--no-report",
        ]
        line += [part for one in SETTINGS for part in ("--set", one)]
        subprocess.run(["env", f"OMP_NUM_THREADS={threads}", sys.executable, *line], check=True)
    (row,) = measure(folder, table)
    timing = json.loads((folder / "result.json").read_text())["timing"]
    return {**row, "seed": seed, "options": SETTINGS, "timing": timing}


def measure(model: Path, table: Path) -> list[dict[str, Any]]:
    """Evaluate under the protocol of the page."""
    result = evaluate(model, source=str(table), where=WHERE, evaluation=PROTOCOL)
    fingerprint = result["data"]["fingerprint"]
    rows: list[dict[str, Any]] = result["rows"]
    for row in rows:
        row["tasks"] = {name: task["metrics"] for name, task in row["tasks"].items()}
        row.update(dataset="emoji5", fingerprint=fingerprint, size=SIZE)
    return rows


def tables(whole: Mapping[str, Any]) -> str:
    """Format Recall@1 of each pair, frozen and trained, and the means over all pairs and over those without noto."""
    text = []
    for name, is_frozen in (("Frozen", True), (f"Proxy Anchor, trained on `{SOURCE}`", False)):
        some = [row for row in whole["rows"] if (row["method"] == "frozen") == is_frozen]
        if not some:
            continue
        text += [f"**{name}.** Recall@1 in per cent, row = query, column = gallery:", "", *_matrix(some), ""]
        without = [[value for pair, value in _pairs(row).items() if SOURCE not in pair] for row in some]
        every = [list(_pairs(row).values()) for row in some]
        seeds = f", mean and standard deviation of {len(some)} seeds" if len(some) > 1 else ""
        text += [
            f"Mean of the {len(every[0])} directions: {_mean(every)}; of the {len(without[0])} that do not touch "
            f"`{SOURCE}`: {_mean(without)}{seeds}.",
            "",
        ]
    return "\n".join(text).strip()


def _pairs(row: Mapping[str, Any]) -> dict[tuple[str, str], float]:
    return {tuple(name.split(" -> ")): 100 * task["recall_at_1"] for name, task in row["tasks"].items()}  # type: ignore[misc]


def _matrix(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    found = [_pairs(row) for row in rows]
    mean = {pair: float(np.mean([one[pair] for one in found])) for pair in found[0]}
    styles = sorted({query for query, _ in mean})
    lines = [f"| | {' | '.join(styles)} |", "|---" * (len(styles) + 1) + "|"]
    for query in styles:
        cells = ["–" if query == gallery else f"{mean[query, gallery]:.1f}" for gallery in styles]
        lines.append(f"| {query} | {' | '.join(cells)} |")
    return lines


def _mean(rows: Sequence[Sequence[float]]) -> str:
    means = [float(np.mean(one)) for one in rows]
    return f"{np.mean(means):.1f}" + (f" ± {np.std(means, ddof=1):.1f}" if len(means) > 1 else "")


def main() -> None:
    """Run what is missing, and write the result file and the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="from `proxemics data emoji`; without, only --page")
    parser.add_argument("--runs", type=Path, default=Path("runs/emoji5"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--page", type=Path, help="page of the documentation to put the tables into")
    options = parser.parse_args()
    if options.folder is not None:
        table = options.folder / "table.csv"
        rows = [frozen(table)]
        for seed in options.seeds:
            rows.append(trained(table, options.runs / f"proxy_anchor-{seed}", seed, options.threads))
            write_results("emoji5", rows, packages=["torch", "numpy", "timm", "pillow"])
    publish("emoji5", tables, options.page)


if __name__ == "__main__":
    main()
