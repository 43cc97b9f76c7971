"""Published numbers: what is there, where own runs stand, and that two protocols never share a column."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from proxemics.cli.main import app
from proxemics.core.errors import DataError
from proxemics.core.files import write_json
from proxemics.report.published import DATASETS, Panel, lay_out, published_rows
from proxemics.report.published.own import own_rows

CUB = {"train": {"images": 5864, "classes": 100}, "test": {"images": 5924, "classes": 100}}


def make_run(
    folder: Path, *, seed: int = 0, value: float = 0.6, selection: str = "epoch 3 of 5, chosen by map_at_r",
    protocol: str = "zero_shot", splits: dict[str, Any] | None = None, name: str = "result.json",
) -> Path:  # fmt: skip
    row = {
        "dataset": "cub", "protocol": protocol, "trunk": "resnet50", "size": 224, "base": "proxy_anchor",
        "method": "none", "augmentation": "plain", "seed": seed,
        "metrics": {"recall_at_1": value, "map_at_r": value / 2, "rho_spectrum": 0.3}, "intervals": {},
    }  # fmt: skip
    frozen = {**row, "method": "frozen", "metrics": {"recall_at_1": 0.4, "map_at_r": 0.1}}
    if protocol.startswith("musgrave"):
        row["dims"] = [128] * 4
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "rows": [row] if protocol.startswith("musgrave") else [row, frozen],
        "selection": selection, "model": {"dim": 512},
        "data": {"fingerprint": "f" * 64, "splits": splits or CUB},
    }  # fmt: skip
    write_json(folder / name, content)
    return folder


def show(*arguments: object) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["bench", "show", *map(str, arguments), "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.output)


def panel_of(shown: dict[str, Any], key: str) -> dict[str, Any]:
    (found,) = [panel for panel in shown["panels"] if panel["protocol"]["key"] == key]
    return found


def test_every_row_is_complete() -> None:
    for name in DATASETS:
        rows = published_rows(name)
        assert len(rows) > 20
        for row in rows:
            assert row.tag in ("P", "C", "S")
            assert row.source
            assert row.protocol.selection
            low, high = (0, 5) if row.protocol.key == "nivmf_gain" else (20, 100)
            assert all(low < value < high for value in row.values.values())
            recalls = [row.values[key] for key in row.values if key.startswith("recall_at_")]
            assert recalls == sorted(recalls)  # Recall@k rises with k
        keys = [(row.protocol.key, row.method, row.backbone, row.dim) for row in rows]
        assert len(keys) == len(set(keys))


def test_known_values_are_there() -> None:
    values = {
        (row.protocol.key, row.method, row.backbone, row.dim): row.values
        for name in ("cub",)
        for row in published_rows(name)
    }
    assert values["couce_table", "CouCE", "ResNet-50", 512] == {"recall_at_1": 73.23, "map_at_r": 30.03}
    assert values["musgrave", "Proxy Anchor", "BN-Inception", 512]["map_at_r"] == 26.47
    assert values["see_table", "SEE on Proxy Anchor", "ResNet-50", 512]["recall_at_4"] == 87.3
    assert values["untrained", "untrained", "ViT-S", 384] == {"recall_at_1": 83.1}


def test_two_protocols_never_share_a_column() -> None:
    rows = published_rows("cub")
    other = next(row for row in rows if row.protocol != rows[0].protocol)
    with pytest.raises(DataError, match="numbers of different protocols do not compare"):
        Panel(rows[0].protocol, (rows[0], other))
    with pytest.raises(DataError, match="do not compare"):
        Panel(rows[0].protocol, (replace(rows[0], protocol=replace(rows[0].protocol, selection="last epoch")),))
    for panel in lay_out(rows):
        assert {row.protocol for row in panel.rows} == {panel.protocol}


def test_own_runs_stand_under_their_own_protocol(tmp_path: Path) -> None:
    make_run(tmp_path / "a", seed=0, value=0.6)
    make_run(tmp_path / "b", seed=1, value=0.7)
    shown = show("cub", "--runs", tmp_path)
    own = [panel for panel in shown["panels"] if any(row["runs"] for row in panel["rows"])]
    assert len(own) == 2
    trained = own[1]
    assert trained["protocol"]["title"] == "Own runs: zero_shot, epoch by validation"
    (row,) = trained["rows"]  # no published number was chosen on validation classes
    assert (row["method"], row["backbone"], row["dim"], row["size"]) == ("proxy_anchor", "resnet50", 512, 224)
    assert row["values"]["recall_at_1"] == pytest.approx(65)
    assert row["spread"]["recall_at_1"] == pytest.approx(7.0710678)
    assert row["runs"] == 2
    untrained = panel_of(shown, "untrained")
    assert own[0] == untrained
    (mine,) = [row for row in untrained["rows"] if row["runs"]]
    assert (mine["backbone"], mine["values"]["recall_at_1"]) == ("resnet50", pytest.approx(40))
    for panel in shown["panels"]:
        if panel["protocol"]["selection"] == "best test epoch":
            assert not [row for row in panel["rows"] if row["runs"]]


def test_the_last_epoch_stands_beside_the_last_epoch(tmp_path: Path) -> None:
    shown = show("cub200", "--runs", make_run(tmp_path / "a", selection="the last epoch"))
    assert [row["method"] for row in panel_of(shown, "see_table_hyp")["rows"] if row["runs"]] == ["proxy_anchor"]


def test_four_joined_folds_stand_in_the_standardised_table(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "f0", protocol="musgrave fold 1 of 4")
    make_run(folder, protocol="musgrave concatenated", name="evaluation.json")
    (mine,) = [row for row in panel_of(show("cub", "--runs", folder), "musgrave")["rows"] if row["runs"]]
    assert mine["dim"] == 512
    assert mine["values"]["map_at_r"] == pytest.approx(30)


def test_other_pictures_never_stand_beside_published_numbers(tmp_path: Path) -> None:
    """A subset, or another release, of the data set of the same name."""
    splits = {**CUB, "test": {"images": 2953, "classes": 100}}
    rows = own_rows("cub", [make_run(tmp_path / "a", selection="the last epoch", splits=splits)])
    published = {row.protocol for row in published_rows("cub")}
    assert len(rows) == 2
    for row in rows:
        assert row.protocol not in published
        assert "not the official test set (2,953 pictures of 100 classes instead of 5,924 of 100)" in row.protocol.title


def test_the_screen_and_its_errors(tmp_path: Path) -> None:
    runner = CliRunner()
    listed = runner.invoke(app, ["bench", "list"]).output
    assert all(f"{name}: {one.title}" in listed for name, one in DATASETS.items())
    shown = runner.invoke(
        app, ["bench", "show", "cub", "--runs", str(make_run(tmp_path / "a"))], env={"COLUMNS": "160"}
    )
    assert shown.exit_code == 0
    for text in ("73.23", "[S] audit", "best test epoch, assumed", "own, seed 0", "60.0", "resnet50"):
        assert text in shown.output
    with pytest.raises(DataError, match=r"No published numbers for 'cubs'\. Did you mean 'cub'"):
        runner.invoke(app, ["bench", "show", "cubs"], catch_exceptions=False)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no finished run"):
        own_rows("cub", [tmp_path / "empty"])
