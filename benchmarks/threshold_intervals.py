"""How often intervals of a false-match rate, and of its threshold, hold the truth: a population where it is known.

    python benchmarks/threshold_intervals.py

Classes are drawn from a population in which some look alike (a class shares up to 90 % of its centre with one of 60
families) and some are wide. The true false-match rate at a threshold comes from 20,000 pictures of 4,000 classes. Then
small sets are drawn, and each method gives a 95 % interval for the rate at the threshold whose true rate is the target:

* ``wilson_pairs``: Wilson's interval, as if pairs were independent;
* ``subsets_bootstrap``: classes are drawn with replacement, each with all the pairs it is in (Bolle et al. 2004);
* ``vertex_bootstrap``: the same on both sides of a pair (Snijders and Borgatti 1999);
* ``leave_one_class_out``: what this package does (``proxemics.evaluation.class_spread``);
* ``threshold``: whether the interval of the threshold by ``calibrate_pairs`` holds the threshold of the true rate.

A row has the share of sets whose interval holds the truth, and the median width over the target. Takes minutes.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np
from _results import RESULTS, write_results
from numpy.typing import NDArray

from proxemics.evaluation.class_spread import rate_interval
from proxemics.evaluation.thresholds import calibrate_pairs

DIM = 24
FAMILIES = np.random.default_rng(99).normal(size=(60, DIM))
SETS = ((10, 10), (20, 10), (50, 10), (100, 8))
TARGETS = (1e-1, 1e-2, 1e-3)
Z = 1.959963984540054


def draw(classes: int, each: int, generator: np.random.Generator) -> NDArray[np.float64]:
    """(classes, each, DIM) unit vectors."""
    family = FAMILIES[generator.integers(0, len(FAMILIES), classes)]
    share = generator.uniform(0, 0.9, classes)[:, None]
    centre = np.sqrt(share) * family + np.sqrt(1 - share) * generator.normal(size=(classes, DIM))
    width = generator.uniform(0.4, 1.2, classes)[:, None, None]
    points = centre[:, None] + width * generator.normal(size=(classes, each, DIM))
    return points / np.linalg.norm(points, axis=2, keepdims=True)


def true_thresholds() -> dict[float, float]:
    """Target to the threshold whose false-match rate it is."""
    classes, each = 4000, 5
    points = draw(classes, each, np.random.default_rng(1)).reshape(-1, DIM)
    labels = np.repeat(np.arange(classes), each)
    counts = np.zeros(2**20 + 1, dtype=np.int64)
    for start in range(0, len(points), 1000):
        scores = points[start : start + 1000] @ points.T
        apart = labels[start : start + 1000, None] != labels[None]
        counts += np.bincount(((scores[apart] + 1) * 2**19).astype(np.int64), minlength=len(counts))[: len(counts)]
    reached = counts[::-1].cumsum()[::-1] / counts.sum()
    return {target: float(np.argmax(reached <= target)) / 2**19 - 1 for target in TARGETS}


def intervals(
    hits: NDArray[np.float64], each: int, generator: np.random.Generator, resamples: int
) -> dict[str, tuple[float, float]]:
    """Intervals of all methods from (C, C) matches of pictures of two classes."""
    classes = len(hits)
    pairs, own = classes * (classes - 1) * each**2 / 2, hits.sum(axis=1)
    rate = own.sum() / 2 / pairs
    without = (own.sum() / 2 - own) / (pairs - each**2 * (classes - 1))
    times = generator.multinomial(classes, np.full(classes, 1 / classes), size=resamples).astype(np.float64)
    both = ((times @ hits) * times).sum(axis=1) / (classes**2 - np.square(times).sum(axis=1)) / each**2
    one_side = times @ own / (classes * (classes - 1) * each**2)
    ours = rate_interval(float(rate), without, units=classes // 2)
    return {
        "wilson_pairs": wilson(float(rate), pairs),
        "subsets_bootstrap": tuple(np.percentile(one_side, [2.5, 97.5])),
        "vertex_bootstrap": tuple(np.percentile(both, [2.5, 97.5])),
        "leave_one_class_out": ours or (float("nan"), float("nan")),
    }


def wilson(rate: float, trials: float) -> tuple[float, float]:
    centre = (rate + Z * Z / (2 * trials)) / (1 + Z * Z / trials)
    half = Z / (1 + Z * Z / trials) * math.sqrt(rate * (1 - rate) / trials + Z * Z / (4 * trials**2))
    return centre - half, centre + half


def measure(classes: int, each: int, target: float, threshold: float, rounds: int) -> dict[str, Any]:
    """One row: coverage and width of each method."""
    generator = np.random.default_rng([classes, each, round(1 / target)])
    held: dict[str, list[bool]] = {}
    width: dict[str, list[float]] = {}
    labels = np.repeat(np.arange(classes), each)
    pairs = classes * (classes - 1) * each**2 / 2
    for number in range(rounds):
        points = draw(classes, each, generator).reshape(-1, DIM)
        hits = (points @ points.T >= threshold).reshape(classes, each, classes, each).sum(axis=(1, 3)).astype(float)
        np.fill_diagonal(hits, 0)
        for name, (low, high) in intervals(hits, each, generator, 400).items():
            held.setdefault(name, []).append(low <= target <= high)
            width.setdefault(name, []).append((high - low) / target)
        if number < rounds // 4 and pairs * target >= 3:
            found = calibrate_pairs(points, labels, target_fmr=target, min_errors=3).interval
            held.setdefault("threshold", []).append(found[0] <= threshold <= found[1])
    return {
        "name": f"intervals_{classes}x{each}_at_{target:g}",
        "classes": classes, "pictures_each": each, "target": target, "pairs": int(pairs), "rounds": rounds,
        "coverage": {name: round(float(np.mean(one)), 3) for name, one in held.items()},
        "width_over_target": {name: round(float(np.median(one)), 2) for name, one in width.items()},
    }  # fmt: skip


def main() -> None:
    """Measure all rows and write them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    truth, rows = true_thresholds(), []
    for classes, each in SETS:
        for target in TARGETS:
            row = measure(classes, each, target, truth[target], args.rounds)
            rows.append(row)
            print(classes, each, target, row["coverage"], row["width_over_target"], flush=True)
    write_results("threshold_intervals", rows, folder=args.out)


if __name__ == "__main__":
    main()
