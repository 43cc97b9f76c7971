"""Enrolling, forgetting and looking up on disk, with an index kept in step."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from proxemics.core.config import make_config, save_config
from proxemics.core.errors import DataError, EvaluationError, ImageError, ProxemicsError, SearchError
from proxemics.evaluation.extract import extract_with_certainty
from proxemics.models.bundle import save_bundle
from proxemics.models.embedder import Embedder
from proxemics.search import Index, Items
from proxemics.search.classes import UNKNOWN, load_book
from proxemics.search.classes.calibration import Wanted, calibrate_model
from proxemics.search.classes.enrolment import enrol_folder, forget_classes, identify_pictures
from proxemics.search.classes.pictures import class_pictures, open_for_classes, picture_files
from proxemics.search.local.index import LocalIndex


def test_a_folder_is_a_class_and_class_folders_are_several(bundle: Path, many_classes: Path, model: Embedder) -> None:
    report = enrol_folder(bundle, many_classes / "class03", name="third")
    assert (report.enrolled.added, report.pictures, report.classes) == (("third",), 7, 1)
    assert (report.folder, report.weighting, report.rows, report.threshold) == (bundle, "equal", None, None)
    report = enrol_folder(bundle, many_classes)
    assert len(report.enrolled.added) == 36
    assert report.classes == 37
    book = load_book(bundle)
    units, _ = extract_with_certainty(model, sorted((many_classes / "class03").iterdir()))
    mean = units.astype(np.float64).sum(axis=0)
    for name in ("third", "class03"):
        np.testing.assert_allclose(book[name].centroid, mean / np.linalg.norm(mean), atol=1e-5)
    assert book["third"].count == 7


def test_more_pictures_and_beginning_anew(bundle: Path, many_classes: Path, tmp_path: Path) -> None:
    for part, names in (("one", ["0", "1"]), ("two", ["2"])):
        for name in names:
            (tmp_path / part).mkdir(exist_ok=True)
            shutil.copy(many_classes / "class05" / f"{name}.png", tmp_path / part)
    enrol_folder(bundle, tmp_path / "one", name="x")
    assert enrol_folder(bundle, tmp_path / "two", name="x").enrolled.extended == ("x",)
    assert load_book(bundle)["x"].count == 3
    assert enrol_folder(bundle, tmp_path / "two", name="x", replace=True).enrolled.added == ("x",)
    assert load_book(bundle)["x"].count == 1


def test_pictures_are_found_again_and_strangers_are_unknown(run_folder: Path, many_classes: Path) -> None:
    for number in (26, 27, 28, 29):
        enrol_folder(run_folder, many_classes / f"class{number}")
    strangers = [many_classes / f"class{number}" for number in (30, 31, 32)]
    known = [many_classes / f"class{number}" for number in (26, 27, 28, 29)]
    _, answers, used, _ = identify_pictures(run_folder, [*known, *strangers])
    assert used is None
    assert all(one.known for one in answers)  # nothing is calibrated, so everything gets a class
    point = calibrate_model(run_folder, Wanted(kind="identify", target=0.4, pictures=(5,))).point
    paths, answers, used, book = identify_pictures(run_folder, [*known, *strangers])
    assert used == point
    assert book.names == ["class26", "class27", "class28", "class29"]
    assert all(one.threshold == point.threshold for one in answers)
    own = np.array([Path(path).parent.name for path in paths])
    labels = np.array([one.label for one in answers])
    assert (labels[:28] == own[:28]).mean() > 0.5
    assert (labels[28:] == UNKNOWN).mean() > (labels[:28] == UNKNOWN).mean()
    everything = identify_pictures(run_folder, strangers, threshold=1.1)[1]
    assert all(one.label == UNKNOWN for one in everything)
    assert identify_pictures(run_folder, known[:1], threshold=0.5, by="vmf")[1][0].probability is not None


def test_the_index_follows(bundle: Path, many_classes: Path, tmp_path: Path) -> None:
    address, key = str(tmp_path / "index"), open_for_classes(bundle).key
    Index.create(address, key).close()
    assert enrol_folder(bundle, many_classes / "class01", index=address).rows == (7, 0)
    assert enrol_folder(bundle, many_classes / "class02", name="other", index=address).rows == (7, 0)
    assert enrol_folder(bundle, many_classes / "class01", index=address).rows == (0, 7)
    with Index.open(address, read_only=True) as index:
        assert index.count() == 14
        (row,) = index.get(["other/3.png"]).meta
        assert row["label"] == "other"
        assert Path(str(row["path"])).name == "3.png"
        vector = index.get(["other/3.png"]).vectors.copy()
    assert forget_classes(bundle, ["other"], index=address) == (["other"], 7)
    with Index.open(address, read_only=True) as index:
        assert index.count() == 7
        assert len(index.get(["other/3.png"])) == 0
        assert all(one["label"] == "class01" for items in index.scan() for one in items.meta)
    left = b"".join(path.read_bytes() for path in Path(address).rglob("*") if path.is_file())
    assert vector.tobytes() not in left  # compacted, not only marked


def test_replacing_takes_old_rows_out_of_the_index(bundle: Path, many_classes: Path, tmp_path: Path) -> None:
    address = str(tmp_path / "index")
    Index.create(address, open_for_classes(bundle).key).close()
    enrol_folder(bundle, many_classes / "class01", name="x", index=address)
    two = tmp_path / "two"
    two.mkdir()
    for name in ("0.png", "new.png"):
        shutil.copy(many_classes / "class02" / "0.png", two / name)
    assert enrol_folder(bundle, two, name="x", index=address, replace=True).rows == (1, 1)
    with Index.open(address, read_only=True) as index:
        assert sorted(one for items in index.scan() for one in items.ids) == ["x/0.png", "x/new.png"]


def test_rows_that_were_there_before_are_never_taken_out(bundle: Path, many_classes: Path, tmp_path: Path) -> None:
    address = str(tmp_path / "index")
    with Index.create(address, open_for_classes(bundle).key) as index:
        vectors = np.eye(9, index.manifest.key.dim)
        names = [f"old {number}" for number in range(8)]
        index.add(
            Items.make(
                [*names, "robin/3.png"], vectors, [{"label": "robin"}] * 8 + [{"label": "bird", "enrolled": "May"}]
            )
        )
    assert enrol_folder(bundle, many_classes / "class01", name="robin", index=address).rows == (6, 1)
    enrol_folder(bundle, many_classes / "class01", name="robin", index=address, replace=True)
    with Index.open(address, read_only=True) as index:
        assert index.count() == 15
        row = index.get(["robin/3.png"])
        assert row.meta == [{"label": "bird", "enrolled": "May"}]
        assert not np.allclose(row.vectors[0], vectors[8])
    assert forget_classes(bundle, ["robin"], index=address) == (["robin"], 6)
    with Index.open(address, read_only=True) as index:
        assert sorted(name for items in index.scan() for name in items.ids) == [*names, "robin/3.png"]


def test_a_class_called_none_has_no_rows_without_a_label(bundle: Path, many_classes: Path, tmp_path: Path) -> None:
    address = str(tmp_path / "index")
    with Index.create(address, open_for_classes(bundle).key) as index:
        vectors = np.eye(3, index.manifest.key.dim)
        index.add(Items.make(["a", "b", "c"], vectors, [{"label": None}, {}, {"label": True}]))
    for name in ("none", "true"):
        enrol_folder(bundle, many_classes / "class01", name=name, index=address)
        enrol_folder(bundle, many_classes / "class01", name=name, index=address, replace=True)
        assert forget_classes(bundle, [name], index=address) == ([name], 7)
    with Index.open(address, read_only=True) as index:
        assert index.get(["a", "b", "c"]).ids == ["a", "b", "c"]


def test_where_the_index_cannot_be_changed_the_class_stays(
    bundle: Path, many_classes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> int:
        raise SearchError("The disk is full.")

    address = str(tmp_path / "index")
    Index.create(address, open_for_classes(bundle).key).close()
    enrol_folder(bundle, many_classes / "class01", index=address)
    with monkeypatch.context() as broken:
        broken.setattr(LocalIndex, "remove", fails)
        with pytest.raises(SearchError, match="The disk is full"):
            forget_classes(bundle, ["class01"], index=address)
    assert forget_classes(bundle, ["class01"], index=address) == (["class01"], 7)


def test_a_threshold_is_a_number(bundle: Path, many_classes: Path) -> None:
    with pytest.raises(EvaluationError, match="a score is a cosine; give a number from -1 to 1"):
        identify_pictures(bundle, [many_classes / "class01"], threshold=float("nan"))


def test_an_index_of_another_model_is_refused_before_anything_changes(
    bundle: Path, many_classes: Path, tmp_path: Path
) -> None:
    address = str(tmp_path / "index")
    key = open_for_classes(bundle).key
    Index.create(address, key.model_copy(update={"model": "b" * 64})).close()
    with pytest.raises(SearchError, match="The index holds vectors of model bbbbbbbbbbbb"):
        enrol_folder(bundle, many_classes / "class01", index=address)
    assert not (bundle / "classes.safetensors").exists()
    enrol_folder(bundle, many_classes / "class01")
    with pytest.raises(SearchError, match="The index holds vectors of model bbbbbbbbbbbb"):
        forget_classes(bundle, ["class01"], index=address)
    assert load_book(bundle).names == ["class01"]


def test_a_book_of_its_own_place(bundle: Path, many_classes: Path, tmp_path: Path) -> None:
    place = tmp_path / "mine"
    enrol_folder(bundle, many_classes / "class01", book=place)
    assert not (bundle / "classes.json").exists()
    assert identify_pictures(bundle, [many_classes / "class01" / "0.png"], book=place)[1][0].label == "class01"
    assert forget_classes(bundle, ["class01"], book=place) == (["class01"], None)
    with pytest.raises(SearchError, match="No class 'class01' is enrolled"):
        forget_classes(bundle, ["class01"], book=place)
    with pytest.raises(SearchError, match="holds no enrolled classes"):
        forget_classes(bundle, ["class01"])


def test_classes_that_are_nearly_the_same_are_reported(run_folder: Path, many_classes: Path) -> None:
    enrol_folder(run_folder, many_classes / "class26", name="one")
    calibrate_model(run_folder, Wanted(kind="identify", target=0.4, pictures=(5,)))
    report = enrol_folder(run_folder, many_classes / "class26", name="two")
    assert report.enrolled.near[0][:2] == ("two", "one")
    assert report.enrolled.near[0][2] == pytest.approx(1)


def test_another_model_cannot_use_the_book_nor_the_thresholds(run_folder: Path, many_classes: Path) -> None:
    enrol_folder(run_folder, many_classes / "class26")
    calibrate_model(run_folder, Wanted(kind="identify", target=0.4, pictures=(5,)))
    kept = {name: (run_folder / "bundle" / name).read_bytes() for name in ("classes.safetensors", "thresholds.json")}
    shutil.rmtree(run_folder / "bundle")
    save_bundle(Embedder("test_resnet", dim=10, weights="none", size=32), run_folder / "bundle")
    for name, content in kept.items():
        (run_folder / "bundle" / name).write_bytes(content)
    with pytest.raises(SearchError, match="The class book holds vectors of model"):
        identify_pictures(run_folder, [many_classes])
    with pytest.raises(ProxemicsError, match="belongs to model"):
        enrol_folder(run_folder, many_classes / "class27")
    assert calibrate_model(run_folder, Wanted(kind="identify", target=0.4, pictures=(5,))).point.gallery == 13


def test_certain_pictures_weigh_more_where_that_is_asked_for(run_folder: Path, many_classes: Path) -> None:
    save_config(make_config({"data": {"workers": 0}, "methods": {"probabilistic": {}}}), run_folder / "config.yaml")
    assert enrol_folder(run_folder, many_classes / "class26", weighting="length").weighting == "length"
    assert enrol_folder(run_folder, many_classes / "class28").weighting == "length"  # as the book does
    book = load_book(run_folder / "bundle")
    _, lengths = extract_with_certainty(
        open_for_classes(run_folder).embedder, sorted((many_classes / "class26").iterdir())
    )
    assert book["class26"].weight == pytest.approx(lengths.sum(), rel=1e-4)
    with pytest.raises(SearchError, match="weighs pictures by length, and equal was asked for"):
        enrol_folder(run_folder, many_classes / "class27", weighting="equal")
    place = run_folder.parent / "equal"
    assert enrol_folder(run_folder, many_classes / "class27", weighting="equal", book=place).weighting == "equal"
    assert json.loads((place / "classes.json").read_text())["weighting"] == "equal"


def test_pictures_that_cannot_be_enrolled(bundle: Path, many_classes: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(DataError, match="holds no pictures"):
        class_pictures(empty)
    with pytest.raises(DataError, match=r"--name 'x' names one class, and .* holds class folders"):
        class_pictures(many_classes, "x")
    mixed = tmp_path / "mixed"
    shutil.copytree(many_classes / "class01", mixed / "class01")
    shutil.copy(many_classes / "class02" / "0.png", mixed)
    with pytest.raises(DataError, match="holds 1 loose pictures beside folders"):
        class_pictures(mixed)
    (mixed / "0.png").unlink()
    (mixed / "class01" / "broken.png").write_bytes(b"no picture")
    with pytest.raises(ImageError, match=r"broken\.png"):
        enrol_folder(bundle, mixed)
    assert not (bundle / "classes.safetensors").exists()
    with pytest.raises(DataError, match="No picture"):
        picture_files([tmp_path / "absent.png"])
    with pytest.raises(DataError, match="There is no picture to look up"):
        picture_files([empty])


def test_ids_are_those_of_an_index_built_from_the_folder_of_class_folders(many_classes: Path) -> None:
    assert class_pictures(many_classes)["id"].iloc[0] == "class00/0.png"
    assert class_pictures(many_classes / "class04")["id"].iloc[2] == "class04/2.png"
    assert class_pictures(many_classes / "class04", "dog")["id"].iloc[2] == "dog/2.png"
