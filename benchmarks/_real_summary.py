"""Paired differences, verdicts and Markdown tables of the study on real pictures, from its rows and class sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from _real_protocols import MEASURES, Pairs, measure_sums, subtract

from proxemics.evaluation.paired import ClassSums, holm, paired_bootstrap

METRICS = ("recall_at_1", "map_at_r")
SINGLES = ("see", "el_nivmf", "couce", "center_polar")
ORDER = ("frozen", "none", *SINGLES, "combined")
SET_OF = {"pacs_unseen": "pacs", "pacs_all": "pacs"}
"""Two tables of one set of pictures count as one set."""
Row = dict[str, Any]
Key = tuple[str, str, str, str]
"""Data set, base, method, augmentation."""
Sums = Callable[[Row], pd.DataFrame]


def key_of(row: Row) -> Key:
    """Return what a row is about, without its seed."""
    return (row["dataset"], row["base"], row["method"], row["augmentation"])


def differences(rows: Sequence[Row], sums: Sums, *, resamples: int = 2000) -> list[Row]:
    """Compare every method with its base, with the strong base, and the combination with every single method.

    ``kind`` of an entry says which: ``base`` (same loss, same augmentation, no method), ``strong base`` (a row with
    plain augmentation against the base with strong augmentation: does the method do more than augmentation alone?)
    and ``single`` (the combination against one method, same augmentation).

    Args:
        rows: finished runs; untrained rows are left out.
        sums: reads the class sums of a row.
        resamples: of the bootstrap over seeds and classes.
    """
    by: dict[Key, dict[int, Row]] = {}
    for row in rows:
        if row["method"] != "frozen":
            by.setdefault(key_of(row), {})[row["seed"]] = row
    read: dict[tuple[Key, int], pd.DataFrame] = {}

    def of(key: Key, seed: int) -> pd.DataFrame:
        if (key, seed) not in read:
            read[key, seed] = sums(by[key][seed])
        return read[key, seed]

    found: list[Row] = []
    for first, second, kind in _comparisons(list(by)):
        seeds = sorted(set(by[first]) & set(by.get(second, {})))
        if not seeds:
            continue
        for measure, pairs in MEASURES[first[0]].items():
            for metric in METRICS:
                parts = [_pair(of(first, seed), of(second, seed), pairs, metric) for seed in seeds]
                one = paired_bootstrap(parts, resamples=resamples)
                found.append(
                    {
                        "dataset": first[0], "base": first[1], "method": first[2], "augmentation": first[3],
                        "kind": kind, "against": {"method": second[2], "augmentation": second[3]},
                        "measure": measure, "metric": metric, "seeds": seeds, "difference": one.difference,
                        "interval": [one.low, one.high], "p": one.p,
                    }
                )  # fmt: skip
    primary = [entry for entry in found if counts(entry) and entry["kind"] == "base"]
    for entry, value in zip(primary, holm([entry["p"] for entry in primary]), strict=True):
        entry["p_holm"] = value
    return found


def counts(one: Row) -> bool:
    """Whether a difference is of the measure and metric that count: the first measure of the set, R@1."""
    first = next(iter(MEASURES[one["dataset"]]))
    return (one["metric"], one["measure"]) == ("recall_at_1", first)


def _comparisons(keys: Sequence[Key]) -> list[tuple[Key, Key, str]]:
    asked = []
    for key in keys:
        dataset, base, method, augmentation = key
        if method != "none":
            asked.append((key, (dataset, base, "none", augmentation), "base"))
        elif augmentation == "strong":
            asked.append((key, (dataset, base, "none", "plain"), "augmentation"))
        if method != "none" and augmentation == "plain":
            asked.append((key, (dataset, base, "none", "strong"), "strong base"))
        if method == "combined":
            asked += [(key, (dataset, base, single, augmentation), "single") for single in SINGLES]
    return asked


def _pair(first: pd.DataFrame, second: pd.DataFrame, pairs: Pairs, metric: str) -> ClassSums:
    return subtract(measure_sums(first, pairs, metric), measure_sums(second, pairs, metric))


def verdicts(found: Sequence[Row], *, base: str = "proxy_anchor") -> list[Row]:
    """Say for each method and augmentation on which sets its difference is above 0, below 0 or undecided.

    A set counts as won when the 95 % interval of R@1 lies above 0 on (one of) its tables. ``beyond_augmentation``
    lists sets on which the method with plain augmentation beats the base with strong augmentation.
    """
    result = []
    primary = [one for one in found if counts(one) and one["base"] == base]
    for method in (*SINGLES, "combined"):
        for augmentation in ("plain", "strong"):
            mine = [one for one in primary if (one["method"], one["augmentation"]) == (method, augmentation)]
            ours = [one for one in mine if one["kind"] == "base"]
            if not ours:
                continue
            row = {"method": method, "augmentation": augmentation, "sets": _sets(ours)}
            row["above"] = _sets([one for one in ours if one["interval"][0] > 0])
            row["below"] = _sets([one for one in ours if one["interval"][1] < 0])
            beyond = [one for one in mine if one["kind"] == "strong base"]
            if beyond:
                row["beyond_augmentation"] = _sets([one for one in beyond if one["interval"][0] > 0])
            if method == "combined":
                singles = [one for one in mine if one["kind"] == "single"]
                row["beats_every_single"] = _beaten(singles, lambda one: one["difference"] > 0)
                row["beats_every_single_surely"] = _beaten(singles, lambda one: one["interval"][0] > 0)
            result.append(row)
    return result


def _sets(entries: Sequence[Row]) -> list[str]:
    names = {str(one["dataset"]) for one in entries}
    return sorted({SET_OF.get(name, name) for name in names})


def _beaten(singles: Sequence[Row], better: Callable[[Row], bool]) -> list[str]:
    """Tables on which the combination is better than each of all four methods."""
    tables = {one["dataset"] for one in singles}
    return sorted(
        table
        for table in tables
        if len(mine := [one for one in singles if one["dataset"] == table]) == len(SINGLES) and all(map(better, mine))
    )


def table(whole: Row) -> str:
    """Format the result file as Markdown: one table a set, then what it comes to."""
    blocks = [_set_table(whole, name) for name in MEASURES if any(row["dataset"] == name for row in whole["rows"])]
    return "\n\n".join([*blocks, _verdict_table(whole["verdicts"])])


def _set_table(whole: Row, dataset: str) -> str:
    groups: dict[Key, list[Row]] = {}
    for row in whole["rows"]:
        if row["dataset"] == dataset:
            groups.setdefault(key_of(row), []).append(row)
    lines = [
        f"**{dataset}**, {next(iter(MEASURES[dataset]))}",
        "",
        "| base | method | augmentation | seeds | R@1 | MAP@R | R@1 - base [95 %] | MAP@R - base [95 %] "
        "| R@1 - strong base [95 %] |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for key in sorted(groups, key=_place):
        rows = groups[key]
        shown = [_spread([row["metrics"][metric] for row in rows]) for metric in METRICS]
        compared = [
            _difference(whole["differences"], key, kind, metric)
            for kind, metric in (("base", METRICS[0]), ("base", METRICS[1]), ("strong base", METRICS[0]))
        ]
        _, base, method, augmentation = key
        name = f"{method} ({rows[0]['parts']})" if method == "combined" else method
        seeds = "" if method == "frozen" else str(len(rows))
        lines.append("| " + " | ".join([base, name, augmentation, seeds, *shown, *compared]) + " |")
    return "\n".join(lines)


def _place(key: Key) -> tuple[int, str, int, int]:
    _, base, method, augmentation = key
    return (method != "frozen", "" if base == "proxy_anchor" else base, augmentation == "strong", ORDER.index(method))


def _spread(values: Sequence[float]) -> str:
    percent = 100 * np.asarray(values)
    return f"{percent.mean():.1f}" + (f" ± {percent.std(ddof=1):.1f}" if len(percent) > 1 else "")


def _difference(found: Sequence[Row], key: Key, kind: str, metric: str) -> str:
    measure = next(iter(MEASURES[key[0]]))
    for one in found:
        if key_of(one) == key and (one["kind"], one["metric"], one["measure"]) == (kind, metric, measure):
            low, high = one["interval"]
            mark = " *" if low > 0 or high < 0 else ""
            return f"{100 * one['difference']:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]{mark}"
    return ""


def _verdict_table(found: Sequence[Row]) -> str:
    lines = [
        "| method | augmentation | sets | above the base | below | above the strong base | beats every single |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in found:
        surely = row.get("beats_every_single_surely", [])
        beats = [name + (" *" if name in surely else "") for name in row.get("beats_every_single", [])]
        cells = [row["above"], row["below"], row.get("beyond_augmentation", []), beats]
        shown = [", ".join(names) or "-" for names in cells]
        lines.append("| " + " | ".join([row["method"], row["augmentation"], str(len(row["sets"])), *shown]) + " |")
    return "\n".join(lines)
