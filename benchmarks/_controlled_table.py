"""The statistics and the table of the controlled study, from its rows alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import t

from proxemics.evaluation.paired import ClassSums, paired_bootstrap

METRICS = ("recall_at_1", "map_at_r")
Row = dict[str, Any]


def per_class(per_query: pd.DataFrame) -> Row:
    """Add up the queries of each class: all that paired differences need, small enough to be committed."""
    groups = per_query.groupby("label", sort=True)
    sums = {metric: [round(float(value), 6) for value in groups[metric].sum()] for metric in METRICS}
    return {"labels": list(groups.groups), "count": groups.size().tolist(), **sums}


def differences(rows: Sequence[Row]) -> list[Row]:
    """Paired differences of every variant to its base at the same rho, over the seeds that both have.

    Args:
        rows: with ``rho``, ``method``, ``against`` (the base it is compared with), ``seed`` and ``per_class``.
    """
    by = {(row["rho"], row["method"], row["seed"]): row for row in rows}
    found = []
    for rho, method in sorted({key[:2] for key in by}):
        ours = {seed: row for (r, m, seed), row in by.items() if (r, m) == (rho, method)}
        against = next(iter(ours.values()))["against"]
        seeds = sorted(seed for seed in ours if (rho, against, seed) in by)
        if method == against or not seeds:
            continue
        for metric in METRICS:
            one = paired_bootstrap([_pair(ours[seed], by[rho, against, seed], metric) for seed in seeds])
            found.append(
                {
                    "rho": rho, "method": method, "against": against, "metric": metric, "seeds": seeds,
                    "difference": one.difference, "interval": [one.low, one.high], "p": one.p,
                }
            )  # fmt: skip
    return found


def _pair(first: Row, second: Row, metric: str) -> ClassSums:
    ours, theirs = first["per_class"], second["per_class"]
    if ours["labels"] != theirs["labels"] or ours["count"] != theirs["count"]:
        raise SystemExit(f"Seed {first['seed']}: {first['method']} and {second['method']} have other test pictures.")
    total = np.array(ours[metric]) - np.array(theirs[metric])
    return ClassSums(np.array(ours["labels"]), total, np.array(ours["count"], dtype=float))


def gaps(rows: Sequence[Row]) -> list[Row]:
    """How much of the R@1 that confounding costs the base each variant brings back: 0 none, 1 all of it.

    Variants that are compared with another base than ``none`` are left out.
    """
    rows = [row for row in rows if row["against"] == "none"]
    by = {(row["rho"], row["method"], row["seed"]): row["metrics"]["recall_at_1"] for row in rows}
    found = []
    for rho, method in sorted({key[:2] for key in by if key[0] > 0 and key[1] != "none"}):
        seeds = sorted(
            s for r, m, s in by if (r, m) == (rho, method) and (0.0, "none", s) in by and (rho, "none", s) in by
        )
        if not seeds:
            continue
        keys = ((0.0, "none"), (rho, "none"), (rho, method))
        ceiling, floor, value = (float(np.mean([by[r, m, s] for s in seeds])) for r, m in keys)
        share = (value - floor) / (ceiling - floor) if ceiling > floor else float("nan")
        found.append({"rho": rho, "method": method, "seeds": seeds, "share_of_gap": round(share, 4)})
    return found


def shifts(rows: Sequence[Row]) -> list[Row]:
    """Paired differences to the base where light, hue and amplitude are shifted, with Student's interval over seeds.

    Rows keep no sums of classes for these pictures, so that the interval is over seeds alone, and needs two.

    Args:
        rows: with ``rho``, ``method``, ``against``, ``seed`` and ``shifted``.
    """
    by = {(row["rho"], row["method"], row["seed"]): row for row in rows}
    groups: dict[tuple[float, str], dict[int, float]] = {}
    for (rho, method, seed), row in by.items():
        base = by.get((rho, row["against"], seed))
        if base is not None and base is not row:
            won = row["shifted"]["recall_at_1"] - base["shifted"]["recall_at_1"]
            groups.setdefault((rho, method), {})[seed] = won
    found = []
    for (rho, method), won in sorted(groups.items()):
        values = np.array(list(won.values()))
        one: Row = {"rho": rho, "method": method, "seeds": sorted(won), "difference": round(float(values.mean()), 5)}
        if len(values) > 1:
            half = float(t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values)))
            one["interval"] = [round(float(values.mean()) + sign * half, 5) for sign in (-1, 1)]
        found.append(one)
    return found


def table(whole: Row, order: Sequence[str]) -> str:
    """Format the study as Markdown.

    Args:
        whole: the result file.
        order: of the variants.
    """
    lines = [
        "| rho | method | seeds | R@1 | MAP@R | scene read off | R@1 - base [95 %] | of the gap | R@1 shifted "
        "| shifted - base |",
        f"{'|---' * 10}|",
    ]
    groups: dict[tuple[float, str], list[Row]] = {}
    for row in whole["rows"]:
        groups.setdefault((row["rho"], row["method"]), []).append(row)
    shifted = {(one["rho"], one["method"]): one for one in shifts(whole["rows"])}
    place = {name: number for number, name in enumerate(order)}
    for (rho, method), rows in sorted(groups.items(), key=lambda item: (item[0][0], place.get(item[0][1], 99))):
        columns = [
            [row["metrics"]["recall_at_1"] for row in rows],
            [row["metrics"]["map_at_r"] for row in rows],
            [row["scene_probe"]["trained"]["accuracy"] for row in rows],
        ]
        means = " | ".join(f"{100 * float(np.mean(column)):.1f}" for column in columns)
        compared = [
            d for d in whole["differences"] if (d["rho"], d["method"], d["metric"]) == (rho, method, "recall_at_1")
        ]
        shown = [f"{_signed(100 * d['difference'], 1)} [{_ends(d['interval'])}]" for d in compared]
        closed = [
            f"{_signed(100 * g['share_of_gap'], 0)} %"
            for g in whole["gaps"]
            if (g["rho"], g["method"]) == (rho, method)
        ]
        under_shift = f"{100 * float(np.mean([row['shifted']['recall_at_1'] for row in rows])):.1f}"
        one = shifted.get((rho, method))
        won = "" if one is None else _signed(100 * one["difference"], 1)
        if one is not None and "interval" in one:
            won += f" [{_ends(one['interval'])}]"
        cells = [f"{rho:g}", method, str(len(rows)), means, "".join(shown), "".join(closed), under_shift, won]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _ends(interval: Sequence[float]) -> str:
    return ", ".join(f"{100 * end:+.1f}" for end in interval)


def _signed(value: float, digits: int) -> str:
    """Format an estimate with a sign, nought with a plus; ends of intervals keep theirs, which says something."""
    return f"{round(value, digits) + 0.0:+.{digits}f}"
