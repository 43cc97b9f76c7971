"""The committed records of the study on real pictures: what a finished run leaves comes back under another folder."""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from _real_ledger import keep, name_of, restore

from proxemics.core.files import read_json, write_json
from proxemics.training.sweep.cells import Cell, check_finished, make_cell
from proxemics.training.sweep.choose import choose
from proxemics.training.sweep.plan import Plan


def cell(folder: Path, *, lr: float = 1e-4, seed: int = 0) -> Cell:
    """One run of a plan whose data lie under ``folder``."""
    places = {"source": str(folder / "table.csv"), "root": str(folder), "cache_folder": str(folder / "store")}
    plan = Plan(config={}, variants={"base": {}}, datasets={"birds": {"data": places}})
    return make_cell(plan, folder / "runs", "birds", "base", {"optim.lr": lr}, seed)


@pytest.fixture
def finished(tmp_path: Path) -> Cell:
    """A run as the study leaves it when it is measured."""
    one = cell(tmp_path / "here")
    one.folder.mkdir(parents=True)
    write_json(one.run.result, {
        "config": one.config.model_dump(mode="json"), "history": [{"val": {"map_at_r": 0.5}, "best": True}],
        "rows": [{"metrics": {"recall_at_1": 0.7}}], "data": {"source": "secret/place", "fingerprint": "f"},
    })  # fmt: skip
    write_json(one.folder / "row.json", {"row": {"seed": 0, "metrics": {"recall_at_1": 0.7}}})
    pd.DataFrame({"label": ["a", "b"], "recall_at_1": [1.0, 3.0]}).to_parquet(one.folder / "classes.parquet")
    return one


def test_a_finished_run_comes_back_elsewhere(finished: Cell, tmp_path: Path) -> None:
    keep(finished, tmp_path / "ledger")
    other = cell(tmp_path / "there")
    assert (other.state, name_of(other)) == ("new", name_of(finished))
    assert other.name != finished.name  # the folder's name knows the places, the ledger's does not
    assert restore(other, tmp_path / "ledger")
    assert other.state == "done"
    check_finished([other])
    assert read_json(other.folder / "row.json") == read_json(finished.folder / "row.json")
    pd.testing.assert_frame_equal(
        pd.read_parquet(other.folder / "classes.parquet"), pd.read_parquet(finished.folder / "classes.parquet")
    )
    assert choose([other], "map_at_r").value == 0.5
    assert not restore(other, tmp_path / "ledger"), "what is there stays"


def test_another_setting_or_seed_is_another_run(finished: Cell, tmp_path: Path) -> None:
    keep(finished, tmp_path / "ledger")
    for other in (cell(tmp_path / "there", lr=2e-4), cell(tmp_path / "there", seed=1)):
        assert not restore(other, tmp_path / "ledger")
        assert other.state == "new"


def test_no_path_is_kept_and_nothing_is_kept_of_a_run_that_is_not_measured(finished: Cell, tmp_path: Path) -> None:
    (finished.folder / "row.json").rename(tmp_path / "row.json")
    keep(finished, tmp_path / "ledger")
    assert not (tmp_path / "ledger").exists()
    (tmp_path / "row.json").rename(finished.folder / "row.json")
    keep(finished, tmp_path / "ledger")
    text = (tmp_path / "ledger" / f"{name_of(finished)}.json").read_text(encoding="utf-8")
    assert str(tmp_path) not in text
    assert "secret" not in text
