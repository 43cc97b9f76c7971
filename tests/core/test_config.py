"""The configuration refuses what it does not know and reads back what it writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxemics.core.config import Config, dump_config, load_config, make_config, save_config
from proxemics.core.errors import ConfigError


def test_written_configuration_reads_back_equal(tmp_path: Path) -> None:
    config = make_config({"data": {"source": "photos é"}}, ["loss.options.alpha=16", "evaluation.recall_at=[1, 10]"])
    save_config(config, tmp_path / "config.yaml")
    assert load_config(tmp_path / "config.yaml") == config
    assert "alpha: 16" in dump_config(config)


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("train.epoch=3", "train.epoch: no such key in train. Did you mean 'epochs'?"),
        ("trian.epochs=3", "trian: no such key. Did you mean 'train'?"),
        ("train.epochs=-1", "train.epochs=-1: input should be greater than or equal to 0."),
        ("train.epochs=many", "train.epochs='many': input should be a valid integer"),
        ("train.epochs", "--set 'train.epochs': write key=value"),
        ("seed.x=1", "seed"),
        ("model.pooling=mean", "model.pooling='mean': input should be 'avg', 'max'"),
        ("train.batch_size=50", "train.batch_size=50 is not a multiple of train.per_class=4; use 48"),
        ("train={batch_size: 64, devices: 3}", "cannot be shared by 3 devices"),
        ("data.split=grouped", "data.split=grouped needs data.group"),
        ("data.split=domain_held_out", "needs data.held_out_domain"),
        ("evaluation.recall_at=[0]", "evaluation.recall_at.0=0"),
        ("optim.lr=.inf", "optim.lr=inf"),
        ("data.crop_scale=[0.9, 0.5]", "0 < low <= high <= 1"),
        ("data={split_file: a.parquet, source: photos}", "already names its pictures"),
        ("evaluation.gallery_domain=photo", "needs evaluation.query_domain"),
    ],
)
def test_wrong_assignment_names_the_key(assignment: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_config({}, [assignment])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_are_not_configurations(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No configuration file"):
        load_config(tmp_path / "absent.yaml")
    (tmp_path / "bad.yaml").write_text("a: [1")
    with pytest.raises(ConfigError, match="not valid YAML"):
        load_config(tmp_path / "bad.yaml")
    (tmp_path / "list.yaml").write_text("- 1")
    with pytest.raises(ConfigError, match="must hold keys and values"):
        load_config(tmp_path / "list.yaml")
    with pytest.raises(ConfigError, match="is a folder"):
        load_config(tmp_path)


def test_every_key_carries_its_meaning() -> None:
    def check(schema: dict, path: str) -> None:  # type: ignore[type-arg]
        for name, entry in schema["properties"].items():
            assert entry.get("description") or "$ref" in entry, f"{path}{name} has no description"

    schema = Config.model_json_schema()
    check(schema, "")
    for name, section in schema["$defs"].items():
        check(section, f"{name}.")
