"""Result files with sums over classes that stay small: a line a row, and the classes of a test set listed once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from proxemics.core.files import write_text

SHARED = ("labels", "count")


def write_packed(path: Path, whole: Mapping[str, Any]) -> None:
    """Write a result file whose rows refer to ``classes`` of the file; `proxemics compare` reads both forms.

    Args:
        path: where to.
        whole: with ``rows``, each with ``seed`` and ``per_class``.
    """
    classes: dict[str, dict[str, Any]] = {}
    rows = []
    for row in whole["rows"]:
        sums, key = row["per_class"], f"seed {row['seed']}"
        listed = {name: sums[name] for name in SHARED}
        if classes.setdefault(key, listed) != listed:
            key = f"{key} {row['dataset']} {row['method']}"
            classes[key] = listed
        own = {name: [_short(value) for value in values] for name, values in sums.items() if name not in SHARED}
        rows.append({**row, "per_class": {"classes": key, **own}})
    head = json.dumps({key: value for key, value in whole.items() if key != "rows"}, indent=1, allow_nan=False)
    lists = ",\n".join(f"  {json.dumps(key)}: {_line(value)}" for key, value in classes.items())
    lines = ",\n".join(f"  {_line(row)}" for row in rows)
    write_text(path, f'{head[:-2]},\n "classes": {{\n{lists}\n }},\n "rows": [\n{lines}\n ]\n}}\n')


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read the rows of such a file, each with its classes."""
    whole = json.loads(path.read_text(encoding="utf-8"))
    rows = []
    for row in whole["rows"]:
        sums = dict(row["per_class"])
        listed = whole["classes"][sums.pop("classes")] if "classes" in sums else {}
        rows.append({**row, "per_class": {**listed, **sums}})
    return rows


def _line(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _short(value: float) -> float:
    return int(value) if value == int(value) else value
