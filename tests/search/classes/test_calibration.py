"""Calibrating a model on disk: on which pictures, on which never, and where the answer is written."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from proxemics.core.config import make_config, save_config
from proxemics.core.errors import DataError, EvaluationError
from proxemics.data.split_files import load_split, save_split
from proxemics.evaluation.extract import extract_embeddings
from proxemics.evaluation.threshold_file import load_thresholds
from proxemics.evaluation.thresholds import calibrate_pairs
from proxemics.models.embedder import Embedder
from proxemics.search.classes.calibration import Wanted, calibrate_model
from proxemics.search.classes.enrolment import enrol_folder, forget_classes
from proxemics.search.classes.pictures import open_for_classes

PAIRS = Wanted(kind="verify", target=0.05)
LOOKUP = Wanted(kind="identify", target=0.4, pictures=(1, 3))


def test_the_validation_classes_of_the_run(run_folder: Path, model: Embedder, many_classes: Path) -> None:
    found = calibrate_model(run_folder, PAIRS)
    paths = [one for number in range(12, 26) for one in sorted((many_classes / f"class{number}").iterdir())]
    labels = [one.parent.name for one in paths]
    alone = calibrate_pairs(extract_embeddings(model, paths), labels, target_fmr=0.05)
    assert found.point.threshold == pytest.approx(alone.threshold, abs=1e-5)
    assert (found.point.pictures, found.point.classes) == (98, 14)
    assert found.path == run_folder / "bundle" / "thresholds.json"
    assert (found.source.split, found.source.unseen) == ("val", True)
    assert len(found.source.fingerprint) == 64
    assert found.sentence == (
        "Calibrated on the validation classes of the run: 98 pictures of 14 classes, on which the epoch was chosen as "
        "well; the test classes were not looked at."
    )
    key = open_for_classes(run_folder).key
    assert load_thresholds(run_folder, key).point("verify") == found.point
    assert load_thresholds(run_folder / "bundle", key).verify.source == found.source


def test_the_bundle_of_a_run_knows_its_run(run_folder: Path) -> None:
    assert calibrate_model(run_folder / "bundle", PAIRS).point == calibrate_model(run_folder, PAIRS).point


def test_identification_takes_the_gallery_from_the_book(run_folder: Path, many_classes: Path) -> None:
    assert calibrate_model(run_folder, LOOKUP).point.gallery == 13
    for number in (30, 31, 32, 33, 34):
        enrol_folder(run_folder, many_classes / f"class{number}")
    found = calibrate_model(run_folder, LOOKUP)
    assert found.point.gallery == 5
    assert [one.pictures for one in found.point.by_count] == [1, 3]
    assert calibrate_model(run_folder, Wanted(kind="identify", target=0.4, gallery=3)).point.gallery == 3


def test_other_pictures(bundle: Path, many_classes: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has no validation classes beside it; name pictures .* with --data"):
        calibrate_model(bundle, PAIRS)
    found = calibrate_model(bundle, PAIRS, data=str(many_classes))
    assert (found.source.split, found.source.unseen, found.point.classes) == ("all", None, 36)
    assert found.sentence == f"Calibrated on 252 pictures of 36 classes of unknown origin, from {many_classes}."
    assert found.path == bundle / "thresholds.json"
    elsewhere = calibrate_model(bundle, PAIRS, data=str(many_classes), out=tmp_path / "other")
    assert elsewhere.path == tmp_path / "other" / "thresholds.json"
    assert elsewhere.point == found.point


def test_training_classes_and_test_pictures_are_refused(run_folder: Path, many_classes: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"12 of 36 classes have names of training classes \(class00, class01, class02"):
        calibrate_model(run_folder, PAIRS, data=str(many_classes))
    with pytest.raises(DataError, match="70 pictures are test pictures of the run"):
        calibrate_model(run_folder, PAIRS, data=str(many_classes), allow_seen=True)
    renamed = tmp_path / "renamed"
    for number in range(12):
        shutil.copytree(many_classes / f"class{number:02d}", renamed / f"other{number:02d}")
    found = calibrate_model(run_folder, PAIRS, data=str(renamed))
    assert found.source.unseen is True
    assert "that training did not see" in found.sentence
    shutil.move(renamed / "other00", renamed / "class00")
    assert calibrate_model(run_folder, PAIRS, data=str(renamed), allow_seen=True).source.unseen is False


def test_a_bundle_alone_knows_its_training_classes(run_folder: Path, many_classes: Path, tmp_path: Path) -> None:
    alone = tmp_path / "moved"
    shutil.copytree(run_folder / "bundle", alone)
    with pytest.raises(DataError, match="names of training classes"):
        calibrate_model(alone, PAIRS, data=str(many_classes))


def test_too_few_and_options_that_do_not_belong(run_folder: Path) -> None:
    with pytest.raises(EvaluationError, match="needs 300,000 pairs of different classes"):
        calibrate_model(run_folder, Wanted(kind="verify", target=1e-4))
    with pytest.raises(EvaluationError, match="needs 300 pictures, so that 30 false alarms"):
        calibrate_model(run_folder, Wanted(kind="identify", target=0.1))
    with pytest.raises(EvaluationError, match="use --per-class with --for verify"):
        calibrate_model(run_folder, Wanted(kind="identify", target=0.4, per_class=True))
    assert not (run_folder / "bundle" / "thresholds.json").exists()


def test_a_run_without_validation_classes(run_folder: Path) -> None:
    table = load_split(run_folder / "split.parquet")
    table["split"] = table["split"].replace("val", "train")
    save_split(table, run_folder / "split.parquet")
    with pytest.raises(DataError, match="was trained without validation classes"):
        calibrate_model(run_folder, PAIRS)


def test_where_the_book_weighs_by_length_the_templates_do(run_folder: Path, many_classes: Path) -> None:
    plain = calibrate_model(run_folder, LOOKUP).point
    config = make_config({"data": {"workers": 0}, "methods": {"probabilistic": {}}, "train": {"select": "last"}})
    save_config(config, run_folder / "config.yaml")
    enrol_folder(run_folder, many_classes / "class26", weighting="length")
    forget_classes(run_folder, ["class26"])
    found = calibrate_model(run_folder, LOOKUP)
    assert found.point.by_count[1].threshold != plain.by_count[1].threshold
    assert found.point.by_count[0].threshold == pytest.approx(plain.by_count[0].threshold)
    assert "epoch" not in found.sentence


def test_thresholds_by_class(run_folder: Path) -> None:
    found = calibrate_model(run_folder, Wanted(kind="verify", target=0.05, per_class=True)).point
    assert sorted(found.per_class) == [f"class{number}" for number in range(12, 26)]
    for one in found.per_class.values():
        assert (one.threshold == found.threshold) == (one.own_share == 0)
        assert one.negatives == 7 * 91
