"""Run again what a result file records, and compare every number."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from proxemics.core.config import Config, make_config
from proxemics.core.errors import ConfigError, DataError
from proxemics.core.files import read_json, write_json
from proxemics.data.table import fingerprint
from proxemics.training import facts
from proxemics.training.log import Reporter, Silent
from proxemics.training.pipeline import fit
from proxemics.training.tables import prepare_table

COUNTS = ("num_queries", "num_lone")


@dataclass(frozen=True)
class Difference:
    """One number before and now.

    Attributes:
        row: the model it belongs to, ``none`` or methods for the trained one and ``frozen`` for the untrained trunk.
        name: of the metric, with its task in front where there are several.
        before: as recorded, or None.
        now: as measured, or None.
    """

    row: str
    name: str
    before: float | None
    now: float | None

    @property
    def size(self) -> float:
        """Absolute difference; 0 for two absent numbers, infinity for one."""
        if self.before is None or self.now is None:
            return 0.0 if self.before is self.now else math.inf
        return float(abs(self.now - self.before))


@dataclass(frozen=True)
class Reproduction:
    """What came out.

    Attributes:
        out: folder of the new run.
        tolerance: largest difference that is accepted.
        numbers: every metric and count of every row.
        changed: what differs in versions and machine: name to (then, now).
    """

    out: Path
    tolerance: float
    numbers: tuple[Difference, ...]
    changed: dict[str, tuple[str, str]]

    @property
    def wrong(self) -> list[Difference]:
        """Numbers that differ by more than the tolerance."""
        return [one for one in self.numbers if not one.size <= self.tolerance]

    @property
    def same(self) -> bool:
        """Whether every number is within the tolerance."""
        return not self.wrong

    def to_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        return {
            "same": self.same,
            "tolerance": self.tolerance,
            "changed": {name: list(pair) for name, pair in self.changed.items()},
            "numbers": [asdict(one) for one in self.numbers],
        }


def reproduce(
    result: str | Path,
    out: str | Path | None = None,
    *,
    tolerance: float = 0.0,
    source: str | None = None,
    restart: bool = False,
    reporter: Reporter | None = None,
) -> Reproduction:
    """Train and measure again what a result file records.

    On the same versions and kind of machine a run on a CPU gives the same numbers, bit for bit, so the tolerance is 0
    unless asked otherwise.

    Args:
        result: ``result.json`` of a run, or its folder.
        out: the new run folder; default: ``reproduced`` beside the file. An interrupted reproduction goes on.
        tolerance: largest accepted difference of a metric, as a share (0.01 is one point).
        source: where the pictures lie now, if they have moved.
        restart: throw away what ``out`` holds.
        reporter: hears of progress.

    Returns:
        Every number before and now; also written to ``reproduction.json`` in ``out``.

    Raises:
        DataError: the file is not the result of a training, or the pictures or their splits are not the same.
        ConfigError: the recorded configuration is not understood by this version, or the tolerance is negative.
    """
    if not tolerance >= 0:
        raise ConfigError(f"tolerance={tolerance}: give 0 or a positive share, e.g. 0.005 for half a point.")
    file = Path(result) / "result.json" if Path(result).is_dir() else Path(result)
    recorded = read_json(file)
    config = recorded_config(recorded, file)
    if source is not None:
        name = "source" if config.data.split_file is None else "root"
        config = config.model_copy(update={"data": config.data.model_copy(update={name: source})})
    table = prepare_table(config)
    found, expected = fingerprint(table), recorded["data"]["fingerprint"]
    if found != expected:
        raise DataError(
            f"The pictures or their splits are not those of {file}: fingerprint {found[:12]}, {len(table):,} pictures; "
            f"recorded {expected[:12]}, {recorded['data']['num_images']:,}. Restore them, or say with --data "
            "where they are."
        )
    folder = Path(out) if out is not None else file.parent / "reproduced"
    if folder.resolve() == file.parent.resolve():
        raise ConfigError(f"{folder} holds the result itself; choose another --out.")
    again = fit(config, folder, frame=table, restart=restart, reporter=reporter or Silent())
    outcome = Reproduction(folder, tolerance, compare_results(recorded, again), changed_facts(recorded))
    write_json(folder / "reproduction.json", outcome.to_dict())
    return outcome


def recorded_config(recorded: Any, file: Path) -> Config:
    """Return the configuration of a result file.

    Raises:
        DataError: it is not the result of a training.
        ConfigError: this version does not understand the configuration.
    """
    if not isinstance(recorded, dict) or not all(key in recorded for key in ("config", "data", "rows", "history")):
        raise DataError(
            f"{file} is not the result of a training; give result.json of a run folder. What `evaluate` wrote is "
            "measured again by its own command, which stands in the file."
        )
    return make_config(recorded["config"])


def compare_results(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[Difference, ...]:
    """Hold every metric and count of two results against each other, row by row.

    Args:
        before: content of a result file.
        now: that of the other.

    Example:
        >>> old = {"rows": [{"method": "none", "metrics": {"map_at_r": 0.5}, "num_queries": 8}]}
        >>> new = {"rows": [{"method": "none", "metrics": {"map_at_r": 0.25}, "num_queries": 8}]}
        >>> [(one.name, one.size) for one in compare_results(old, new)]
        [('map_at_r', 0.25), ('num_queries', 0.0)]
    """
    first, second = ({row["method"]: _numbers(row) for row in one["rows"]} for one in (before, now))
    return tuple(
        Difference(row, name, first.get(row, {}).get(name), second.get(row, {}).get(name))
        for row in {**first, **second}
        for name in {**first.get(row, {}), **second.get(row, {})}
    )


def _numbers(row: Mapping[str, Any]) -> dict[str, float | None]:
    found: dict[str, float | None] = dict(row["metrics"])
    found.update({name: row[name] for name in COUNTS if name in row})
    for group in ("tasks", "beside"):
        for task, one in row.get(group, {}).items():
            found.update({f"{task}: {name}": value for name, value in one["metrics"].items()})
    return found


def changed_facts(recorded: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return the versions and the machine that differ from the recorded ones: name to (then, now)."""
    then = {**recorded.get("versions", {}), "machine": recorded.get("machine")}
    now = {**facts.versions(), "machine": facts.machine()}
    return {
        name: (str(then.get(name)), str(now.get(name))) for name in {**then, **now} if then.get(name) != now.get(name)
    }


def summary(outcome: Reproduction, most: int = 8) -> list[str]:
    """Say in lines what came out, the largest differences first."""
    worst = sorted(outcome.wrong, key=lambda one: -one.size)
    lines = [f"{one.row}: {one.name} was {_show(one.before)} and is {_show(one.now)}" for one in worst[:most]]
    if len(worst) > most:
        lines.append(f"and {len(worst) - most} more")
    differing = [one for one in outcome.numbers if one.size > 0]
    within = "bit for bit" if not differing else f"within {outcome.tolerance:g}"
    if outcome.same:
        lines.append(f"Reproduced: all {len(outcome.numbers)} numbers are the same, {within}.")
    else:
        lines.append(
            f"Not reproduced: {len(worst)} of {len(outcome.numbers)} numbers differ by more than {outcome.tolerance:g}."
        )
    if differing and outcome.changed:
        shown = ", ".join(f"{name} {then} -> {now}" for name, (then, now) in outcome.changed.items())
        lines.append(f"Other than then: {shown}.")
    return lines


def _show(value: float | None) -> str:
    return "absent" if value is None else f"{value:.6g}"
