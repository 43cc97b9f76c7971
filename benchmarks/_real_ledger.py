"""Finished runs of the study on real pictures, kept small enough to commit, so that the queue goes on elsewhere.

A folder of runs is gigabytes and stays on its machine. Of a finished run the study needs its row, its class sums and
what validation said; this keeps them under ``results/real_methods_runs``, two small files a run, and lays them out as
finished runs again where the folder of runs is new. A run keeps its place whatever the folders of data and runs are
called.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from proxemics.core.config import make_config
from proxemics.core.files import atomic_path, read_json, write_json
from proxemics.training.sweep.cells import Cell, config_hash, short

LEDGER = Path(__file__).parent / "results" / "real_methods_runs"
PLACES = ("source", "root", "cache_folder")
KEPT = (
    "schema",
    "selection",
    "history",
    "timing",
    "peak_memory_mb",
    "commit",
    "versions",
    "machine",
    "data",
    "command",
)


def name_of(cell: Cell) -> str:
    """Return a name that does not depend on where the data are."""
    values = cell.config.model_dump(mode="json")
    values["data"].update({key: None for key in PLACES if key != "source"}, source="DATA")
    parts = [cell.dataset, cell.variant, *([short(cell.settings)] if cell.settings else []), f"s{cell.seed}"]
    return "-".join([*parts, config_hash(make_config(values))])


def keep(cell: Cell, ledger: Path) -> None:
    """Copy what the study needs of a measured run into the ledger; a run that is there stays as it is."""
    place = ledger / f"{name_of(cell)}.json"
    if place.exists() or not (cell.folder / "row.json").exists():
        return
    result = cell.run.read_result()
    config = {**result["config"], "data": {**result["config"]["data"], **dict.fromkeys(PLACES)}}
    kept: dict[str, Any] = {key: result[key] for key in KEPT if key in result}
    kept["data"] = {key: value for key, value in result["data"].items() if key not in PLACES}
    ledger.mkdir(parents=True, exist_ok=True)
    with atomic_path(place.with_suffix(".parquet")) as temporary:
        shutil.copyfile(cell.folder / "classes.parquet", temporary)
    write_json(place, {"row": read_json(cell.folder / "row.json"), "result": {**kept, "config": config, "rows": []}})


def restore(cell: Cell, ledger: Path) -> bool:
    """Lay a run of the ledger out as a finished one.

    Returns:
        Whether it was there, and the folder of the run was not.
    """
    place = ledger / f"{name_of(cell)}.json"
    if cell.state != "new" or not place.exists() or not place.with_suffix(".parquet").exists():
        return False
    found = read_json(place)
    asked = cell.config.model_dump(mode="json")["data"]
    found["result"]["config"]["data"].update({key: asked[key] for key in PLACES})
    cell.folder.mkdir(parents=True, exist_ok=True)
    with atomic_path(cell.folder / "classes.parquet") as temporary:
        shutil.copyfile(place.with_suffix(".parquet"), temporary)
    write_json(cell.folder / "row.json", found["row"])
    write_json(cell.run.result, found["result"])  # last: it makes the run a finished one
    return True
