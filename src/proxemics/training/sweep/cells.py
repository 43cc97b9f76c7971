"""A cell of a sweep: one configuration with one seed, and the run folder that belongs to it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxemics.core.config import Config, make_config
from proxemics.core.errors import ConfigError, TrainingError
from proxemics.core.files import read_json, write_json
from proxemics.training.run_folder import _FREE, RunFolder, differing_keys
from proxemics.training.sweep.plan import Plan, Settings, merge

FREE = _FREE
"""Keys that change no number, so a run may go on with other values of them."""
_LONGEST = 60  # characters of settings in a folder name


@dataclass(frozen=True)
class Cell:
    """One run of a sweep.

    Attributes:
        name: of its folder: data set, variant, settings, seed, and a hash of the whole configuration.
        dataset: name in the plan; empty when the plan names none.
        variant: name in the plan.
        seed: of the run.
        settings: the point of the grid or search, as dotted keys.
        config: the complete configuration.
        folder: the run folder.
    """

    name: str
    dataset: str
    variant: str
    seed: int
    settings: Settings
    config: Config
    folder: Path

    @property
    def run(self) -> RunFolder:
        """The files of the run."""
        return RunFolder(self.folder)

    @property
    def failure(self) -> Path:
        """Why the run failed; absent when it did not."""
        return self.folder / "failed.json"

    @property
    def log(self) -> Path:
        """What the run printed."""
        return self.folder / "train.log"

    @property
    def state(self) -> str:
        """``done``, ``failed``, ``started`` (goes on from its checkpoint) or ``new``."""
        if self.run.result.exists():
            return "done"
        if self.failure.exists():
            return "failed"
        return "started" if self.run.holds_work else "new"

    def describe(self) -> dict[str, Any]:
        """Return what ``cell.json`` holds: where the run stands in its sweep."""
        return {"dataset": self.dataset, "variant": self.variant, "seed": self.seed, "settings": self.settings}


def make_cell(plan: Plan, out: Path, dataset: str, variant: str, settings: Settings, seed: int) -> Cell:
    """Build the configuration of one run and name its folder.

    Raises:
        ConfigError: a key or value is wrong; the message names the variant.
    """
    values = merge(merge(plan.config, plan.datasets[dataset]), plan.variants[variant])
    try:
        config = make_config({**merge(values, settings), "seed": seed})
    except ConfigError as error:
        raise ConfigError(f"variant {variant}{f' on {dataset}' if dataset else ''}: {error}") from None
    parts = [*([dataset] if dataset else []), variant, *([short(settings)] if settings else []), f"s{seed}"]
    name = f"{'-'.join(parts)}-{config_hash(config)}"
    return Cell(name, dataset, variant, seed, settings, config, out / name)


def cells_of(plan: Plan, out: Path, points: dict[tuple[str, str], list[Settings]], seeds: Iterable[int]) -> list[Cell]:
    """Return the runs in the order of the queue: seeds outermost, so that pairs of one seed finish together.

    Args:
        plan: the plan.
        out: folder of the sweep.
        points: (data set, variant) to the settings to run.
        seeds: of the runs.
    """
    cells: dict[str, Cell] = {}
    for seed in seeds:
        for dataset in plan.datasets:
            most = max((len(points.get((dataset, variant), [])) for variant in plan.variants), default=0)
            for number in range(most):
                for variant in plan.variants:
                    tried = points.get((dataset, variant), [])
                    if number < len(tried):
                        cell = make_cell(plan, out, dataset, variant, tried[number], seed)
                        cells.setdefault(cell.name, cell)
    return list(cells.values())


def short(settings: Settings) -> str:
    """Write settings for a folder name or a table.

    Example:
        >>> short({"optim.lr": 0.0001, "methods.see.weight": 0.2})
        'lr=0.0001,weight=0.2'
    """
    text = ",".join(f"{key.rpartition('.')[2]}={value}" for key, value in settings.items())
    return re.sub(r"[^\w.+=,-]+", "_", text)[:_LONGEST]


def config_hash(config: Config) -> str:
    """Return eight characters that differ between configurations with other numbers.

    Values that equal their default are left out, so that a key added in a later version changes no name, and so are
    the keys that change no number.
    """
    values = _pruned(config.model_dump(mode="json", exclude_defaults=True), "")
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:8]


def _pruned(values: dict[str, Any], prefix: str) -> dict[str, Any]:
    kept = {}
    for key, value in values.items():
        inner = _pruned(value, f"{prefix}{key}.") if isinstance(value, dict) else value
        if f"{prefix}{key}" not in FREE and (inner != {} or prefix == "methods."):  # a method with its defaults counts
            kept[key] = inner
    return kept


def check_finished(cells: Sequence[Cell]) -> None:
    """Refuse a finished run of a folder whose recorded configuration is not that of its cell.

    Raises:
        TrainingError: names the folder and the keys, e.g. after a default changed in a new version.
    """
    for cell in cells:
        if cell.state != "done":
            continue
        recorded, asked = cell.run.read_result().get("config") or {}, cell.config.model_dump(mode="json")
        shared = _shared(recorded, asked)
        different = [key for key in differing_keys(shared, _shared(asked, recorded)) if key not in FREE]
        if cell.config.train.batch_size is None:  # the run fills it in
            different = [key for key in different if key != "train.batch_size"]
        if different:
            raise TrainingError(
                f"{cell.folder} holds a finished run with another {', '.join(different[:4])} than the plan asks for; "
                "move that folder away, or use another --out."
            )


def _shared(values: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _shared(value, other[key]) if isinstance(value, dict) and isinstance(other[key], dict) else value
        for key, value in values.items()
        if key in other
    }


def check_budgets(plan: Plan, cells: Sequence[Cell]) -> None:
    """Refuse variants that would get more training, larger pictures or another trunk than their peers.

    Raises:
        ConfigError: names two variants and their values.
    """
    if not plan.equal_budget:
        return
    seen: dict[tuple[str, str], tuple[str, Any]] = {}
    for cell in cells:
        train, config = cell.config.train, cell.config
        budget = {
            "train.epochs": train.epochs,
            "train.batch_size": train.batch_size,
            "data.size": config.data.size,
            "model.trunk": config.model.trunk,
        }
        for key, value in budget.items():
            if key in cell.settings:
                continue
            variant, first = seen.setdefault((cell.dataset, key), (cell.variant, value))
            if first != value:
                raise ConfigError(
                    f"The budgets differ: {key} is {first} for {variant} and {value} for {cell.variant}. Give all "
                    "variants the same, or write equal_budget: false in the plan."
                )


def record_failure(cell: Cell, error: str, *, code: int) -> None:
    """Write ``failed.json``; a negative code is the signal that ended the run."""
    write_json(cell.failure, {"error": error, "exit_code": code, **({"signal": -code} if code < 0 else {})})


def read_failure(cell: Cell) -> dict[str, Any]:
    """Return what ``failed.json`` holds; empty when there is none."""
    found: dict[str, Any] = read_json(cell.failure) if cell.failure.exists() else {}
    return found
