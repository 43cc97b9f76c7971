"""The study on real pictures laid out over a folder: which runs, in which order, with which settings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from _real_ledger import restore

from proxemics.core.errors import TrainingError
from proxemics.training.sweep.cells import Cell, make_cell
from proxemics.training.sweep.choose import Choice, choose, search_metric
from proxemics.training.sweep.plan import Plan, Settings
from proxemics.training.sweep.settings import trial_points

CHOOSERS = {
    "cub200_2010": "cub200_2010", "cars196": "cub200_2010", "grocery": "cub200_2010",
    "emoji": "emoji", "pacs_unseen": "emoji", "pacs_all": "emoji",
}  # fmt: skip
"""Set to the set whose validation classes choose its settings: photos of many classes, and one domain for all."""
FIRST = ("cub200_2010", "emoji", "pacs_unseen")
"""Sets that run first."""
STRONG = ".strong"


@dataclass
class Phase:
    """A part of the queue."""

    name: str
    cells: list[Cell]


@dataclass
class Study:
    """The plan over a folder.

    Args:
        plan: with tables named.
        out: folder of all runs.
        tables: set to its table.
        ledger: records of runs that were finished elsewhere.
    """

    plan: Plan
    out: Path
    tables: dict[str, Path]
    ledger: Path | None = None
    missing: set[str] = field(init=False, default_factory=set)
    """What could not be chosen, because all its trials failed."""
    _cells: dict[str, Cell] = field(init=False, default_factory=dict)
    _chosen: dict[tuple[str, str], Choice] = field(init=False, default_factory=dict)

    @cached_property
    def variants(self) -> dict[str, list[str]]:
        """Plain variants by group: ``proxy_anchor`` and ``norm_softmax`` (one method or none) and ``combined``."""
        groups: dict[str, list[str]] = {"proxy_anchor": [], "combined": [], "norm_softmax": []}
        for name in self.plan.variants:
            if not name.endswith(STRONG):
                config = self.cell("", name, {}, 0).config
                groups["combined" if len(config.methods) > 1 else config.loss.name].append(name)
        return groups

    def cell(self, dataset: str, variant: str, settings: Settings, seed: int) -> Cell:
        """Return one run, from the ledger if it was finished elsewhere; no data set stands for the first."""
        name = dataset or next(iter(self.plan.datasets))
        key = repr((name, variant, settings, seed))
        if key not in self._cells:
            self._cells[key] = make_cell(self.plan, self.out, name, variant, settings, seed)
            if self.ledger is not None:
                restore(self._cells[key], self.ledger)
        return self._cells[key]

    def choosers(self) -> list[str]:
        """Return the sets that choose, of those asked for and those they need."""
        return list(dict.fromkeys(CHOOSERS[name] for name in self.plan.datasets))

    def trials(self, group: str) -> list[Cell]:
        """Lay out the search of a group, set by set in turn, so that two workers begin with two stores."""
        seed = self.search_seed
        if group == "combined":
            return [
                self.cell(chooser, variant, settings, seed)
                for variant in self.variants[group]
                for chooser in self.choosers()
                if (settings := self.joined(chooser, variant)) is not None
            ]
        points = {variant: trial_points(self.plan, variant) for variant in self.variants[group]}
        most = max((len(one) for one in points.values()), default=0)
        return [
            self.cell(chooser, variant, tried[number], seed)
            for number in range(most)
            for variant, tried in points.items()
            for chooser in self.choosers()
            if number < len(tried)
        ]

    @property
    def search_seed(self) -> int:
        """Seed of the trials."""
        search = self.plan.search
        assert search is not None
        return (search.seeds or self.plan.seeds)[0]

    def chosen(self, chooser: str, variant: str) -> Choice | None:
        """Return the best trial of a variant by validation; None while trials are missing."""
        if (chooser, variant) in self._chosen:
            return self._chosen[chooser, variant]
        group = next(name for name, members in self.variants.items() if variant in members)
        cells = [cell for cell in self.trials(group) if (cell.dataset, cell.variant) == (chooser, variant)]
        if not cells or any(cell.state not in ("done", "failed") for cell in cells):
            return None
        try:
            self._chosen[chooser, variant] = choose(cells, search_metric(self.plan, cells[0].config))
        except TrainingError:
            self.missing.add(f"{variant} on {chooser}")
            return None
        return self._chosen[chooser, variant]

    def joined(self, chooser: str, variant: str) -> Settings | None:
        """Return settings of a combination: what its parts chose, at the rate that the base chose."""
        base = self.chosen(chooser, self.variants["proxy_anchor"][0])
        methods = self.cell(chooser, variant, {}, 0).config.methods
        parts = [
            self.chosen(chooser, single)
            for single in self.variants["proxy_anchor"]
            if (names := self.cell(chooser, single, {}, 0).config.methods) and set(names) <= set(methods)
        ]
        if base is None or any(part is None for part in parts) or len(parts) != len(methods):
            return None
        keys = {
            key: value for part in parts if part for key, value in part.settings.items() if key.startswith("methods.")
        }
        return {**base.settings, **keys}

    def best_combination(self, chooser: str) -> tuple[str, Settings] | None:
        """Return the combination with the highest validation value; None while trials are missing."""
        trials = [cell for cell in self.trials("combined") if cell.dataset == chooser]
        if any(cell.state not in ("done", "failed") for cell in trials):
            return None
        found = [(cell.variant, choice) for cell in trials if (choice := self.chosen(chooser, cell.variant))]
        if not found:
            return None
        variant, choice = max(found, key=lambda one: one[1].value)
        return variant, choice.settings

    def final(self, group: str, datasets: Sequence[str], *, guess: bool = False) -> list[Cell]:
        """Lay out the runs that count: seeds outermost, plain and strong next to each other.

        Args:
            group: of variants.
            datasets: in their order; those that were not asked for are left out.
            guess: with the plan's own settings where none are chosen yet, to know what is to come.
        """
        cells = []
        for seed in self.plan.seeds:
            for dataset in (name for name in datasets if name in self.plan.datasets):
                for variant, settings in self._settled(group, CHOOSERS[dataset], guess):
                    cells += [self.cell(dataset, name, settings, seed) for name in (variant, variant + STRONG)]
        return cells

    def _settled(self, group: str, chooser: str, guess: bool) -> Iterator[tuple[str, Settings]]:
        if group == "combined":
            best = self.best_combination(chooser)
            if best is not None or guess:
                yield best or (self.variants[group][-1], {})
            return
        for variant in self.variants[group]:
            choice = self.chosen(chooser, variant)
            if choice is not None or guess:
                yield variant, choice.settings if choice else {}

    def phases(self, *, guess: bool = False) -> Iterator[Phase]:
        """Yield the parts of the queue; later ones need the outcome of earlier ones, so take them one by one."""
        rest = [name for name in CHOOSERS if name not in FIRST]
        yield Phase("search, single methods", self.trials("proxy_anchor"))
        yield Phase("single methods, first sets", self.final("proxy_anchor", FIRST, guess=guess))
        combined = self.trials("combined")
        if guess and not combined:
            pairs = [(chooser, variant) for variant in self.variants["combined"] for chooser in self.choosers()]
            combined = [self.cell(chooser, variant, {}, self.search_seed) for chooser, variant in pairs]
        yield Phase("search, combinations", combined)
        yield Phase("combined, first sets", self.final("combined", FIRST, guess=guess))
        yield Phase("single methods, other sets", self.final("proxy_anchor", rest, guess=guess))
        yield Phase("combined, other sets", self.final("combined", rest, guess=guess))
        yield Phase("search, NormSoftmax", self.trials("norm_softmax"))
        yield Phase("NormSoftmax", self.final("norm_softmax", list(CHOOSERS), guess=guess))

    def counting(self) -> list[Cell]:
        """Return all runs that count and are laid out so far."""
        return [cell for group in self.variants for cell in self.final(group, list(CHOOSERS))]
