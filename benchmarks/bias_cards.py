"""Two bias cards: a network trained where backgrounds go with classes and one where they do not; a table of both.

    python benchmarks/bias_cards.py --data DATA --runs runs/bias_cards
    python benchmarks/bias_cards.py --page docs/probes.md

Both see the same emoji, classes and number of pictures (``controlled_data.py``), at rho 0.95 and 0, and are asked about
the same 600 test pictures with their true masks. A finished run is not trained again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from _page import publish
from _results import write_results
from controlled import SETTINGS
from controlled_data import build

from proxemics.training.probe_run import probe

RHOS = {"tied": 0.95, "free": 0.0}
PICTURES = 600


def card(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Train at one rho and probe."""
    pictures = build(args.runs / f"data-{name}", args.data, RHOS[name], args.seed, masks=True)
    run = args.runs / name
    if not (run / "result.json").exists():
        line = [sys.executable, "-m", "proxemics", "train", str(pictures), "--where", "condition=plain"]
        line += ["--seed", str(args.seed), "--out", str(run), "--quiet", "--no-report"]
        store = f"data.cache_folder={args.runs / 'store'}"
        subprocess.run([*line, *(part for one in [*SETTINGS, store] for part in ("--set", one))], check=True)
    found = probe(run, images=PICTURES)
    return {
        "name": name, "dataset": f"controlled_emoji_rho{RHOS[name]:g}", "rho": RHOS[name], "seed": args.seed,
        "settings": SETTINGS, **{key: found[key] for key in KEPT},
        "fingerprint": json.loads((run / "result.json").read_text())["data"]["fingerprint"],
    }  # fmt: skip


KEPT = ("pictures", "classes", "split", "masks", "verdict", "numbers")


def tables(whole: Mapping[str, Any]) -> str:
    """Format every number of the two cards."""
    tied, free = ({(n["probe"], n["name"]): n for n in row["numbers"]} for row in whole["rows"])
    lines = ["| number | tied, 95 % | free | untrained | chance |", "|---|---|---|---|---|"]
    for key, one in tied.items():
        other = free[key]
        arrow = {"up": " ↑", "down": " ↓", "": ""}[one["better"]]
        untrained = _amount(one["untrained"], one["unit"])
        if _amount(other["untrained"], one["unit"]) != untrained:
            untrained = f"{untrained} tied, {_amount(other['untrained'], one['unit'])} free"
        values = [_amount(value, one["unit"]) for value in (one["value"], other["value"])]
        lines.append(
            f"| {one['title']}{arrow} | {' | '.join(values)} | {untrained} | {_amount(one['chance'], one['unit'])} |"
        )
    return "\n".join(lines)


def _amount(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    return f"{100 * value:.1f} %" if unit == "share" else f"{value:.3g}"


def main() -> None:
    """Train, probe, and write the result file and the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with index.csv; without, only --page")
    parser.add_argument("--runs", type=Path, default=Path("runs/bias_cards"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--page", type=Path, help="page of the documentation to put the table into")
    args = parser.parse_args()
    if args.data is not None:
        write_results("bias_cards", [card(name, args) for name in RHOS], packages=["torch", "numpy", "timm", "pillow"])
    publish("bias_cards", tables, args.page)


if __name__ == "__main__":
    main()
