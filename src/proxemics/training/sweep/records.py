"""``sweep.jsonl``: one line a finished run, appended whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from proxemics.training.sweep.cells import Cell
from proxemics.training.sweep.locks import guarded


def row_of(cell: Cell) -> dict[str, Any]:
    """Return the line of a finished run: who it is, what it took and what was measured."""
    result = cell.run.read_result()
    measured = [record for record in result.get("history", []) if "val" in record]
    kept = [record for record in measured if record.get("best")] or measured
    return {
        "run": cell.name,
        **cell.describe(),
        "seconds": result["timing"].get("total_seconds"),
        "training_seconds": result["timing"].get("training_seconds"),
        "selection": result.get("selection"),
        "validation": kept[-1]["val"] if kept else {},
        "rows": [{key: row[key] for key in ("dataset", "protocol", "method", "metrics")} for row in result["rows"]],
    }


def append_missing(path: Path, cells: list[Cell]) -> list[dict[str, Any]]:
    """Append the finished runs that have no line yet; several sweeps may do so at once.

    Args:
        path: ``sweep.jsonl``.
        cells: finished runs.

    Returns:
        The lines that were added.
    """
    with guarded(path.parent):
        text = path.read_bytes() if path.exists() else b""
        known = {row["run"] for row in read_rows(path)}
        added = [row_of(cell) for cell in cells if cell.name not in known]
        if added:
            lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in added).encode()
            # A line cut short by a kill stays behind, ended so that it spoils no other.
            whole = lines if not text or text.endswith(b"\n") else b"\n" + lines
            handle = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)
            try:
                os.write(handle, whole)
                os.fsync(handle)
            finally:
                os.close(handle)
    return added


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read the lines, oldest first; one cut short by a kill is left out."""
    rows = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []:
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(row, dict) and "run" in row:
            rows.append(row)
    return rows
