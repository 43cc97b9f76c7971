"""A sweep from plan to rows: the trials, the choice on the validation classes, and the runs that count."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proxemics.core.errors import ConfigError, TrainingError, did_you_mean
from proxemics.core.files import atomic_path, write_json
from proxemics.training.sweep.cells import Cell, cells_of, check_budgets, check_finished
from proxemics.training.sweep.choose import Choice, choose, refuse_leaks, search_metric, write_choices
from proxemics.training.sweep.plan import Plan
from proxemics.training.sweep.queue import Queue
from proxemics.training.sweep.records import read_rows
from proxemics.training.sweep.settings import trial_points


@dataclass
class Sweep:
    """A plan laid out over a folder.

    Args:
        plan: what to run.
        out: folder of the sweep; nothing is written before :meth:`run`.
        only: variants to run; all when empty.

    Raises:
        ConfigError: a variant of ``only`` is unknown, a configuration is wrong, budgets differ, or classes that choose
            settings would be test classes.
        TrainingError: a finished run in the folder has another configuration.
    """

    plan: Plan
    out: Path
    only: Sequence[str] = ()
    trials: list[Cell] = field(init=False, default_factory=list)
    final: list[Cell] = field(init=False, default_factory=list)
    choices: dict[tuple[str, str], Choice] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.only:
            if name not in self.plan.variants:
                known = ", ".join(self.plan.variants)
                raise ConfigError(
                    f"--only {name}: no such variant.{did_you_mean(name, self.plan.variants)} The plan has {known}."
                )
        pairs = [(dataset, variant) for dataset in self.plan.datasets for variant in self.plan.variants]
        points = {pair: trial_points(self.plan, pair[1]) for pair in pairs}
        if self.plan.search is None:
            self.final = cells_of(self.plan, self.out, points, self.plan.seeds)
        else:
            self.trials = cells_of(self.plan, self.out, points, self.search_seeds)
            refuse_leaks(self.plan, self.out, self.search_seeds)
        check_budgets(self.plan, self.trials + self.final)
        check_finished(self.trials + self.final)
        if self.trials and all(cell.state in ("done", "failed") for cell in self.trials):
            with suppress(TrainingError):  # a variant whose trials all failed: they may be retried
                self._choose()

    @property
    def search_seeds(self) -> list[int]:
        """Seeds of the trials."""
        search = self.plan.search
        return [] if search is None else search.seeds or self.plan.seeds[:1]

    @property
    def planned(self) -> int:
        """Runs in all, as far as it can be known before the choice."""
        if self.final or not self.trials:
            return len({cell.name for cell in self.trials + self.final})
        fresh = [seed for seed in self.plan.seeds if seed not in self.search_seeds]
        return len(self.trials) + len(self.plan.datasets) * len(self.plan.variants) * len(fresh)

    def wanted(self, cells: Sequence[Cell]) -> list[Cell]:
        """Return the cells of the variants that were asked for."""
        return [cell for cell in cells if not self.only or cell.variant in self.only]

    def run(self, queue: Queue, *, retry_failed: bool = False) -> list[dict[str, Any]]:
        """Run what is missing; call again after any interruption.

        Args:
            queue: over the same folder.
            retry_failed: also run cells again that failed with an error.

        Returns:
            The rows of the finished runs that count, as in ``sweep.jsonl``.

        Raises:
            TrainingError: no trial of a variant gave a value.
        """
        self.out.mkdir(parents=True, exist_ok=True)
        _save_plan(self.plan, self.out / "plan.yaml")
        self._write_contents()
        if self.trials:
            queue.forget_failures(self.wanted(self.trials), retry_failed=retry_failed)
            queue.run(self.wanted(self.trials))
            self._choose()
            self._write_contents()
            write_choices(self.out, self.choices, search_metric(self.plan, self.trials[0].config), self.search_seeds)
        queue.forget_failures(self.wanted(self.final), retry_failed=retry_failed)
        queue.run(self.wanted(self.final))
        names = {cell.name for cell in self.wanted(self.final)}
        return [row for row in read_rows(self.out / "sweep.jsonl") if row["run"] in names]

    def _choose(self) -> None:
        """Choose for every variant whose trials are over, and lay out its runs on all seeds."""
        groups: dict[tuple[str, str], list[Cell]] = {}
        for cell in self.trials:
            groups.setdefault((cell.dataset, cell.variant), []).append(cell)
        over = {pair: cells for pair, cells in groups.items() if all(one.state in ("done", "failed") for one in cells)}
        metric = search_metric(self.plan, self.trials[0].config)
        self.choices = {pair: choose(cells, metric) for pair, cells in over.items()}
        points = {pair: [choice.settings] for pair, choice in self.choices.items()}
        self.final = cells_of(self.plan, self.out, points, self.plan.seeds)
        check_finished(self.final)

    def _write_contents(self) -> None:
        """Say which folders belong to the plan as it is now, for `proxemics compare`."""
        contents = {
            "variants": list(self.plan.variants),
            "trials": [cell.name for cell in self.trials],
            "runs": [cell.name for cell in self.final],
        }
        write_json(self.out / "cells.json", contents)


def _save_plan(plan: Plan, path: Path) -> None:
    import yaml

    with atomic_path(path) as temporary:
        text = yaml.safe_dump(plan.model_dump(mode="json", exclude_unset=True), sort_keys=False, allow_unicode=True)
        temporary.write_text(text, encoding="utf-8")
