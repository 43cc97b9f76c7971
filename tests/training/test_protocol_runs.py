"""Runs under each protocol: from the flag to the result file, the comparison and the reproduction."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from proxemics.cli.main import app, main
from proxemics.core.config import make_config
from proxemics.core.errors import ConfigError, DataError, EvaluationError
from proxemics.core.files import write_json
from proxemics.data.split_files import load_split
from proxemics.evaluation.verification import verify_embeddings
from proxemics.report.compare import compare
from proxemics.report.compare_rows import read_compared
from proxemics.report.compare_runs import read_runs
from proxemics.training.evaluate_run import evaluate
from proxemics.training.pipeline import fit
from proxemics.training.reproduce import reproduce, summary
from proxemics.training.tables import fit_protocol, prepare_table, settle_protocol

FAST = [
    "data.size=32", "data.workers=0", "model.trunk=test_resnet.r160_in1k", "model.weights=none", "model.dim=8",
    "model.freeze_bn=false", "train.epochs=1", "train.batch_size=8", "train.per_class=2", "train.tensorboard=false",
    "evaluation.bootstrap=20", "evaluation.recall_at=[1, 2]",
]  # fmt: skip


@pytest.fixture(scope="module")
def table(tiny_folder: Path) -> Path:
    """The tiny pictures as a table with two domains of unequal size and a class split."""
    torch.set_num_threads(1)
    rows = [
        (
            path.relative_to(tiny_folder.parent).as_posix(),
            folder.name,
            "photo" if number < 5 else "sketch",
            "test" if index >= 8 else "train",
        )
        for index, folder in enumerate(sorted(tiny_folder.iterdir()))
        for number, path in enumerate(sorted(folder.iterdir()))
    ]
    frame = pd.DataFrame(rows, columns=["path", "label", "domain", "split"])
    path = tiny_folder.parent / "protocols.csv"
    frame.to_csv(path, index=False)
    return path


def config_of(table: Path, *more: str) -> Any:
    return make_config({}, [*FAST, f"data.source={table}", *more])


@pytest.fixture(scope="module")
def single(table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("single") / "run"
    fit(config_of(table, "evaluation.protocol=single_domain", "evaluation.source_domain=photo"), out)
    return out


def test_single_domain_trains_on_the_source_only(single: Path) -> None:
    result = json.loads((single / "result.json").read_text())
    split = pd.read_parquet(single / "split.parquet")
    assert set(split.loc[split["split"].isin(["train", "val"]), "domain"]) == {"photo"}
    assert set(split.loc[split["split"] == "test", "domain"]) == {"photo", "sketch"}
    assert len(split) == 96
    for row in result["rows"]:
        assert row["protocol"] == "single_domain photo -> other domains"
        assert list(row["tasks"]) == ["sketch"]
        assert row["metrics"]["map_at_r"] == row["tasks"]["sketch"]["metrics"]["map_at_r"]
        assert row["beside"]["photo -> photo"]["num_queries"] == 20
    queries = pd.read_parquet(single / "per_query.parquet")
    assert set(queries["task"]) == {"sketch"}
    assert "/" in queries["nearest_path"].iloc[0]
    assert (queries["label"] == queries["nearest_label"]).mean() == pytest.approx(
        result["rows"][0]["metrics"]["recall_at_1"]
    )


def test_a_mean_over_domains_is_compared_as_such(single: Path, table: Path, tmp_path: Path) -> None:
    """Rows of unequal domains average to the mean over domains in `compare`, also for the untrained trunk."""
    runs = []
    for name, rate in (("a", "1e-4"), ("b", "1e-2")):
        fit(config_of(table, "evaluation.protocol=leave_one_domain_out", f"optim.lr={rate}"), tmp_path / name)
        runs.append(f"{name}={tmp_path / name}")
    result = json.loads((tmp_path / "a" / "result.json").read_text())
    row = result["rows"][0]
    assert [one["num_queries"] for one in row["tasks"].values()] == [20, 12]
    values = [one["metrics"]["map_at_r"] for one in row["tasks"].values()]
    assert row["metrics"]["map_at_r"] == pytest.approx(np.mean(values), abs=1e-12)
    gain = row["over_untrained"]["map_at_r"]
    assert gain["difference"] == pytest.approx(
        row["metrics"]["map_at_r"] - result["rows"][1]["metrics"]["map_at_r"], abs=1e-6
    )
    assert gain["interval"][0] <= gain["difference"] <= gain["interval"][1]
    found = compare(read_runs(runs, untrained=True), metrics=["map_at_r"], resamples=20)
    (part,) = found.parts
    assert part.lines[0].entries[0].mean == pytest.approx(row["metrics"]["map_at_r"], abs=1e-9)


def test_evaluate_takes_the_protocol_as_a_flag(single: Path, tmp_path: Path) -> None:
    for name, extra in (
        ("zero_shot", []),
        ("roth", []),
        ("leave_one_domain_out", []),
        ("single_domain", ["--set", "evaluation.across=true"]),
    ):
        out = tmp_path / f"{name}.json"
        arguments = ["evaluate", str(single), "--protocol", name, "--out", str(out), "-q", *extra]
        done = CliRunner().invoke(app, arguments, env={"COLUMNS": "160"})
        assert done.exit_code == 0, done.output
        (row,) = json.loads(out.read_text())["rows"]
        assert row["protocol"].split()[0] == name
        if name == "roth":
            assert {"map_1000_roth", "f1", "nmi"} <= set(row["metrics"])
            assert "map_1000_roth" in done.output
        if name == "single_domain":
            assert set(row["beside"]) == {"photo -> photo", "sketch -> photo"}
            assert "beside: sketch -> photo" in done.output
    with pytest.raises(ConfigError, match=r"evaluation\.protocol='other'"):
        CliRunner().invoke(app, ["evaluate", str(single), "--protocol", "other"], catch_exceptions=False)


@pytest.mark.parametrize("protocol", ["zero_shot", "leave_one_domain_out"])
def test_a_result_file_has_the_interval_of_its_run_folders(table: Path, tmp_path: Path, protocol: str) -> None:
    """Tasks of unequal size, and a class with one picture, which is a lone query and no class of the interval."""
    frame = pd.read_csv(table)
    lonely = frame[frame["split"] == "test"]["label"].iloc[0]
    frame = frame[(frame["label"] != lonely) | ~frame["label"].duplicated()]
    changed = table.with_name(f"lonely_{protocol}.csv")
    frame.to_csv(changed, index=False)
    files, folders = [], []
    for name, dim in (("a", 8), ("b", 2)):  # two numbers are too few for the classes
        more = [f"evaluation.protocol={protocol}", "evaluation.absent=keep", f"model.dim={dim}"]
        fit(config_of(changed, *more), tmp_path / name)
        result = evaluate(tmp_path / name)
        assert lonely not in result["rows"][0]["per_class"]["labels"] or protocol != "zero_shot"
        result["rows"][0]["method"] = name
        write_json(tmp_path / f"{name}.json", result)
        files.append(str(tmp_path / f"{name}.json"))
        folders.append(f"{name}={tmp_path / name}")
    estimates = []
    for places in (files, folders):
        (part,) = compare(read_compared(places), metrics=["map_at_r"]).parts
        difference = part.lines[1].entries[0].difference
        assert difference is not None
        estimates.append(difference.estimate)
    one, other = estimates
    assert one.num_classes == other.num_classes
    assert (one.difference, one.low, one.high) == pytest.approx((other.difference, other.low, other.high), abs=1e-5)
    assert one.low < one.high


def test_pairs_are_verified_where_that_is_asked_for(single: Path, tmp_path: Path) -> None:
    out = tmp_path / "pairs.json"
    line = ["evaluate", str(single), "--out", str(out), "-q", "--set", "evaluation.verification=true"]
    done = CliRunner().invoke(app, line, env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    found = json.loads(out.read_text())["rows"][0]["verification"]
    frame = load_split(single / "split.parquet")
    labels = frame[frame["split"] == "test"]["label"].astype(str).to_numpy()
    wanted = verify_embeddings(np.load(single / "embeddings.npy"), labels)
    assert (found["auc"], found["eer"]) == pytest.approx((wanted.auc, wanted.eer), abs=1e-6)
    assert f"all pairs: area under the ROC {wanted.auc:.4f}, EER {100 * wanted.eer:.1f} %" in done.output
    assert "verification" not in json.loads((single / "result.json").read_text())["rows"][0]


def test_what_evaluate_wrote_can_be_compared(single: Path, tmp_path: Path) -> None:
    files = []
    for seed in (1, 2):
        result = evaluate(single, evaluation=config_of(single, "evaluation.protocol=leave_one_domain_out").evaluation)
        for row in result["rows"]:
            row["seed"], row["method"] = seed, "one"
        other = json.loads(json.dumps(result))
        (changed,) = other["rows"]
        changed["method"] = "other"
        for metric in set(changed["per_class"]) - {"labels", "count"}:
            sums, count = changed["per_class"][metric], sum(changed["per_class"]["count"])
            assert sum(sums) / count == pytest.approx(changed["metrics"][metric], abs=1e-5), metric
            changed["metrics"][metric] -= sums[0] / 2 / count
            sums[0] /= 2
        for name, content in (("one", result), ("other", other)):
            write_json(tmp_path / f"{name}{seed}.json", content)
            files.append(str(tmp_path / f"{name}{seed}.json"))
    found = compare(read_compared(files))
    (line,) = [line for part in found.parts for line in part.lines if "other" in line.variant]
    assert line.entries[0].difference is not None
    assert line.entries[0].difference.estimate.low <= line.entries[0].difference.estimate.high


@pytest.mark.parametrize(
    ("protocol", "more", "columns"),
    [
        ("query_gallery", [], {"role": ""}),
        ("cross_domain", ["evaluation.query_domain=photo", "evaluation.gallery_domain=sketch"], {"domain": "sketch"}),
        ("leave_one_domain_out", [], {"domain": "sketch"}),
    ],
)
def test_training_classes_need_not_have_what_the_protocol_asks_of_test_classes(
    table: Path, tmp_path: Path, protocol: str, more: list[str], columns: dict[str, str]
) -> None:
    frame = pd.read_csv(table).assign(role="")
    seen = frame["split"] == "train"
    for name, value in columns.items():
        frame.loc[seen, name] = value
    frame.loc[~seen, "role"] = ["gallery" if "photo" in one else "query" for one in frame[~seen]["domain"]]
    changed = table.with_name(f"{protocol}.csv")
    frame.to_csv(changed, index=False)
    config = config_of(changed, f"evaluation.protocol={protocol}", *more)
    result = fit(config, tmp_path / "run")
    assert result["rows"][0]["protocol"].split()[0] == protocol
    assert result["selection"].startswith("epoch 1 of 1, chosen by ")


def test_single_domain_settles_its_source_or_asks_for_it(table: Path) -> None:
    config = config_of(table, "evaluation.protocol=single_domain")
    with pytest.raises(ConfigError, match=r"needs evaluation\.source_domain: the training pictures have 2 domains"):
        prepare_table(config)
    plain = prepare_table(config_of(table))
    photos = plain[(plain["domain"] == "photo") | (plain["split"] == "test")].reset_index(drop=True)
    assert settle_protocol(config, photos).evaluation.source_domain == "photo"
    with pytest.raises(DataError, match="No training picture has the source domain 'painting'"):
        prepare_table(config_of(table, "evaluation.protocol=single_domain", "evaluation.source_domain=painting"))


def test_a_class_that_is_seen_and_tested_is_refused_before_training(table: Path, tmp_path: Path) -> None:
    frame = prepare_table(config_of(table))
    seen = frame.index[frame["split"] == "train"][0]
    frame.loc[(frame["label"] == frame.loc[seen, "label"]) & (frame["domain"] == "sketch"), "split"] = "test"
    config = config_of(table, "evaluation.protocol=single_domain", "evaluation.source_domain=photo")
    with pytest.raises(DataError, match="also trained or chosen on"):
        fit(config, tmp_path / "run", frame=frame)
    assert not (tmp_path / "run").exists()


def test_musgrave_from_four_folds_to_both_readings(table: Path, tmp_path: Path) -> None:
    folders = []
    held = []
    for fold in range(4):
        config = config_of(table, "evaluation.protocol=musgrave", f"evaluation.fold={fold}")
        frame = prepare_table(config)
        assert fit_protocol(config, frame).equals(frame)
        held.append(set(frame.loc[frame["split"] == "val", "label"]))
        folders.append(tmp_path / f"f{fold}")
        row = fit(config, folders[-1])["rows"][0]
        assert row["protocol"] == f"musgrave fold {fold + 1} of 4"
    assert len(set().union(*held)) == 8
    assert all(len(one) == 2 for one in held)
    done = CliRunner().invoke(
        app, ["evaluate", *map(str, folders), "--protocol", "musgrave", "-q"], env={"COLUMNS": "160"}
    )
    assert done.exit_code == 0, done.output
    assert "trained, concatenated" in done.output
    joined, apart = json.loads((folders[0] / "evaluation.json").read_text())["rows"]
    assert (joined["protocol"], apart["protocol"]) == ("musgrave concatenated", "musgrave separated")
    assert joined["dims"] == [8] * 4
    values = [json.loads((one / "result.json").read_text())["rows"][0]["metrics"]["map_at_r"] for one in folders]
    assert apart["metrics"]["map_at_r"] == pytest.approx(np.mean(values), abs=1e-12)
    assert [one["metrics"]["map_at_r"] for one in apart["models"]] == pytest.approx(values, abs=1e-12)
    with pytest.raises(DataError, match="were chosen on the same classes"):
        evaluate(folders[0], more=[folders[0]])
    with pytest.raises(ConfigError, match="--protocol musgrave only"):
        evaluate(folders[0], more=[folders[1]], config=config_of(table))


# --- reproduce --------------------------------------------------------------------------------------------------------


def test_a_run_is_reproduced_bit_for_bit(single: Path, tmp_path: Path) -> None:
    """User-pains 58: a command reruns a result file and compares."""
    done = CliRunner().invoke(app, ["reproduce", str(single / "result.json"), "--out", str(tmp_path / "again"), "-q"])
    assert done.exit_code == 0, done.output
    assert "bit for bit" in done.output
    outcome = json.loads((tmp_path / "again" / "reproduction.json").read_text())
    assert outcome["same"]
    assert {"map_at_r", "sketch: map_at_r", "photo -> photo: map_at_r", "num_queries"} <= {
        one["name"] for one in outcome["numbers"]
    }


def test_a_number_that_differs_is_named_and_fails(single: Path, tmp_path: Path) -> None:
    recorded = json.loads((single / "result.json").read_text())
    recorded["rows"][0]["metrics"]["map_at_r"] += 0.01
    recorded["versions"]["torch"] = "1.0"
    write_json(tmp_path / "result.json", recorded)
    done = CliRunner().invoke(app, ["reproduce", str(tmp_path), "-q"])
    assert done.exit_code == 1
    assert "none: map_at_r was" in done.output
    assert "torch 1.0 -> " in done.output
    allowed = reproduce(tmp_path, tolerance=0.02)  # the run is finished; it is only compared again
    assert allowed.same
    assert summary(allowed)[0] == f"Reproduced: all {len(allowed.numbers)} numbers are the same, within 0.02."
    with pytest.raises(ConfigError, match="give 0 or a positive share"):
        reproduce(tmp_path, tolerance=float("nan"))


def test_other_pictures_are_refused_and_moved_ones_are_found(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = tmp_path / "photos"
    shutil.copytree(tiny_folder, photos)
    fit(config_of(photos), tmp_path / "run")
    photos.rename(tmp_path / "moved")
    outcome = reproduce(tmp_path / "run", source=str(tmp_path / "moved"))
    assert outcome.same
    assert outcome.out == tmp_path / "run" / "reproduced"
    next((tmp_path / "moved").rglob("*.png")).unlink()
    monkeypatch.setattr(
        sys, "argv", ["proxemics", "reproduce", str(tmp_path / "run"), "--data", str(tmp_path / "moved")]
    )
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert "The pictures or their splits are not those of" in capsys.readouterr().err


def test_what_is_not_the_result_of_a_training_is_refused(single: Path, tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"rows": [], "config": {}, "data": {}})
    with pytest.raises(DataError, match="not the result of a training"):
        reproduce(tmp_path / "x.json")
    with pytest.raises(ConfigError, match="choose another --out"):
        reproduce(single, single)


def test_the_source_is_asked_for_where_nothing_names_it(single: Path, table: Path) -> None:
    settings = config_of(table, "evaluation.protocol=single_domain")
    with pytest.raises(EvaluationError, match=r"needs evaluation\.source_domain"):
        evaluate(single, source=str(table), config=settings)
