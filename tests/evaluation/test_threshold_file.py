"""`thresholds.json`: what was calibrated comes back, and another model is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from proxemics.core.errors import EvaluationError
from proxemics.evaluation.operating_point import ClassThreshold, Rate, Threshold
from proxemics.evaluation.threshold_file import Model, Source, load_thresholds, save_thresholds, thresholds_path

KEY = Model(model="a" * 64, preprocess="0123456789abcdef", dim=8)
SOURCE = Source(data="birds", split="val", fingerprint="f" * 64, unseen=True, command="proxemics calibrate run")


def point(kind: str = "verify", threshold: float = 0.5) -> Threshold:
    return Threshold(
        kind=kind, target=0.01, threshold=threshold, interval=(0.4, 0.6), level=0.95,
        false_match=Rate(value=0.009, low=0.004, high=0.02), miss=Rate(value=None), negatives=10_000, positives=0,
        pictures=200, classes=20,
        per_class={"é": ClassThreshold(threshold=0.7, own_share=0.5, negatives=500, false_match=0.01)},
    )  # fmt: skip


def test_both_kinds_come_back(tmp_path: Path) -> None:
    path = save_thresholds(tmp_path, KEY, point(), SOURCE)
    assert path == tmp_path / "thresholds.json"
    save_thresholds(tmp_path, KEY, point("identify", 0.8), SOURCE)
    for place in (tmp_path, path):
        found = load_thresholds(place, KEY)
        assert found.point("verify") == point()
        assert found.point("identify").threshold == 0.8
        assert found.verify.source == SOURCE
    assert json.loads(path.read_text())["schema"] == 1
    save_thresholds(tmp_path, KEY, point(threshold=0.55), SOURCE)
    assert load_thresholds(tmp_path, KEY).point("verify").threshold == 0.55
    assert load_thresholds(tmp_path, KEY).point("verify").limit("é") == 0.7


def test_a_run_keeps_them_beside_the_weights(tmp_path: Path) -> None:
    assert thresholds_path(tmp_path) == tmp_path / "thresholds.json"
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "model.safetensors").touch()
    assert thresholds_path(tmp_path) == tmp_path / "bundle" / "thresholds.json"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "b" * 64}, "belongs to model aaaaaaaaaaaa and the scores come from bbbbbbbbbbbb"),
        ({"preprocess": "x"}, "was calibrated with preprocessing 0123456789abcdef"),
        ({"dim": 9}, "vectors of length 8"),
    ],
)
def test_another_model_is_refused_and_replaces(tmp_path: Path, change: dict, words: str) -> None:
    save_thresholds(tmp_path, KEY, point(), SOURCE)
    other = KEY.model_copy(update=change)
    with pytest.raises(EvaluationError, match=words):
        load_thresholds(tmp_path, other)
    save_thresholds(tmp_path, other, point("identify"), SOURCE)
    found = load_thresholds(tmp_path, other)
    assert found.verify is None
    with pytest.raises(EvaluationError, match="No threshold to verify with was calibrated; run `proxemics calibrate"):
        found.point("verify")


def test_absent_newer_and_damaged_files(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match=r"holds no thresholds.json; run `proxemics calibrate` first"):
        load_thresholds(tmp_path, KEY)
    path = save_thresholds(tmp_path, KEY, point(), SOURCE)
    whole = json.loads(path.read_text())
    path.write_text(json.dumps({**whole, "schema": 2}))
    with pytest.raises(EvaluationError, match="is of format 2, which is newer"):
        load_thresholds(tmp_path, KEY)
    whole["verify"]["point"]["threshold"] = "high"
    path.write_text(json.dumps(whole))
    with pytest.raises(EvaluationError, match=r"is damaged at verify.point.threshold"):
        load_thresholds(tmp_path, KEY)
    path.write_text("{")
    save_thresholds(tmp_path, KEY, point(), SOURCE)  # what cannot be read is written anew
    assert load_thresholds(tmp_path, KEY).point("verify") == point()
