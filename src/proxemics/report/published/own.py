"""Own runs as rows: which protocol they followed, and whether a published one is the same."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from proxemics.core.errors import DataError
from proxemics.core.files import read_json
from proxemics.data.benchmarks import find_benchmark
from proxemics.report.compare_runs import label_of
from proxemics.report.published.rows import DATASETS, Protocol, Row, published_rows

UNTRAINED = "none, nothing is trained"
FILES = ("result.json", "evaluation.json")


def own_rows(dataset: str, folders: Sequence[str | Path]) -> list[Row]:
    """Read the rows of finished runs; runs that differ only in their seed become one row with the mean.

    Args:
        dataset: key of the data set they are to stand beside.
        folders: run folders, or folders of run folders.

    Returns:
        Rows under their own protocol. It is a published one only if task, choice of the epoch and the official number
        of test pictures and classes agree.

    Raises:
        DataError: a folder without a finished run.
    """
    known = {row.protocol.key: row.protocol for row in published_rows(dataset)}
    groups: dict[tuple[Any, ...], list[tuple[dict[str, Any], Protocol, dict[str, Any]]]] = {}
    seen: set[str] = set()
    for result in (one for folder in folders for one in _results(Path(folder))):
        for row in result["rows"]:
            protocol = _protocol(dataset, row, result, known.values())
            if row["method"] == "frozen":
                # All runs on one trunk measure the same untrained features.
                print_ = f"{protocol.key} {row['trunk']} {row['size']} {result['data']['fingerprint']}"
                if print_ in seen:
                    continue
                seen.add(print_)
            key = (protocol.key, _method(row), row["trunk"], row["size"], _dim(row, result))
            groups.setdefault(key, []).append((row, protocol, result))
    return [_mean(members) for members in groups.values()]


def _results(folder: Path) -> list[dict[str, Any]]:
    if not folder.is_dir():
        raise DataError(f"There is no folder {folder}. Give run folders, or a folder of run folders.")
    runs = [folder] if (folder / FILES[0]).exists() else sorted(one.parent for one in folder.glob(f"*/{FILES[0]}"))
    if not runs:
        raise DataError(f"{folder} holds no finished run; give run folders, or a folder of run folders.")
    found = [read_json(run / FILES[0]) for run in runs]
    # What `evaluate` writes is another reading of the same model, except where it joins several models.
    joined = [read_json(run / FILES[1]) for run in runs if (run / FILES[1]).exists()]
    found += [one for one in joined if str(one["rows"][0]["protocol"]).startswith("musgrave ")]
    return [{**one, "rows": [row for row in one["rows"] if " fold " not in row["protocol"]]} for one in found]


def _protocol(dataset: str, row: dict[str, Any], result: dict[str, Any], known: Iterable[Protocol]) -> Protocol:
    """Return the published protocol that the row follows, or one of its own."""
    task, choice = str(row["protocol"]), _selection(row, result)
    differs = _differs(dataset, result)
    usual = DATASETS[dataset].task
    for one in known:
        wanted = usual if one.task == "zero_shot" else one.task
        if not differs and task == wanted and choice == one.selection:
            return one
    title = f"Own runs: {task}, epoch by {choice}" if choice != UNTRAINED else f"Own runs: {task}, untrained"
    return Protocol(f"{task}; {choice}; {differs}", f"{title}{f'; {differs}' if differs else ''}", task, choice)


def _selection(row: dict[str, Any], result: dict[str, Any]) -> str:
    if row["method"] == "frozen":
        return UNTRAINED
    if str(row["protocol"]).startswith("musgrave "):
        return "validation"
    return "last epoch" if str(result.get("selection", "")).startswith("the last epoch") else "validation"


def _differs(dataset: str, result: dict[str, Any]) -> str:
    """Say how the test pictures differ from the official ones in number; empty when they do not."""
    parts = find_benchmark(DATASETS[dataset].benchmark).release.expected.parts
    tested = [part for name, part in parts.items() if name != "train"]
    images, classes = sum(part.images for part in tested), max(part.classes for part in tested)
    splits = result["data"]["splits"]
    found = splits.get("test") or {"images": 0, "classes": 0}
    if (found["images"], found["classes"]) == (images, classes):
        return ""
    return (
        f"not the official test set ({found['images']:,} pictures of {found['classes']:,} classes instead of "
        f"{images:,} of {classes:,})"
    )


def _method(row: dict[str, Any]) -> str:
    return "untrained" if row["method"] == "frozen" else label_of(row)


def _dim(row: dict[str, Any], result: dict[str, Any]) -> int | None:
    if row["method"] == "frozen":
        return None
    if "dims" in row:
        return int(sum(row["dims"]))
    dim = (result.get("model") or {}).get("dim")
    return None if dim is None else int(dim)


def _mean(members: list[tuple[dict[str, Any], Protocol, dict[str, Any]]]) -> Row:
    row, protocol, result = members[0]
    values = {
        name: 100 * float(np.mean([one["metrics"][name] for one, _, _ in members]))
        for name, first in row["metrics"].items()
        if first is not None and name != "rho_spectrum"
    }
    spread = {}
    if len(members) > 1:
        spread = {name: 100 * float(np.std([one["metrics"][name] for one, _, _ in members], ddof=1)) for name in values}
    seeds = sorted({int(one["seed"]) for one, _, _ in members})
    return Row(
        _method(row),
        str(row["trunk"]),
        _dim(row, result),
        protocol,
        values,
        f"own, seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}",
        "",
        spread,
        int(row["size"]),
        len(members),
    )
