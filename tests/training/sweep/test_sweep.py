"""The real thing: runs in processes of their own, killed, failed, shared by two sweeps, and chosen by validation."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from warm_processes import Process, Warm

from proxemics.core.config import make_config
from proxemics.core.errors import ConfigError, TrainingError
from proxemics.training.pipeline import fit
from proxemics.training.sweep.cells import Cell, record_failure
from proxemics.training.sweep.choose import validation_value
from proxemics.training.sweep.locks import is_held
from proxemics.training.sweep.plan import Plan
from proxemics.training.sweep.queue import Queue, Unwatched, last_error
from proxemics.training.sweep.records import append_missing, read_rows
from proxemics.training.sweep.run import Sweep
from proxemics.training.sweep.slots import make_slots


def plan_file(folder: Path, photos: Path, **values: Any) -> Path:
    recipe = {
        "data": {"source": str(photos), "size": 32, "workers": 0},
        "model": {"trunk": "test_resnet.r160_in1k", "weights": "none", "dim": 16, "freeze_bn": False},
        "train": {"epochs": 2, "batch_size": 8, "per_class": 2, "checkpoint_steps": 1, "tensorboard": False},
        "evaluation": {"bootstrap": 0, "recall_at": [1, 2]},
    }
    path = folder / "plan.yaml"
    path.write_text(yaml.safe_dump({"config": recipe, **values}))
    return path


def start(warm: Warm, log: Path, plan: Path, out: Path, *more: str) -> Process:
    """Start a sweep; its runs are new processes."""
    line = ["-m", "proxemics", "sweep", str(plan), "--out", str(out), "--devices", "cpu", *more]
    return warm.start(line, out=log, err=log)


def wait_for(condition: Any, what: str, seconds: float = 120) -> None:
    deadline = time.time() + seconds
    while not condition():
        assert time.time() < deadline, what
        time.sleep(0.01)


def test_killed_then_shared_by_two_sweeps_with_failures_it_ends_with_the_rows_of_whole_runs(
    warm: Warm, tiny_folder: Path, tmp_path: Path
) -> None:
    variants = {"wrong": {"data.source": str(tmp_path / "absent")}, "plain": {}, "norm": {"loss.name": "norm_softmax"}}
    plan, out = plan_file(tmp_path, tiny_folder, variants=variants, seeds=[0]), tmp_path / "sweep"
    first = start(warm, tmp_path / "first.log", plan, out, "--threads", "1")
    wait_for(lambda: list(out.glob("*/metrics.jsonl")), "no run began")
    first.kill()
    first.wait()
    (begun,) = out.glob("*/lock")
    child = json.loads(begun.read_text())["child"]
    wait_for(lambda: not is_held(begun), f"the run {child} outlived its sweep", 10)
    assert not list(out.glob("*/result.json"))

    logs = [tmp_path / f"{number}.log" for number in range(2)]
    pair = [start(warm, log, plan, out, "--threads", "1", "--quiet") for log in logs]
    for one, log in zip(pair, logs, strict=True):
        code, text = one.wait(), log.read_text()
        assert code == 1, text
        assert "norm" in text
        assert "1 of the runs failed" in text  # and ended nothing else
    assert not list(out.glob("*/lock"))

    rows = read_rows(out / "sweep.jsonl")
    assert len(rows) == len({row["run"] for row in rows}) == 2
    assert {(row["variant"], row["seed"]) for row in rows} == {("plain", 0), ("norm", 0)}
    torch.set_num_threads(1)
    killed = next(row for row in rows if row["run"] == begun.parent.name)
    whole = fit(make_config(yaml.safe_load((begun.parent / "asked.yaml").read_text())), tmp_path / "whole")
    assert killed["rows"][0]["metrics"] == whole["rows"][0]["metrics"]
    assert killed["validation"] == [one["val"] for one in whole["history"] if one.get("best")][-1]

    # Nothing is computed again, and nothing is written again.
    before = {path: path.stat().st_mtime_ns for path in out.glob("*/result.json")}
    check_failures(Plan(**yaml.safe_load(plan.read_text())), out)
    assert {path: path.stat().st_mtime_ns for path in out.glob("*/result.json")} == before
    assert len(read_rows(out / "sweep.jsonl")) == 2


def check_failures(plan: Plan, out: Path) -> None:
    """A failed run is retried only when asked; what a signal ended is tried again unasked."""
    failures = sorted(out.glob("wrong*/failed.json"))
    assert len(failures) == 1
    assert "absent" in json.loads(failures[0].read_text())["error"]
    laid_out = Sweep(plan, out)
    before = [path.stat().st_mtime_ns for path in failures]
    laid_out.run(Queue(out, []))  # no slot: would never end if it wanted to run anything
    assert [path.stat().st_mtime_ns for path in failures] == before
    queue = Queue(out, [])
    queue.forget_failures(laid_out.final, retry_failed=True)
    assert not list(out.glob("*/failed.json"))
    record_failure(laid_out.final[0], "Killed by SIGKILL", code=-9)
    queue.forget_failures(laid_out.final, retry_failed=False)
    assert not list(out.glob("*/failed.json"))


def pretend(cell: Cell, *, validation: float, test: float) -> None:
    """Leave a finished run with these numbers."""
    history = [{"val": {"map_at_r": validation / 2}, "best": True}, {"val": {"map_at_r": validation}, "best": True}]
    history.append({"val": {"map_at_r": validation / 3}, "best": False})
    row = {"dataset": "x", "protocol": "zero_shot", "method": "none", "metrics": {"map_at_r": test}}
    result = {"config": cell.config.model_dump(mode="json"), "history": history, "rows": [row], "timing": {}}
    cell.folder.mkdir(parents=True, exist_ok=True)
    cell.run.result.write_text(json.dumps(result))


class Counter(Unwatched):
    """Counts what runs, and keeps how it ended."""

    def __init__(self) -> None:
        self.counts: list[tuple[int, int]] = []
        self.outcomes: list[str] = []

    def tick(self, running: Sequence[Cell], elsewhere: int) -> None:
        self.counts.append((len(running), sum(is_held(cell.folder / "lock") for cell in running)))

    def ended(self, cell: Cell, outcome: str, seconds: float) -> None:
        self.outcomes.append(outcome)


def run_program(text: str, plan: Plan, out: Path, monkeypatch: pytest.MonkeyPatch, workers: int) -> Counter:
    """Run a plan with a program in place of Python; ``later`` in the folder of a run is the result it should have."""
    program = out / "program"
    for cell in (cells := Sweep(plan, out).final):
        pretend(cell, validation=0.5, test=0.5)
        cell.run.result.rename(cell.folder / "later")
    program.write_text(f'#!/bin/sh\nwhile [ "$1" != --out ]; do shift; done\ncd "$2" || exit 3\n{text}\n')
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    Queue(out, make_slots("cpu", workers=workers, threads=1), watcher=(counter := Counter())).run(cells)
    return counter


def test_one_sweep_runs_as_many_at_a_time_as_it_has_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(variants={"plain": {}, "norm": {"loss.name": "norm_softmax"}}, seeds=[0, 1])
    counter = run_program("sleep 0.5; mv later result.json", plan, tmp_path, monkeypatch, workers=2)
    assert max(counter.counts) == (2, 2)
    assert counter.outcomes == ["done"] * 4
    assert sorted(row["seed"] for row in read_rows(tmp_path / "sweep.jsonl")) == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("kills", "outcomes"),
    [(2, ["resumed", "resumed", "done"]), (3, ["resumed", "resumed", "Killed by SIGKILL 3 times"])],
)
def test_a_killed_run_goes_on_by_itself_twice(
    kills: int, outcomes: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"echo >> starts; [ $(wc -l < starts) -gt {kills} ] || kill -9 $$; mv later result.json"
    counter = run_program(text, Plan(variants={"a": {}}, seeds=[0]), tmp_path, monkeypatch, workers=1)
    assert [outcome.partition(";")[0] for outcome in counter.outcomes] == outcomes
    assert len(read_rows(tmp_path / "sweep.jsonl")) == (kills == 2)


@pytest.mark.slow  # without the training it is the test above, and runs that train are in the first of this file
def test_one_command_runs_as_many_at_a_time_as_it_has_workers(warm: Warm, tiny_folder: Path, tmp_path: Path) -> None:
    plan, out = (
        plan_file(tmp_path, tiny_folder, variants={"plain": {}, "norm": {"loss.name": "norm_softmax"}}, seeds=[0, 1]),
        tmp_path / "sweep",
    )
    most = 0
    sweep = start(warm, tmp_path / "log", plan, out, "--workers", "2", "--threads", "1", "--quiet")
    deadline = time.time() + 240
    try:
        while sweep.poll() is None and time.time() < deadline:
            most = max(most, sum(is_held(path) for path in out.glob("*/lock")))
            time.sleep(0.02)
    finally:
        sweep.kill()
    assert sweep.wait(10) == 0, (tmp_path / "log").read_text()
    assert most == 2
    assert sorted(row["seed"] for row in read_rows(out / "sweep.jsonl")) == [0, 0, 1, 1]


@pytest.fixture
def searched(tiny_folder: Path, tmp_path: Path) -> Plan:
    """A search over a fixed split: 12 classes, 6 of them test classes whatever the seed."""
    files = sorted(tiny_folder.glob("*/*.png"))
    table = pd.DataFrame({"path": [str(path) for path in files], "label": [path.parent.name for path in files]})
    table["split"] = np.where(table["label"].rank(method="dense") > 6, "test", "train")
    table.to_csv(tmp_path / "table.csv", index=False)
    return Plan.model_validate(
        {
            "config": {"data": {"source": str(tmp_path / "table.csv"), "root": str(tiny_folder)}},
            "variants": {"a": {}, "b": {}},
            "seeds": [0, 1, 2],
            "search": {"trials": 3, "space": {"optim.lr": [1e-4, 1e-3, "log"]}},
        }
    )


def test_only_validation_chooses(searched: Plan, tmp_path: Path) -> None:
    """The setting that is best on test classes and worst on validation classes is not taken."""
    out = tmp_path / "out"
    laid_out = Sweep(searched, out)
    assert len(laid_out.trials) == 6
    assert laid_out.final == []
    assert laid_out.planned == 6 + 2 * 2
    for number, cell in enumerate(laid_out.trials):
        pretend(cell, validation=0.1 + 0.1 * (number // 2), test=0.9 - 0.1 * number)
    laid_out = Sweep(searched, out)
    best = laid_out.trials[-2].settings
    assert {cell.settings["optim.lr"] for cell in laid_out.final} == {best["optim.lr"]}
    assert [(cell.seed, cell.variant) for cell in laid_out.final] == [(s, v) for s in (0, 1, 2) for v in "ab"]
    assert {cell.name for cell in laid_out.final[:2]} < {cell.name for cell in laid_out.trials}  # not run again
    for cell in laid_out.final[2:]:
        pretend(cell, validation=0.5, test=0.5)
    rows = laid_out.run(Queue(out, []))
    assert len(rows) == 6
    chosen = yaml.safe_load((out / "chosen.yaml").read_text())
    assert [row["settings"] for row in chosen["chosen"]] == [best, best]
    assert [row["validation"] for row in chosen["chosen"]] == pytest.approx([0.3, 0.3])
    assert [row["trials"] for row in chosen["chosen"]] == [3, 3]
    contents = json.loads((out / "cells.json").read_text())
    assert contents["runs"] == [cell.name for cell in laid_out.final]

    # Other test numbers, the same choice.
    for cell in laid_out.trials:
        result = json.loads(cell.run.result.read_text())
        result["rows"] = [{"metrics": {"map_at_r": 0.0}}]
        cell.run.result.write_text(json.dumps(result))
    assert Sweep(searched, out).choices == laid_out.choices


def test_a_failed_trial_is_left_out_and_said(searched: Plan, tmp_path: Path) -> None:
    laid_out = Sweep(searched, tmp_path / "out")
    for number, cell in enumerate(laid_out.trials):
        if number == 4:
            cell.folder.mkdir(parents=True)
            record_failure(cell, "broken", code=2)
        else:
            pretend(cell, validation=0.1 * number, test=0.5)
    choice = Sweep(searched, tmp_path / "out").choices["", "a"]
    assert (choice.trials, choice.failed) == (3, 1)
    assert choice.settings == laid_out.trials[2].settings


def test_classes_that_choose_are_never_test_classes_under_another_seed(tiny_folder: Path, tmp_path: Path) -> None:
    search = {"trials": 2, "space": {"optim.lr": [1e-4, 1e-3]}}
    values = {"config": {"data": {"source": str(tiny_folder)}}, "variants": {"a": {}}, "search": search}
    with pytest.raises(ConfigError, match=r"under seed 0 are test classes under seed 1.*proxemics split"):
        Sweep(Plan.model_validate({**values, "seeds": [0, 1]}), tmp_path / "out")
    assert len(Sweep(Plan.model_validate({**values, "seeds": [0]}), tmp_path / "out").trials) == 2


def test_the_kept_epoch_gives_the_validation_value() -> None:
    records = [{"val": {"m": 0.4}, "best": True}, {"val": {"m": 0.6}, "best": True}, {"val": {"m": 0.5}, "best": False}]
    assert validation_value(records, "m") == 0.6
    assert validation_value([{"val": one["val"]} for one in records], "m") == 0.5  # the last epoch was kept
    assert validation_value([{"epoch": 0}], "m") is None


def test_a_finished_run_of_other_settings_is_refused(tmp_path: Path) -> None:
    plan = Plan(variants={"a": {}}, seeds=[0])
    (cell,) = Sweep(plan, tmp_path).final
    pretend(cell, validation=0.5, test=0.5)
    result = json.loads(cell.run.result.read_text())
    result["config"]["train"]["batch_size"] = 64  # filled in by the run
    result["config"]["train"].pop("patience")  # written by a version without this key
    cell.run.result.write_text(json.dumps(result))
    assert Sweep(plan, tmp_path).final[0].state == "done"
    result["config"]["optim"]["lr"] = 0.5
    cell.run.result.write_text(json.dumps(result))
    with pytest.raises(TrainingError, match=r"another optim\.lr than the plan asks for"):
        Sweep(plan, tmp_path)


def test_a_row_cut_short_spoils_no_other(tmp_path: Path) -> None:
    (cell, other) = Sweep(Plan(variants={"a": {}, "b": {}}, seeds=[0]), tmp_path).final
    for one in (cell, other):
        pretend(one, validation=0.5, test=0.5)
    path = tmp_path / "sweep.jsonl"
    append_missing(path, [cell])
    path.write_bytes(path.read_bytes()[:-10])
    assert read_rows(path) == []
    append_missing(path, [cell, other])
    assert append_missing(path, [cell, other]) == []
    assert [row["run"] for row in read_rows(path)] == [cell.name, other.name]


def test_the_last_error_of_this_sitting_is_found(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("Error: old\n")
    begun = log.stat().st_size
    with log.open("a") as file:
        file.write("epoch 1\nError: the disk is full\nbye\n\n")
    assert last_error(log, begun) == "the disk is full"
    assert last_error(log, log.stat().st_size) == "The run ended without a word."
    assert last_error(tmp_path / "none") == "The run ended without a word."
