"""The main job on small real files, in this process."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from proxemics.core.config import load_config, make_config
from proxemics.core.errors import EvaluationError, ProxemicsError, TrainingError
from proxemics.evaluation import evaluate_embeddings
from proxemics.models.bundle import load_bundle
from proxemics.training.checkpoint import load_checkpoint
from proxemics.training.evaluate_run import evaluate
from proxemics.training.log import Silent, read_log
from proxemics.training.pipeline import fit, validator
from proxemics.training.run_folder import RunFolder
from proxemics.training.tables import prepare_table, rows_of


@pytest.fixture(scope="module")
def run(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, dict]:
    torch.set_num_threads(1)
    settings = [
        f"data.source={tiny_folder}", "data.size=32", "data.workers=0", "model.trunk=test_resnet.r160_in1k",
        "model.weights=none", "model.dim=16", "model.freeze_bn=false", "train.epochs=3", "train.batch_size=8",
        "train.per_class=2", "train.ema=0.5", "evaluation.bootstrap=50", "evaluation.recall_at=[1, 2]",
    ]  # fmt: skip
    folder = tmp_path_factory.mktemp("run") / "run"
    return RunFolder(folder), fit(make_config({}, settings), folder)


def test_run_folder_is_complete_and_plain(run: tuple[RunFolder, dict]) -> None:
    folder, result = run
    assert json.loads(folder.result.read_text()) == result
    assert load_config(folder.config).model.dim == 16
    for name in ("split.parquet", "metrics.jsonl", "per_query.parquet", "embeddings.npy", "embeddings_untrained.npy"):
        assert (folder.path / name).exists()
    assert {path.name for path in folder.bundle.iterdir()} >= {"model.safetensors", "preprocess.json", "labels.json"}
    assert list((folder.path / "tensorboard").iterdir())  # user-pains 102: all logs are local


def test_result_carries_what_is_needed_to_trace_it(run: tuple[RunFolder, dict]) -> None:
    """User-pains 58: versions, fingerprint, configuration, command, seed, split."""
    _, result = run
    assert result["schema"] == 1
    for key in ("command", "versions", "machine", "seed", "config", "protocol", "selection"):
        assert result[key] is not None
    assert len(result["data"]["fingerprint"]) == 64
    assert sum(one["classes"] for one in result["data"]["splits"].values()) == 12
    assert [row["method"] for row in result["rows"]] == ["none", "frozen"]
    for row in result["rows"]:
        low, high = row["intervals"]["recall_at_1"]
        assert low <= row["metrics"]["recall_at_1"] <= high


def test_splits_share_no_class_and_validation_chose_the_epoch(run: tuple[RunFolder, dict]) -> None:
    """User-pains 59: the epoch is chosen on classes set aside from training, and the rule is printed."""
    folder, result = run
    frame = pd.read_parquet(folder.split)
    classes = [set(frame.loc[frame["split"] == name, "label"]) for name in ("train", "val", "test")]
    assert all(classes)
    assert not classes[0] & classes[1]
    assert not (classes[0] | classes[1]) & classes[2]
    values = [record["val"]["map_at_r"] for record in result["history"]]
    assert (
        f"epoch {int(np.argmax(values)) + 1} of 3, chosen by map_at_r on the validation classes" == result["selection"]
    )


def test_the_numbers_are_those_of_the_saved_model(run: tuple[RunFolder, dict]) -> None:
    folder, result = run
    test = rows_of(pd.read_parquet(folder.split), "test")
    saved = np.load(folder.path / "embeddings.npy", allow_pickle=False)
    assert saved.shape == (len(test), 16)
    again = evaluate_embeddings(saved, test["label"].to_list(), recall_at=(1, 2))
    assert again["map_at_r"] == pytest.approx(result["rows"][0]["metrics"]["map_at_r"], abs=1e-12)
    measured = evaluate(folder.path)
    assert measured["rows"][0]["metrics"] == result["rows"][0]["metrics"]
    assert load_bundle(folder.bundle).dim == 16


def test_per_query_table_names_the_neighbours(run: tuple[RunFolder, dict]) -> None:
    """User-pains 64: the predictions behind the metric can be looked at."""
    folder, result = run
    frame = pd.read_parquet(folder.per_query)
    assert (frame["path"] != frame["nearest_path"]).all()
    hit = (frame["label"] == frame["nearest_label"]).mean()
    assert hit == pytest.approx(result["rows"][0]["metrics"]["recall_at_1"])
    assert (frame["neighbours"].str[0] == frame["nearest_path"]).all()


def test_log_holds_each_step_once(run: tuple[RunFolder, dict]) -> None:
    folder, result = run
    steps = [record["step"] for record in read_log(folder.path) if "loss" in record]
    assert steps == list(range(1, result["timing"]["steps"] + 1))


def test_finished_run_is_not_trained_again(run: tuple[RunFolder, dict]) -> None:
    folder, result = run
    again = fit(folder.read_config(), folder.path)
    assert again["rows"] == result["rows"]
    assert again["timing"]["training_seconds"] == result["timing"]["training_seconds"]


def test_another_configuration_in_the_same_folder_is_refused(run: tuple[RunFolder, dict]) -> None:
    folder, _ = run
    config = make_config(folder.read_config().model_dump(), ["optim.lr=0.5"])
    with pytest.raises(TrainingError, match=r"holds a run with another optim\.lr; use another --out, or --restart"):
        fit(config, folder.path)


def test_test_rows_cannot_choose_the_model(tiny_settings: list[str], tmp_path: Path) -> None:
    """User-pains 59: the test split cannot be passed to model selection."""
    config = make_config({}, tiny_settings)
    rows = rows_of(prepare_table(config), "test")
    with pytest.raises(TrainingError, match="test classes never train or choose a model"):
        validator(config, rows, None, None)  # type: ignore[arg-type]


def test_a_protocol_that_cannot_work_is_refused_before_training(tiny_settings: list[str], tmp_path: Path) -> None:
    """User-pains 9: query and gallery are checked before the first step."""
    settings = [*tiny_settings, "evaluation.protocol=cross_domain", "evaluation.query_domain=sketch"]
    with pytest.raises(EvaluationError, match="No picture has the domain 'sketch'"):
        fit(make_config({}, settings), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_non_finite_loss_stops_and_keeps_the_checkpoint(tiny_settings: list[str], tmp_path: Path) -> None:
    """User-pains 21: a diverging run names the step and keeps the last finite weights."""
    settings = [*tiny_settings, "optim.lr=1e30", "optim.clip_value=null", "optim.warmup_epochs=0", "optim.name=sgd"]
    with pytest.raises(TrainingError, match=r"Non-finite loss at step \d+ .*last finite checkpoint is kept"):
        fit(make_config({}, settings), tmp_path / "run")
    loaded = load_checkpoint(tmp_path / "run" / "checkpoint")
    assert loaded is not None
    assert all(value.isfinite().all() for value in loaded[0].values())


@pytest.mark.parametrize(
    "bad", ["train.batch_size=512", "loss.name=proxy_ancor", "loss.options.alhpa=1", "model.trunk=resnet5"]
)
def test_wrong_values_end_in_one_line(bad: str, tiny_settings: list[str], tmp_path: Path) -> None:
    with pytest.raises(ProxemicsError) as caught:
        fit(make_config({}, [*tiny_settings, bad]), tmp_path / "run")
    assert "\n" not in str(caught.value)


def test_a_mended_mistake_does_not_block_the_folder(tiny_settings: list[str], tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(ProxemicsError, match="resnet5"):
        fit(make_config({}, [*tiny_settings, "model.trunk=resnet5"]), out)
    assert fit(make_config({}, [*tiny_settings, "train.epochs=1"]), out)["rows"]


def test_accumulation_equals_the_large_batch_where_the_loss_is_a_mean(tiny_settings: list[str], tmp_path: Path) -> None:
    """User-pains 29: equal for per-sample means; a note for losses that see the batch as a set."""
    settings = [*tiny_settings, "train.epochs=1", "model.freeze_bn=true", "loss.name=norm_softmax"]
    for parts in (1, 2):
        fit(make_config({}, [*settings, f"train.accumulate={parts}"]), tmp_path / f"{parts}")
    losses = [[record["loss"] for record in read_log(tmp_path / f"{parts}") if "loss" in record] for parts in (1, 2)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    said: list[str] = []
    reporter = Silent()
    reporter.say = said.append  # type: ignore[method-assign]
    fit(make_config({}, [*tiny_settings, "train.epochs=1", "train.accumulate=2"]), tmp_path / "pa", reporter=reporter)
    assert any("looks at the batch as a set" in line for line in said)
    assert any("proxies: " in line and "learning rate 0.01" in line for line in said)


def test_collapse_is_said_within_the_first_epoch(tiny_settings: list[str], tmp_path: Path) -> None:
    """User-pains 23: embeddings that fall into one point are reported after the epoch in which it happens."""
    said: list[str] = []
    reporter = Silent()
    reporter.say = said.append  # type: ignore[method-assign]
    settings = [*tiny_settings, "train.epochs=1", "model.dim=1"]
    fit(make_config({}, settings), tmp_path / "run", reporter=reporter)
    assert any("embeddings have collapsed" in line for line in said)


def test_losses_that_start_from_class_means_do(tiny_settings: list[str], tmp_path: Path) -> None:
    settings = [*tiny_settings, "train.epochs=1", "loss.name=pd_loss"]
    assert fit(make_config({}, settings), tmp_path / "run")["rows"][0]["base"] == "pd_loss"


def test_changed_pictures_are_not_mixed_into_an_old_run(run: tuple[RunFolder, dict]) -> None:
    """Resuming on another split could move trained classes into the test split."""
    folder, _ = run
    frame = pd.read_parquet(folder.split)
    frame.loc[frame["split"] == "val", "split"] = "train"
    frame.loc[frame["label"].isin(frame["label"].unique()[:2]), "split"] = "val"
    with pytest.raises(TrainingError, match="other pictures or another split"):
        fit(folder.read_config(), folder.path, frame=frame)
    assert folder.result.exists()


def test_restart_throws_away_the_run_and_nothing_else(tiny_settings: list[str], tmp_path: Path) -> None:
    out = tmp_path / "run"
    settings = [*tiny_settings, "train.epochs=1"]
    fit(make_config({}, settings), out)
    (out / "notes.txt").write_text("mine")
    with pytest.raises(ProxemicsError, match="resnet5"):
        fit(make_config({}, [*settings, "model.trunk=resnet5"]), out, restart=True)
    assert (out / "result.json").exists()
    again = fit(make_config({}, [*settings, "loss.name=norm_softmax"]), out, restart=True)
    assert again["rows"][0]["base"] == "norm_softmax"
    assert (out / "notes.txt").read_text() == "mine"
    assert again["unseen_classes"] is True
