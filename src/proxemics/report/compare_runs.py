"""Reading finished runs for a comparison: what each is called, and its values query by query."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from proxemics.core.errors import DataError
from proxemics.core.files import read_json
from proxemics.evaluation.paired import ClassSums, class_sums
from proxemics.report.numbers import pick_rows
from proxemics.report.run_files import read_run

if TYPE_CHECKING:
    import pandas as pd

UNTRAINED = "untrained trunk"


@dataclass(frozen=True)
class Run:
    """One finished run.

    Attributes:
        variant: what it is called in the table; runs of one variant differ in their seed.
        folder: the run folder.
        row: its row of ``result.json``.
        result: the whole of ``result.json``.
        dataset: name of the data.
        untrained: the row is that of the untrained trunk.
    """

    variant: str
    folder: Path
    row: dict[str, Any] = field(repr=False)
    result: dict[str, Any] = field(repr=False)
    dataset: str
    untrained: bool = False

    @property
    def protocol(self) -> str:
        """The protocol, with its domains."""
        return str(self.row["protocol"])

    @property
    def seed(self) -> int:
        """Seed of the run."""
        return int(self.row["seed"])

    @property
    def fingerprint(self) -> str:
        """Fingerprint of all pictures with their splits."""
        return str(self.result["data"]["fingerprint"])

    @cached_property
    def split(self) -> pd.DataFrame:
        """The table with its splits; its ``path`` is relative to the folder of the pictures."""
        from proxemics.data.split_files import load_split

        frame = load_split(self.folder / "split.parquet")
        return frame.assign(path=_relative(frame["path"], str(frame.attrs["root"])))

    @cached_property
    def test_fingerprint(self) -> str:
        """Hash of the test pictures with their classes and domains, wherever their folder lies."""
        test = self.split[self.split["split"] == "test"]
        lines = sorted("\x1f".join(row) for row in zip(test["path"], test["label"], test["domain"], strict=True))
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    @cached_property
    def queries(self) -> pd.DataFrame:
        """One row a query: ``path`` (relative), ``label`` and the metrics.

        Raises:
            DataError: ``per_query.parquet`` is absent or is not that of ``result.json``.
        """
        frame = self._measure_untrained() if self.untrained else read_run(self.folder).queries
        if frame is None:
            raise DataError(f"{self.folder} has no per_query.parquet, so its queries cannot be paired; train it again.")
        if "weight" in frame:  # the number is a mean over tasks, such as domains, that have unequal numbers of queries
            names = [name for name in self.row["metrics"] if name in frame]
            frame = frame.assign(**{name: frame[name] * frame["weight"] for name in names})
        for name, value in self.row["metrics"].items():
            if name in frame and value is not None and abs(float(frame[name].mean()) - value) > 1e-6:
                raise DataError(
                    f"{self.folder}: {name} is {value:.4f} in result.json and {frame[name].mean():.4f} over "
                    "per_query.parquet; the files are not of one run."
                )
        return frame

    def values(self, metric: str) -> NDArray[np.float64] | None:
        """Return (Q,) values of a metric, in the order of :attr:`queries`; None when it is not a mean over queries."""
        return self.queries[metric].to_numpy(np.float64) if metric in self.queries else None

    def class_totals(self, metric: str) -> ClassSums | None:
        """Return the sums of a metric over the queries of each class; None when it is not a mean over queries."""
        values = self.values(metric)
        if values is None:
            return None
        nothing = np.where(np.isnan(values), np.nan, 0.0)
        return class_sums(values, nothing, self.queries["label"].to_numpy(str), weights=self.weights)

    @property
    def weights(self) -> NDArray[np.float64] | None:
        """(Q,) what the values of the queries were multiplied by; None: nothing."""
        return self.queries["weight"].to_numpy(np.float64) if "weight" in self.queries else None

    @cached_property
    def card(self) -> dict[str, Any] | None:
        """``probe.json``, of the untrained trunk its numbers in there; None when it was not probed."""
        file = self.folder / "probe.json"
        card = dict(read_json(file)) if file.exists() else None
        if card is None or not self.untrained:
            return card
        numbers = [{**one, "value": one["untrained"]} for one in card["numbers"]]
        return {**card, "numbers": numbers} if card["has_untrained"] else None

    @cached_property
    def query_paths(self) -> list[str]:
        """(Q,) paths of the queries, relative to the folder of the pictures."""
        return _relative(self.queries["path"], self._root)

    @property
    def _root(self) -> str:
        return str(self.split.attrs["root"])

    def _measure_untrained(self) -> pd.DataFrame:
        import pandas as pd

        from proxemics.data.split_files import load_split
        from proxemics.evaluation.assess import assess
        from proxemics.training.run_folder import RunFolder
        from proxemics.training.tables import rows_of

        files = RunFolder(self.folder)
        rows = rows_of(load_split(files.split), "test")
        vectors = np.load(self.folder / "embeddings_untrained.npy", allow_pickle=False)
        found = assess(vectors, rows, files.read_config().evaluation, intervals=False)
        queries = rows.iloc[found.selection.query].reset_index(drop=True)[["path", "label"]]
        names = (*found.result.query_metrics, *(["weight"] if "weight" in found.result.per_query else []))
        values = {name: np.asarray(found.result.per_query[name]) for name in names}
        return pd.concat([queries, pd.DataFrame(values)], axis=1)


def read_runs(places: Sequence[str], *, untrained: bool = False) -> list[Run]:
    """Read the finished runs of run folders, sweep folders and folders of run folders.

    Args:
        places: folders; ``NAME=FOLDER`` calls the runs of a folder NAME.
        untrained: also read the untrained trunk that every run measures.

    Returns:
        The runs, each variant's in the order in which it was met; the first variant of a sweep comes first.

    Raises:
        DataError: a folder holds no finished run, or two runs cannot be told apart.
    """
    runs: list[Run] = []
    for place in places:
        name, folder = named(place)
        found = _of_folder(folder, name)
        if not found:
            raise DataError(f"{folder} holds no finished run; give run folders, or the folder of a sweep.")
        runs += found
    if untrained:
        runs += _untrained(runs)
    _refuse_twins(runs)
    return runs


def named(place: str) -> tuple[str | None, Path]:
    """Split ``NAME=FOLDER``; a path that exists is taken as it is.

    Example:
        >>> name, path = named("plain=runs/a")
        >>> name, path.as_posix()
        ('plain', 'runs/a')
    """
    name, equals, rest = place.partition("=")
    if equals and name and not Path(place).exists():
        return name, Path(rest)
    return None, Path(place)


def _of_folder(folder: Path, name: str | None) -> list[Run]:
    if not folder.is_dir():
        raise DataError(f"There is no folder {folder}. Give run folders, the folder of a sweep, or result files.")
    if (folder / "result.json").exists():
        return [_read(folder, name)]
    contents = folder / "cells.json"
    if not contents.exists():
        return [_read(one.parent, name) for one in sorted(folder.glob("*/result.json"))]
    listed: list[str] = read_json(contents)["runs"]
    if not listed:
        raise DataError(f"The search in {folder} is not over, so no runs count yet; give its `proxemics sweep` again.")
    return _of_sweep(folder, listed, name)


def _of_sweep(folder: Path, listed: Iterable[str], name: str | None) -> list[Run]:
    """Read the runs that count; settings are part of the name only where a variant has several."""
    found = [(folder / one, read_json(folder / one / "cell.json")) for one in listed if _finished(folder / one)]
    several: dict[tuple[str, str], set[str]] = {}
    for _, cell in found:
        several.setdefault((cell["dataset"], cell["variant"]), set()).add(_settings(cell))
    # Where a search chose, data sets may differ in their settings, and still each has one.
    grids = any(len(one) > 1 for one in several.values())
    runs = []
    for place, cell in found:
        variant = f"{cell['variant']} {_settings(cell)}".strip() if grids else str(cell["variant"])
        runs.append(_read(place, name or variant, dataset=cell["dataset"] or None))
    return runs


def _finished(folder: Path) -> bool:
    return (folder / "result.json").exists() and (folder / "cell.json").exists()


def _settings(cell: dict[str, Any]) -> str:
    return ", ".join(f"{key.rpartition('.')[2]}={value}" for key, value in cell["settings"].items())


def _read(folder: Path, name: str | None, *, dataset: str | None = None) -> Run:
    result = read_run(folder).result
    row, _ = pick_rows(result)
    if name is None and (folder / "cell.json").exists():
        name = str(read_json(folder / "cell.json")["variant"])
    return Run(name or label_of(row), folder, row, result, dataset or str(row["dataset"]))


def label_of(row: dict[str, Any]) -> str:
    """Name a run after its loss, its methods and its augmentation.

    Example:
        >>> label_of({"base": "proxy_anchor", "method": "see", "augmentation": "plain"})
        'proxy_anchor + see'
    """
    parts = [str(row["base"])]
    parts += [] if row.get("method", "none") == "none" else [str(row["method"])]
    parts += [] if row.get("augmentation", "plain") == "plain" else [str(row["augmentation"])]
    return " + ".join(parts)


def _untrained(runs: Sequence[Run]) -> list[Run]:
    """One run for each data set, protocol and seed, taken from the first that measured it."""
    found: dict[tuple[str, str, str, int], Run] = {}
    trunks = {str(run.row["trunk"]) for run in runs}
    for run in runs:
        _, frozen = pick_rows(run.result)
        if frozen:
            trunk = str(run.row["trunk"])
            name = UNTRAINED if len(trunks) == 1 else f"{UNTRAINED} {trunk}"
            key = (run.dataset, run.protocol, trunk, run.seed)
            found.setdefault(key, Run(name, run.folder, frozen, run.result, run.dataset, untrained=True))
    return list(found.values())


def _refuse_twins(runs: Sequence[Run]) -> None:
    seen: dict[tuple[str, str, str, int], Run] = {}
    for run in runs:
        other = seen.setdefault((run.variant, run.dataset, run.protocol, run.seed), run)
        if other is not run:
            raise DataError(
                f"{other.folder} and {run.folder} are both {run.variant} on {run.dataset} with seed {run.seed}; "
                f"name one of them, as in other={run.folder}, or leave it out."
            )


def _relative(paths: Iterable[str], root: str) -> list[str]:
    return [Path(os.path.relpath(path, root)).as_posix() for path in paths]
