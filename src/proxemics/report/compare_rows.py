"""Rows of result files for a comparison: what each is called, and its sums over classes where the file has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from proxemics.core.errors import DataError
from proxemics.core.files import read_json
from proxemics.evaluation.paired import ClassSums
from proxemics.report.compare_runs import UNTRAINED, Run, label_of, named, read_runs
from proxemics.report.numbers import FROZEN


@dataclass(frozen=True)
class FileRow:
    """One row of a result file: a run of which only the numbers are kept.

    Attributes:
        variant: what it is called in the table.
        folder: the result file.
        row: the row.
        result: the whole file, without its rows; what a row says of itself comes first.
    """

    variant: str
    folder: Path
    row: dict[str, Any] = field(repr=False)
    result: dict[str, Any] = field(repr=False)

    @property
    def dataset(self) -> str:
        """Name of the data."""
        return str(self.row["dataset"])

    @property
    def protocol(self) -> str:
        """The protocol, with its domains."""
        return str(self.row.get("protocol", "zero_shot"))

    @property
    def seed(self) -> int:
        """Seed of the run."""
        return int(self.row["seed"])

    @property
    def fingerprint(self) -> str | None:
        """Fingerprint of all pictures with their splits; None where the file has none."""
        found = self.row.get("fingerprint") or self.result.get("data", {}).get("fingerprint")
        return None if found is None else str(found)

    @property
    def card(self) -> dict[str, Any] | None:
        """The bias card of the row, or None."""
        found = self.row.get("card")
        return dict(found) if isinstance(found, dict) else None

    def class_totals(self, metric: str) -> ClassSums | None:
        """Return the sums of a metric over the queries of each class; None where the row has none.

        Raises:
            DataError: the sums do not add up to the metric of the row.
        """
        sums = self.row.get("per_class")
        if not isinstance(sums, dict) or metric not in sums:
            return None
        names = np.asarray([str(name) for name in sums["labels"]], dtype=np.str_)
        order = np.argsort(names, kind="stable")
        total, count = (np.asarray(sums[key], np.float64)[order] for key in (metric, "count"))
        found = ClassSums(names[order], total, count)
        if abs(found.difference - float(self.row["metrics"][metric])) > 1e-4:
            raise DataError(
                f"{self.folder}: {metric} of {self.variant} with seed {self.seed} is "
                f"{self.row['metrics'][metric]:.4f}, and {found.difference:.4f} over per_class; the row is not of one "
                "run."
            )
        return found


def read_compared(places: Sequence[str], *, untrained: bool = False) -> list[Run | FileRow]:
    """Read what is compared: run folders, sweep folders, folders of run folders, and result files.

    Args:
        places: as for :func:`proxemics.report.compare_runs.read_runs`, and JSON files; ``NAME=PLACE`` names the runs.
        untrained: also read the untrained trunk that every run measures, and such rows of files.

    Raises:
        DataError: a place holds nothing to compare, or two runs cannot be told apart.
    """
    files = {place: path for place in places if (path := named(place)[1]).is_file() and not _of_run(path)}
    folders = [_folder_of(place) for place in places if place not in files]
    of_folders: list[Run | FileRow] = [*read_runs(folders, untrained=untrained)] if folders else []
    of_files: list[Run | FileRow] = []
    for place, path in files.items():
        of_files += read_result_file(path, named(place)[0], untrained=untrained)
    runs = of_files + of_folders if places[0] in files else of_folders + of_files
    seen: dict[tuple[str, str, str, int], Run | FileRow] = {}
    for run in runs:
        other = seen.setdefault((run.variant, run.dataset, run.protocol, run.seed), run)
        if other is not run:
            raise DataError(
                f"{other.folder} and {run.folder} both hold {run.variant} on {run.dataset} with seed {run.seed}; name "
                f"one of them, as in other={run.folder}, or leave it out."
            )
    return runs


def _of_run(path: Path) -> bool:
    """Whether a file is the ``result.json`` of a whole run folder, which holds more than the file."""
    return path.name == "result.json" and (path.parent / "split.parquet").exists()


def _folder_of(place: str) -> str:
    name, path = named(place)
    folder = path.parent if path.is_file() else path
    return str(folder) if name is None else f"{name}={folder}"


def read_result_file(path: Path, name: str | None, *, untrained: bool = False) -> list[FileRow]:
    """Read the rows of a result file, as `benchmarks/results` holds them or as a run leaves it.

    Args:
        path: a JSON file with ``rows``, each with ``dataset``, ``seed`` and ``metrics``.
        name: calls the variant, or comes before its name where the file has several.
        untrained: also those of the untrained trunk.

    Returns:
        The rows without a method first, otherwise in the order of the file.

    Raises:
        DataError: no JSON, no such rows, or none but the untrained trunk.
    """
    whole = read_json(path)
    rows = whole.get("rows") if isinstance(whole, dict) else None
    if not isinstance(rows, list) or not rows:
        raise DataError(f"{path} is no result file: it has no rows. Give run folders, or files with rows of metrics.")
    if not all(isinstance(row, dict) and {"dataset", "seed", "metrics"} <= set(row) for row in rows):
        raise DataError(
            f"{path} has rows without dataset, seed and metrics, such as rows of time; only rows of quality can be "
            "compared."
        )
    rows = [_with_classes(row, whole, path) for row in rows]
    kept = [row for row in rows if untrained or row.get("method") != FROZEN]
    if not kept:
        raise DataError(f"{path} holds the untrained trunk alone; add --untrained.")
    kept.sort(key=lambda row: row.get("method", "none") != "none")
    labels = _told_apart(kept)
    several = len(set(labels)) > 1
    about = {key: value for key, value in whole.items() if key not in ("rows", "classes")}
    return [
        FileRow(f"{name} {label}" if name and several else name or label, path, row, {**about, **_own(row)})
        for row, label in zip(kept, labels, strict=True)
    ]


def _with_classes(row: dict[str, Any], whole: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Put the labels and counts that a file lists once under ``classes`` into a row whose sums refer to them."""
    sums = row.get("per_class")
    if not isinstance(sums, dict) or "classes" not in sums:
        return row
    listed = whole.get("classes", {}).get(sums["classes"])
    if listed is None:
        raise DataError(f"{path} has a row of the classes {sums['classes']!r}, which the file does not list.")
    return {**row, "per_class": {**listed, **{key: value for key, value in sums.items() if key != "classes"}}}


def _own(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: row[key] for key in ("versions", "commit", "unseen_classes") if key in row}


def _told_apart(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Name every row; those of one name, data set and seed get the options in which they differ."""
    labels = [UNTRAINED if row.get("method") == FROZEN else label_of(dict(row)) for row in rows]
    groups: dict[tuple[object, ...], list[int]] = {}
    for number, row in enumerate(rows):
        groups.setdefault((labels[number], row["dataset"], row.get("protocol"), row["seed"]), []).append(number)
    for numbers in groups.values():
        options = [dict(_flat(rows[number].get("options", {}))) for number in numbers]
        names = dict.fromkeys(key for one in options for key in one)
        differ = [key for key in names if len({str(one.get(key)) for one in options}) > 1]
        for number, one in zip(numbers, options, strict=True) if len(numbers) > 1 else ():
            shown = ", ".join(f"{key.rpartition('.')[2]}={one[key]}" for key in differ if key in one)
            labels[number] += f" ({shown})" if shown else ""
    return labels


def _flat(options: Any, prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in options.items() if isinstance(options, dict) else ():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
