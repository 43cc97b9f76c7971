"""`proxemics compare` and the errors of `proxemics sweep`, as a person would type them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from proxemics.cli.main import main
from proxemics.core.config import make_config
from proxemics.training.pipeline import fit


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["proxemics", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    return int(stopped.value.code or 0)


def test_two_real_runs_and_the_untrained_trunk(
    tiny_settings: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    torch.set_num_threads(1)
    for loss in ("proxy_anchor", "norm_softmax"):
        fit(make_config({}, [*tiny_settings, "train.epochs=1", f"loss.name={loss}"]), tmp_path / "runs" / loss)
    monkeypatch.chdir(tmp_path)
    assert call(monkeypatch, "compare", "runs", "--baseline", "proxy_anchor") == 0
    shown = capfd.readouterr().out
    assert "norm_softmax" in shown
    assert "baseline" in shown
    assert "one seed only" in shown
    assert call(monkeypatch, "compare", "runs", "--untrained", "--out", "table.json") == 0
    rows = json.loads((tmp_path / "table.json").read_text())["rows"]
    frozen = [row for row in rows if row["variant"] == "untrained trunk"]
    result = json.loads((tmp_path / "runs" / "proxy_anchor" / "result.json").read_text())
    assert [row["mean"] for row in frozen] == [result["rows"][1]["metrics"][row["metric"]] for row in frozen]
    assert all(row["pairs"] == 1 for row in frozen)
    # The difference of the untrained trunk is that of the two rows of one result file, and is known query by query.
    first = next(row for row in rows if row["baseline"] == row["variant"])
    assert np.isclose(frozen[0]["difference"], frozen[0]["mean"] - first["mean"])
    assert call(monkeypatch, "compare", "runs", "--format", "latex") == 0
    assert "\\toprule" in capfd.readouterr().out


def test_errors_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.yaml").write_text("variants: {a: {}}\nseed: [0]\n")
    for arguments, part in (
        (["compare", "absent"], "no folder absent"),
        (["sweep", "absent.yaml", "--out", "o"], "No file absent.yaml"),
        (["sweep", "plan.yaml", "--out", "o"], "seed: no such key. Did you mean 'seeds'"),
    ):
        assert call(monkeypatch, *arguments) == 2
        lines = capfd.readouterr().err.strip().splitlines()
        assert len(lines) == 1
        assert part in lines[0]
    assert not (tmp_path / "o").exists()


def test_a_dry_run_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.yaml").write_text("variants: {a: {}, b: {optim.lr: 1e-3}}\nseeds: [0, 5]\n")
    assert call(monkeypatch, "sweep", "plan.yaml", "--out", "o", "--dry-run", "--only", "b") == 0
    shown = capfd.readouterr().out
    assert "2 runs: 2 new." in shown
    assert "b-s5-" in shown
    assert not (tmp_path / "o").exists()
