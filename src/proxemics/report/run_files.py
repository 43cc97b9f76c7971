"""Reading a run folder: only ``result.json`` must be there, everything else makes the report fuller."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proxemics.core.errors import DataError
from proxemics.core.files import read_json

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class RunFiles:
    """What a run left behind.

    Attributes:
        folder: the run folder.
        result: ``result.json``.
        records: lines of ``metrics.jsonl`` (empty when absent).
        queries: ``per_query.parquet``, one row a test query, or None.
        split: ``split.parquet``, one row a picture, or None.
        config: text of ``config.yaml`` (empty when absent).
    """

    folder: Path
    result: dict[str, Any]
    records: list[dict[str, Any]]
    queries: pd.DataFrame | None
    split: pd.DataFrame | None
    config: str


def read_run(folder: str | Path) -> RunFiles:
    """Read the files of a run folder.

    Args:
        folder: written by ``proxemics train``.

    Raises:
        DataError: there is no finished run in the folder.
    """
    path = Path(folder)
    if not path.is_dir():
        raise DataError(f"There is no folder {path}. Give a run folder that `proxemics train` wrote.")
    if not (path / "result.json").exists():
        raise DataError(
            f"{path} has no result.json: it is not a run folder, or the run is not finished. "
            "Give the `proxemics train` command of the run again to finish it."
        )
    result = read_json(path / "result.json")
    if not isinstance(result, dict) or not result.get("rows"):
        raise DataError(f"{path / 'result.json'} holds no rows of numbers; run `proxemics train` again.")
    config = path / "config.yaml"
    return RunFiles(
        folder=path,
        result=result,
        records=_read_records(path / "metrics.jsonl"),
        queries=_read_parquet(path / "per_query.parquet"),
        split=_read_parquet(path / "split.parquet"),
        config=config.read_text(encoding="utf-8", errors="replace") if config.exists() else "",
    )


def _read_records(path: Path) -> list[dict[str, Any]]:
    """Read JSON lines; a line cut short by a crash is left out."""
    if not path.exists():
        return []
    records = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(record, dict):
            records.append(record)
    return records


def _read_parquet(path: Path) -> pd.DataFrame | None:
    if not path.exists():
        return None
    import pandas as pd

    try:
        frame: pd.DataFrame = pd.read_parquet(path)
    except (OSError, ValueError) as error:  # Arrow's errors are kinds of these
        reason = " ".join(str(error).split()).rstrip(".")
        raise DataError(f"{path} cannot be read: {reason}. Train the run again, or copy its folder again.") from error
    return frame if len(frame) else None
