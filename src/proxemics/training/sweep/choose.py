"""Choosing settings by what they did on the validation classes; numbers of the test classes are never read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from proxemics.core.config import Config
from proxemics.core.errors import ConfigError, TrainingError
from proxemics.core.files import write_text
from proxemics.training.sweep.cells import Cell, make_cell
from proxemics.training.sweep.plan import Plan, Settings
from proxemics.training.tables import prepare_table


@dataclass(frozen=True)
class Choice:
    """The settings chosen for one variant.

    Attributes:
        settings: the best point.
        value: its validation metric, mean over the seeds of the search.
        trials: points that were tried.
        failed: points without a value, because a run of theirs failed.
    """

    settings: Settings
    value: float
    trials: int
    failed: int


def search_metric(plan: Plan, config: Config) -> str:
    """Return the validation metric that chooses: that of the plan, else that of the recipe."""
    if plan.search is not None and plan.search.metric is not None:
        return plan.search.metric
    return "map_at_r" if config.train.select == "last" else config.train.select


def validation_value(history: Sequence[Mapping[str, Any]], metric: str) -> float | None:
    """Return the validation metric at the epoch whose weights were kept; None when nothing was measured.

    Args:
        history: of the result file: one record an epoch, with ``val`` and, unless the last epoch was kept, ``best``.
        metric: its name.

    Example:
        >>> validation_value([{"val": {"map_at_r": 0.5}, "best": True}, {"val": {"map_at_r": 0.4}, "best": False}],
        ...                  "map_at_r")
        0.5
    """
    measured = [record for record in history if "val" in record]
    kept = [record for record in measured if record.get("best")] or [one for one in measured if "best" not in one]
    return float(kept[-1]["val"][metric]) if kept else None


def choose(cells: Sequence[Cell], metric: str) -> Choice:
    """Choose among the trials of one variant on one data set; of equals the first.

    Raises:
        TrainingError: no point has a value on every seed.
    """
    values: dict[str, list[float | None]] = {}
    settings: dict[str, Settings] = {}
    for cell in cells:
        history = cell.run.read_result()["history"] if cell.state == "done" else []
        key = yaml.safe_dump(cell.settings)
        settings.setdefault(key, cell.settings)
        values.setdefault(key, []).append(validation_value(history, metric))
    means = {
        key: sum(known) / len(known)
        for key, all_values in values.items()
        if len(known := [value for value in all_values if value is not None]) == len(all_values)
    }
    if not means:
        where = f" on {cells[0].dataset}" if cells[0].dataset else ""
        raise TrainingError(
            f"No trial of {cells[0].variant}{where} finished, so no settings can be chosen; see failed.json in "
            f"{cells[0].folder}, mend the cause and give the same command with --retry-failed."
        )
    best = max(means, key=lambda key: means[key])
    return Choice(settings[best], means[best], len(values), len(values) - len(means))


def write_choices(out: Path, choices: Mapping[tuple[str, str], Choice], metric: str, seeds: Sequence[int]) -> None:
    """Write ``chosen.yaml``."""
    rows = [
        {
            **({"dataset": dataset} if dataset else {}),
            "variant": variant,
            "settings": dict(one.settings),
            "validation": round(one.value, 6),
            "trials": one.trials,
            "failed": one.failed,
        }
        for (dataset, variant), one in choices.items()
    ]
    text = yaml.safe_dump(
        {"rule": f"highest {metric} on the validation classes, mean over seeds {list(seeds)}", "chosen": rows},
        sort_keys=False,
        allow_unicode=True,
    )
    write_text(out / "chosen.yaml", text)


def refuse_leaks(plan: Plan, out: Path, search_seeds: Sequence[int]) -> None:
    """Make sure that no class which chooses settings under one seed is a test class under another.

    Raises:
        ConfigError: the split depends on the seed in such a way; the message says how to fix it.
    """
    for dataset in plan.datasets:
        variant = next(iter(plan.variants))
        tables = {
            seed: prepare_table(make_cell(plan, out, dataset, variant, {}, seed).config)
            for seed in dict.fromkeys([*search_seeds, *plan.seeds])
        }
        for chooser in search_seeds:
            table = tables[chooser]
            used = set(table.loc[table["split"].isin(["train", "val"]), "path"])
            for seed, other in tables.items():
                leaked = other.loc[(other["split"] == "test") & other["path"].isin(used)]
                if len(leaked):
                    raise ConfigError(
                        f"{leaked['label'].nunique()} classes that would choose settings under seed {chooser} are test "
                        f"classes under seed {seed}, because each seed splits the classes anew. Save one split with "
                        "`proxemics split` and name it as data.split_file, or use a split column."
                    )
