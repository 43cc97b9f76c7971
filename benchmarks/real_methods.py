"""Every system on real pictures: six tables of five sets, two augmentations, two base losses, five seeds.

    python benchmarks/real_methods.py --data DATA --runs runs/real_methods --dry-run
    python benchmarks/real_methods.py --data DATA --runs runs/real_methods
    python benchmarks/real_methods.py --data DATA --runs runs/real_methods --table

The plan is ``real_methods.yaml``; runs, locks, checkpoints and the choice of settings are those of `proxemics sweep`,
so the queue may be killed at any time and given again, also twice at once, and finished runs are never computed
again: what the study needs of them is kept in ``results/real_methods_runs``, and a queue elsewhere goes on from there.
What a sweep does not do is done here: settings are chosen on two sets and used on their neighbours (``CHOOSERS``);
"combined" takes the chosen settings of its parts, and its trials are the combinations; every domain searches every
other; and what a row does not need is thrown away: a run's weights when it is measured, the stored features of a set
when its last run is done. Phases are ordered so that the queue can be stopped early.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import pandas as pd
import yaml
from _real_ledger import LEDGER, keep
from _real_rows import per_class, seconds, settle, store_seconds
from _real_study import CHOOSERS, Study
from _real_summary import differences, table, verdicts
from _real_tables import SETS, counts, write_tables

from proxemics.core.errors import ProxemicsError
from proxemics.core.files import read_json, write_json
from proxemics.training.sweep.cells import Cell, check_budgets, check_finished
from proxemics.training.sweep.plan import Plan, Settings, load_plan, merge
from proxemics.training.sweep.queue import Queue
from proxemics.training.sweep.slots import Slot, make_slots

HERE = Path(__file__).parent


class Keeper:
    """Watches the queue: a run that is done is measured, and a line says so."""

    def __init__(self, out: Path, total: int) -> None:
        self.out, self.total, self.count = out, total, 0

    def started(self, cell: Cell, slot: Slot) -> None:
        """Nothing."""

    def ended(self, cell: Cell, outcome: str, seconds: float) -> None:
        """Measure what is done."""
        shown = outcome
        if outcome == "done":
            self.count += 1
            measure_quietly(cell, self.out)
            if (cell.folder / "row.json").exists():
                shown = f"R@1 {100 * read_json(cell.folder / 'row.json')['row']['metrics']['recall_at_1']:.1f}"
        stamp = time.strftime("%H:%M:%S")
        print(f"{stamp} {self.count}/{self.total} {cell.name}: {shown}; {seconds:.0f} s", flush=True)

    def tick(self, running: Sequence[Cell], elsewhere: int) -> None:
        """Nothing."""


def measure_quietly(cell: Cell, out: Path) -> None:
    """Measure a finished run; one that cannot be measured must not stop the others."""
    try:
        settle(cell, out)
        if cell.state == "done":
            keep(cell, LEDGER)
    except (ProxemicsError, OSError) as error:
        print(f"{cell.name} is done but cannot be measured: {error}", flush=True)


def work(study: Study, args: argparse.Namespace) -> None:
    """Run what is missing, phase after phase."""
    slots = make_slots(args.devices, args.workers, args.threads)
    for phase in study.phases():
        cells = list({cell.name: cell for cell in phase.cells}.values())
        check_budgets(study.plan, cells)
        check_finished(cells)
        for cell in cells:  # measured too late last time, because the queue was killed in between
            measure_quietly(cell, study.out)
        todo = [cell for cell in cells if cell.state != "done"]
        print(f"{phase.name}: {len(todo)} of {len(cells)} runs to do", flush=True)
        queue = Queue(study.out, slots, watcher=Keeper(study.out, len(todo)))
        queue.forget_failures(cells, retry_failed=args.retry_failed)
        try:
            queue.run(cells)
        finally:
            write(study, args)
        sweep_stores(study)


def sweep_stores(study: Study) -> None:
    """Throw away the stored features of sets whose every run is done."""
    cells = [cell for phase in study.phases(guess=True) for cell in phase.cells]
    for name in study.plan.datasets:
        if all(cell.state == "done" for cell in cells if cell.dataset == name):
            shutil.rmtree(study.out / "store" / name, ignore_errors=True)


def write(study: Study, args: argparse.Namespace) -> None:
    """Write the result file from all finished runs that count."""
    cells = [cell for cell in study.counting() if (cell.folder / "row.json").exists()]
    write_contents(study)
    if not cells:
        return
    kept = [(cell, read_json(cell.folder / "row.json")) for cell in cells]
    rows: list[dict[str, Any]] = []
    folders: dict[tuple[Any, ...], Path] = {}
    for cell, one in kept:
        if "frozen" in one and not any((row["method"], row["dataset"]) == ("frozen", cell.dataset) for row in rows):
            rows.append(one["frozen"])
        sums = pd.read_parquet(cell.folder / "classes.parquet")
        rows.append({**one["row"], "per_class": per_class(sums, cell.dataset)})
        folders[_identity(one["row"])] = cell.folder
    found = differences(
        rows, lambda row: pd.read_parquet(folders[_identity(row)] / "classes.parquet"), resamples=args.resamples
    )
    last, command = kept[-1][1], "python benchmarks/real_methods.py --data DATA --runs RUNS"
    write_json(
        args.result,
        {
            "schema": 1, "command": " ".join([command, *_extra(args)]),
            "commit": last["commit"], "versions": last["versions"], "machine": last["machine"],
            "plan": _without_places(study.plan), "splits": {cell.dataset: one["splits"] for cell, one in kept},
            "search": _search(study), "rows": rows, "differences": found, "verdicts": verdicts(found),
        },
    )  # fmt: skip


def write_contents(study: Study) -> None:
    """Say which folders count, so that `proxemics compare` can read the folder of all runs."""
    trials = [cell.name for group in study.variants for cell in study.trials(group)]
    contents = {"variants": list(study.plan.variants), "trials": trials, "runs": [one.name for one in study.counting()]}
    study.out.mkdir(parents=True, exist_ok=True)
    write_json(study.out / "cells.json", contents)


def _identity(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[key] for key in ("dataset", "base", "method", "augmentation", "seed"))


def _search(study: Study) -> dict[str, Any]:
    """State the search: its space, and what it chose on which set."""
    search = study.plan.search
    assert search is not None
    chosen = [
        {
            "dataset": chooser, "variant": variant, "settings": choice.settings, "trials": choice.trials,
            "failed": choice.failed, "validation": round(choice.value, 5),
        }
        for chooser in study.choosers()
        for members in study.variants.values()
        for variant in members
        if (choice := study.chosen(chooser, variant)) is not None
    ]  # fmt: skip
    return {
        **search.model_dump(exclude_defaults=True), "trials": search.trials, "augmentation": "plain",
        "chosen_on": {name: CHOOSERS[name] for name in study.plan.datasets}, "chosen": chosen,
        "combined": {one: best[0] for one in study.choosers() if (best := study.best_combination(one)) is not None},
    }  # fmt: skip


def _without_places(plan: Plan) -> dict[str, Any]:
    """Return the plan without paths."""
    values = plan.model_dump(mode="json", exclude_unset=True, exclude={"search"})
    for one in values["datasets"].values():
        for key in ("source", "root", "cache_folder"):
            one.get("data", {}).pop(key, None)
    return values


def _extra(args: argparse.Namespace) -> list[str]:
    return [part for one in args.extra for part in ("--set", one)]


def lay_out(args: argparse.Namespace) -> Study:
    """Write the tables and name them in the plan."""
    plan = load_plan(args.plan)
    names = [name for name in plan.datasets if name in args.datasets]
    names += [CHOOSERS[name] for name in names if CHOOSERS[name] not in names]
    names = list(dict.fromkeys(names))
    tables = write_tables(args.data, args.runs / "tables", names)
    extra: Settings = {}
    for one in args.extra:
        key, _, value = one.partition("=")
        extra = merge(extra, {key: yaml.safe_load(value)})
    datasets = {}
    for name in names:
        places = {"source": str(tables[name]), "root": str(args.data), "cache_folder": str(args.runs / "store" / name)}
        datasets[name] = merge(merge(plan.datasets[name], {"data": places}), extra)
    changes: dict[str, Any] = {"datasets": datasets}
    if args.seeds:
        changes["seeds"] = args.seeds
    return Study(plan.model_copy(update=changes), args.runs, tables, LEDGER)


def show(study: Study, args: argparse.Namespace) -> None:
    """List the tables, then the phases with what they are expected to take."""
    sizes = {name: counts(pd.read_csv(path)) for name, path in study.tables.items()}
    for name, one in sizes.items():
        print(f"{name}: " + ", ".join(f"{split} {n} pictures, {c} classes" for split, (n, c) in one.items()))
    known: set[str] = set()
    stores: set[tuple[str, int, str]] = set()
    whole = left = 0.0
    print(f"\n{'phase':<32}{'runs':>6}{'done':>6}{'CPU h':>8}{'left':>8}")
    for phase in study.phases(guess=True):
        cells = [cell for cell in {cell.name: cell for cell in phase.cells}.values() if cell.name not in known]
        known |= {cell.name for cell in cells}
        total = todo = 0.0
        for cell in cells:
            cost = seconds(cell, sizes[cell.dataset])
            key = (cell.dataset, cell.seed, cell.config.data.augmentation)
            if key not in stores:
                stores.add(key)
                cost += store_seconds(cell, sizes[cell.dataset])
            total += cost
            todo += cost if cell.state != "done" else 0.0
        done = sum(cell.state == "done" for cell in cells)
        print(f"{phase.name:<32}{len(cells):>6}{done:>6}{total / 3600:>8.1f}{todo / 3600:>8.1f}")
        whole, left = whole + total, left + todo
        if args.verbose:
            print("\n".join(f"    {cell.name} [{cell.state}]" for cell in cells))
    workers = len(make_slots(args.devices, args.workers, args.threads))
    print(
        f"{'in all':<32}{len(known):>6}{'':>6}{whole / 3600:>8.1f}{left / 3600:>8.1f}\n"
        f"About {left / 3600 / workers:.1f} hours with {workers} workers of one core each."
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Work on the queue, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True, help="folder with index.csv")
    parser.add_argument("--plan", type=Path, default=HERE / "real_methods.yaml")
    parser.add_argument("--runs", type=Path, default=Path("runs/real_methods"))
    parser.add_argument("--result", type=Path, default=HERE / "results" / "real_methods.json")
    parser.add_argument("--datasets", nargs="+", default=list(SETS), choices=list(SETS))
    parser.add_argument("--seeds", type=int, nargs="+", help="default: those of the plan")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--devices", default="auto", help="auto (every GPU, else the CPU), cpu, or numbers such as 0,1")
    parser.add_argument("--retry-failed", action="store_true")
    parser.add_argument("--resamples", type=int, default=2000, help="of the bootstrap")
    parser.add_argument("--set", dest="extra", action="append", default=[], help="KEY=VALUE for every run")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be run, and how long it takes")
    parser.add_argument("--verbose", action="store_true", help="with --dry-run: name every run")
    parser.add_argument("--table", action="store_true", help="only read the finished runs")
    args = parser.parse_args(arguments)
    study = lay_out(args)
    if args.dry_run:
        show(study, args)
        return
    if args.table:
        write(study, args)
    else:
        signal.signal(signal.SIGTERM, _interrupt)
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        try:
            work(study, args)
        except KeyboardInterrupt:
            sys.exit("Interrupted. The same command goes on from the latest checkpoints.")
    if study.missing:
        print(f"No trial finished for {', '.join(sorted(study.missing))}; see failed.json, then --retry-failed.")
    if args.result.exists():
        print(table(json.loads(args.result.read_text())))


def _interrupt(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
