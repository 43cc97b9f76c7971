"""What each method costs and does, out of the result files and into its page of the documentation.

    python benchmarks/method_pages.py

Reads ``results/methods.json`` (whole training steps) and ``results/controlled.json`` (the controlled study), and writes
the tables of ``docs/methods``. Nothing is measured here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from _page import put_into
from _results import RESULTS, ROOT

STEPS: dict[str, tuple[tuple[str, str], ...]] = {
    "see": (("step_see", "SEE"),),
    "probabilistic": (("step_el_nivmf", "EL-nivMF beside the base loss"),),
    "couce": (("step_odba", "ODBA"), ("step_msrci", "MSRCI"), ("step_couce", "CouCE")),
    "center_polar": (
        ("step_center_polar_style", "`style`"),
        ("step_center_polar_generator", "`generator`, the default"),
        ("step_expansion_equalisation", "expansion–equalisation"),
    ),
}
STUDIED: dict[str, tuple[tuple[str, str], ...]] = {
    "see": (("see", "SEE"),),
    "probabilistic": (
        ("el_nivmf", "EL-nivMF beside the base loss, the head at the release's rate"),
        ("el_nivmf_head", "EL-nivMF beside the base loss, defaults"),
    ),
    "couce": (
        ("odba", "ODBA, defaults"),
        ("msrci", "MSRCI, defaults"),
        ("couce", "CouCE, defaults"),
        ("none_views_4", "base with four views, for the rows at the pixels"),
        ("msrci_pixel_50", "MSRCI at the pixels, λ_v 50, λ_a 1, all of the batch"),
        ("odba_border", "ODBA, border gate"),
        ("odba_exchange", "ODBA, exchange behind the border gate"),
        ("couce_exchange", "CouCE, exchange behind the border gate"),
        ("couce_exchange_pixel", "CouCE, exchange behind the border gate, MSRCI at the pixels"),
    ),
    "center_polar": (("center_polar", "CenterPolar, `style` after layer2"),),
}


def cost(whole: Mapping[str, Any], page: str) -> str:
    """Format what a training step takes with and without a method."""
    rows = {row["name"]: row for row in whole["rows"]}
    lines = ["| a training step | with / without, median (range) | without | with |", "|---|---|---|---|"]
    for name, title in STEPS[page]:
        low, middle, high = rows[name]["over_floor"]["ours"]
        times = " | ".join(f"{rows[name][key]:.2f} s" for key in ("floor", "ours"))
        lines.append(f"| {title} | {middle:.2f} ({low:.2f} to {high:.2f}) | {times} |")
    if page == "probabilistic":
        lines += ["", *_products(rows)]
    if page == "see":
        lines += ["", *_expansions(rows)]
    return "\n".join(lines)


def _products(rows: Mapping[str, Any]) -> list[str]:
    lines = ["| classes | ours | six bare products | autograd | as the formula stands |", "|---|---|---|---|---|"]
    for classes in (100, 11318):
        row = rows[f"el_nivmf_128x512_c{classes}"]
        cells = [_time(row["ours"], row["peak_growth_mb"]), _time(row["floor"])]
        for peer in ("autograd", "broadcast"):
            known = peer in row["peers"]
            cells.append(_time(row["peers"][peer], row["peers_peak_growth_mb"][peer]) if known else "does not fit")
        lines.append(f"| {classes:,} | {' | '.join(cells)} |")
    return lines


def _expansions(rows: Mapping[str, Any]) -> list[str]:
    counts = (2, 4, 8, 16)
    lines = [f"| expansion, n = | {' | '.join(map(str, counts))} |", "|---" * (len(counts) + 1) + "|"]
    for dim in (128, 512):
        ratios = [rows[f"see_180x{dim}_n{count}"]["over_floor"]["ours"][1] for count in counts]
        lines.append(f"| M = {dim} | {' | '.join(f'{ratio:.2f}' for ratio in ratios)} |")
    return lines


def _time(seconds: float, megabytes: float | None = None) -> str:
    return f"{1000 * seconds:,.0f} ms" + ("" if megabytes is None else f", {megabytes:.0f} MB")


def effect(whole: Mapping[str, Any], page: str) -> str:
    """Format what a method changes where background and class go together in training, and where they do not."""
    lines = [
        "| method | rho | seeds | R@1 | R@1 - base [95 %] | of what confounding costs | scene read off |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, title in (("none", "base: Proxy Anchor"), *STUDIED[page]):
        for rho in (0.95, 0.0):
            rows = [row for row in whole["rows"] if (row["method"], row["rho"]) == (name, rho)]
            if rows:
                lines.append(_line(whole, rows, title, name, rho))
    return "\n".join(lines)


def _line(whole: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], title: str, name: str, rho: float) -> str:
    recall = sum(row["metrics"]["recall_at_1"] for row in rows) / len(rows)
    scene = sum(row["scene_probe"]["trained"]["accuracy"] for row in rows) / len(rows)
    found = [
        one for one in whole["differences"] if (one["method"], one["rho"], one["metric"]) == (name, rho, "recall_at_1")
    ]
    gaps = [one for one in whole["gaps"] if (one["method"], one["rho"]) == (name, rho)]
    difference = "".join(
        f"{100 * one['difference']:+.1f} [{100 * one['interval'][0]:+.1f}, {100 * one['interval'][1]:+.1f}]"
        for one in found
    )
    gap = "".join(f"{round(100 * one['share_of_gap']) + 0:+d} %" for one in gaps)
    return f"| {title} | {rho:g} | {len(rows)} | {100 * recall:.1f} | {difference} | {gap} | {100 * scene:.1f} % |"


def main() -> None:
    """Write the tables."""
    for name, make in (("methods", cost), ("controlled", effect)):
        whole = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
        for page in STEPS:
            put_into(ROOT / "docs" / "methods" / f"{page}.md", name, make(whole, page))


if __name__ == "__main__":
    main()
