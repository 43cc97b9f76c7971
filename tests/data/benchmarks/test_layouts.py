"""Every benchmark in its exact layout, and what each defect is told as."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from proxemics.core.errors import DataError
from proxemics.data.benchmarks import BENCHMARKS, find_benchmark
from proxemics.data.benchmarks.cars import load_cars
from proxemics.data.benchmarks.cub import load_cub
from proxemics.data.benchmarks.domainnet import UCDR_TEST, load_domainnet
from proxemics.data.benchmarks.inshop import load_inshop
from proxemics.data.benchmarks.layout import check_numbers
from proxemics.data.benchmarks.office_home import load_office_home
from proxemics.data.benchmarks.pacs import load_pacs
from proxemics.data.benchmarks.release import Expected, Part, class_list
from proxemics.data.splits import check_leaks
from proxemics.evaluation.protocols import query_gallery

Trees = dict[str, Callable[[Path], Expected]]
NAMES = [*BENCHMARKS, "cars196-pooled"]


def swap(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_the_exact_layout_passes(trees: Trees, tmp_path: Path, name: str) -> None:
    expected = trees[name](tmp_path)
    load = find_benchmark(name.removesuffix("-pooled")).load
    frame = load(tmp_path, expected=expected)
    assert all(Path(path).is_file() for path in frame["path"])
    assert frame.attrs["benchmark"] == name.removesuffix("-pooled")
    assert {"train", "test"} <= set(frame["split"]) <= {"train", "test", ""}
    check_leaks(frame, class_disjoint=True)
    assert load(tmp_path, expected=None)["path"].tolist() == frame["path"].tolist()


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_count_is_told(trees: Trees, tmp_path: Path, name: str) -> None:
    expected = trees[name](tmp_path)
    part, want = next(iter(expected.parts.items()))
    wrong = Expected({**expected.parts, part: Part(want.images + 1000, want.classes)}, expected.names)
    load = find_benchmark(name.removesuffix("-pooled")).load
    with pytest.raises(DataError, match=rf"{part}: {want.images} pictures of .* release has {want.images + 1000:,} of"):
        load(tmp_path, expected=wrong)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_an_empty_folder_is_told_what_to_put_there(tmp_path: Path, name: str) -> None:
    release = find_benchmark(name).release
    with pytest.raises(DataError, match=r"is not complete in .*missing .*Put ") as caught:
        find_benchmark(name).load(tmp_path)
    assert release.where in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "picture"),
    [
        ("cub200", "CUB_200_2011/images/002.Ani/Ani_1.jpg"),
        ("cars196", "cars_test/00002.jpg"),
        ("cars196-pooled", "car_ims/000003.jpg"),
        ("sop", "Stanford_Online_Products/bicycle_final/4_1.JPG"),
        ("inshop", "Img/img/WOMEN/Dresses/id_00000002/00_1_front.jpg"),
        ("domainnet", "real/cat/real_002_000002.jpg"),
        ("inaturalist2018", "train_val2018/Aves/1/test0.jpg"),
    ],
)
def test_a_missing_picture_is_named(trees: Trees, tmp_path: Path, name: str, picture: str) -> None:
    expected = trees[name](tmp_path)
    (tmp_path / picture).unlink()
    with pytest.raises(DataError, match=rf"1 listed pictures are missing, first .*{picture}"):
        find_benchmark(name.removesuffix("-pooled")).load(tmp_path, expected=expected)


@pytest.mark.parametrize(
    ("name", "picture"),
    [("pacs", "kfold/sketch/horse/pic_001.jpg"), ("office-home", "OfficeHomeDataset_10072016/Art/Bed/00001.jpg")],
)
def test_a_missing_picture_without_a_list_is_a_wrong_count(
    trees: Trees, tmp_path: Path, name: str, picture: str
) -> None:
    expected = trees[name](tmp_path)
    (tmp_path / picture).unlink()
    with pytest.raises(DataError, match="the official release has"):
        find_benchmark(name).load(tmp_path, expected=expected)


@pytest.mark.parametrize(
    ("name", "file", "old", "new", "message"),
    [
        (
            "sop",
            "Stanford_Online_Products/Ebay_test.txt",
            "5 3 1 bicycle_final/3_0.JPG",
            "5 2 1 bicycle_final/3_0.JPG",
            "1 of the class values are in both train and test, first '2'",
        ),
        (
            "inshop",
            "Eval/list_eval_partition.txt",
            "id_00000002 query",
            "id_00000001 query",
            "in both train and test, first 'id_00000001'",
        ),
        (
            "inaturalist2018",
            "Inat_dataset_splits/Inaturalist_test_set1.txt",
            "train_val2018/Aves/1/test0.jpg",
            "train_val2018/Aves/2/train0.jpg",
            "in both train and test, first '2'",
        ),
        (
            "domainnet",
            "real_test.txt",
            "real/ant/real_000_000002.jpg",
            "real/ant/real_000_000001.jpg",
            "path values are in both train and test",
        ),
    ],
)
def test_an_overlap_is_told(
    trees: Trees, tmp_path: Path, name: str, file: str, old: str, new: str, message: str
) -> None:
    expected = trees[name](tmp_path)
    swap(tmp_path / file, old, new)
    with pytest.raises(DataError, match=message):
        find_benchmark(name).load(tmp_path, expected=expected)


def test_class_numbers_from_the_wrong_end_are_told(trees: Trees, tmp_path: Path) -> None:
    expected = trees["domainnet"](tmp_path / "domainnet")
    path = tmp_path / "domainnet/real_train.txt"
    for number in (2, 1, 0):
        swap(path, f".jpg {number}\n", f".jpg {number + 1}\n")
    with pytest.raises(
        DataError, match=r"real_train.txt are 1-based \(1..3\); the official file counts from 0 \(0..2\)"
    ):
        load_domainnet(tmp_path / "domainnet", expected=expected)

    expected = trees["pacs"](tmp_path / "pacs")
    path = tmp_path / "pacs/splits/photo_test_kfold.txt"
    for number in range(1, 8):
        swap(path, f".jpg {number}\n", f".jpg {number - 1}\n")
    with pytest.raises(DataError, match=r"photo_test_kfold.txt are 0-based \(0..6\); the official file counts from 1"):
        load_pacs(tmp_path / "pacs", expected=expected)

    expected = trees["cub200"](tmp_path / "cub")
    path = tmp_path / "cub/CUB_200_2011/image_class_labels.txt"
    path.write_text("".join(f"{k} {(k - 1) // 2}\n" for k in range(1, 9)))
    with pytest.raises(DataError, match=r"image_class_labels.txt are 0-based \(0..3\)"):
        load_cub(tmp_path / "cub", expected=expected)


def test_cars_without_scipy_names_the_extra(trees: Trees, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = trees["cars196"](tmp_path / "cars")
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    with pytest.raises(DataError, match=r"Cars-196 needs SciPy .* pip install \"proxemics\[train\]\""):
        load_cars(tmp_path / "cars", expected=expected)


def test_the_other_lists_and_annotations_counted_from_the_wrong_end_are_told(trees: Trees, tmp_path: Path) -> None:
    from scipy.io import loadmat, savemat

    expected = trees["sop"](tmp_path / "sop")
    for part, classes in (("train", (1, 2)), ("test", (3, 4))):
        for number in classes:
            for picture in (0, 1):
                path = tmp_path / f"sop/Stanford_Online_Products/Ebay_{part}.txt"
                swap(
                    path,
                    f" {number} 1 bicycle_final/{number}_{picture}",
                    f" {number - 1} 1 bicycle_final/{number}_{picture}",
                )
    with pytest.raises(
        DataError, match=r"Ebay_test.txt are 0-based \(0..3\); the official file counts from 1 \(1..4\)"
    ):
        find_benchmark("sop").load(tmp_path / "sop", expected=expected)

    expected = trees["inaturalist2018"](tmp_path / "inat")
    for part, classes in (("train", (2, 0)), ("test", (1,))):
        path = tmp_path / f"inat/Inat_dataset_splits/Inaturalist_{part}_set1.txt"
        for number in classes:
            path.write_text(path.read_text().replace(f"/Aves/{number}/", f"/Aves/{number + 1}/"))
    with pytest.raises(DataError, match=r"Inat_dataset_splits are 1-based \(1..3\); the official file counts from 0"):
        find_benchmark("inaturalist2018").load(tmp_path / "inat", expected=expected)

    expected = trees["cars196"](tmp_path / "cars")
    for place in ("devkit/cars_train_annos.mat", "cars_test_annos_withlabels.mat"):
        annotations = loadmat(tmp_path / "cars" / place)["annotations"]
        for row in annotations[0]:
            row["class"] = row["class"] - 1
        savemat(tmp_path / "cars" / place, {"annotations": annotations})
    with pytest.raises(DataError, match=r"the annotations are 0-based \(0..1\); the official file counts from 1"):
        load_cars(tmp_path / "cars", expected=expected)


def test_pictures_in_two_lists_of_pacs_are_told(trees: Trees, tmp_path: Path) -> None:
    """User-pains 60: published copies of the lists share pictures between train and crossval; test holds both."""
    expected = trees["pacs"](tmp_path)
    rows = (tmp_path / "splits/sketch_test_kfold.txt").read_text().splitlines()
    (tmp_path / "splits/sketch_train_kfold.txt").write_text("\n".join(rows[:4]))
    (tmp_path / "splits/sketch_crossval_kfold.txt").write_text("\n".join(rows[4:]))
    assert len(load_pacs(tmp_path, expected=expected)) == 28
    (tmp_path / "splits/sketch_crossval_kfold.txt").write_text("\n".join(rows[3:]))
    words = (
        r"1 pictures are in both sketch_train_kfold.txt and sketch_crossval_kfold.txt .*first sketch/guitar/pic_001.jpg"
    )
    with pytest.raises(DataError, match=words):
        load_pacs(tmp_path, expected=expected)


@pytest.mark.parametrize("name", NAMES)
def test_an_incomplete_tree_names_what_is_missing(trees: Trees, tmp_path: Path, name: str) -> None:
    """Each file or folder that a release must have, taken away alone, is named with what to put where."""
    expected = trees[name](tmp_path)
    benchmark = find_benchmark(name.removesuffix("-pooled"))
    needed = ("car_ims", "cars_annos.mat") if name == "cars196-pooled" else benchmark.release.needed
    base = benchmark.load(tmp_path, expected=expected).attrs["root"]
    for entry in needed:
        place = Path(base) / entry
        if not place.exists():  # one class folder stands for all in the tiny tree
            continue
        aside = tmp_path / "aside"
        place.rename(aside)
        with pytest.raises(DataError, match=r"is not complete in .*: missing ") as caught:
            benchmark.load(tmp_path, expected=expected)
        if name != "cars196-pooled":
            assert entry in str(caught.value)
        assert benchmark.release.where in str(caught.value)
        aside.rename(place)


def test_numbers_out_of_range_are_told() -> None:
    with pytest.raises(DataError, match=r"run 0..7; the official ones run 0..4"):
        check_numbers([0, 7], first=0, count=5, what="list.txt")


def test_a_wrong_class_list_is_told(trees: Trees, tmp_path: Path) -> None:
    trees["cub200"](tmp_path)
    with pytest.raises(DataError, match=r"not the official one: 200 absent \(first '001.*4 unknown \(first '001.Alb"):
        load_cub(tmp_path)
    trees["pacs"](tmp_path)
    (tmp_path / "kfold/photo/dog").rename(tmp_path / "kfold/photo/hound")
    with pytest.raises(DataError, match=r"1 unknown \(first 'hound'\)"):
        load_pacs(tmp_path)


def test_files_that_do_not_belong_together_are_told(trees: Trees, tmp_path: Path) -> None:
    expected = trees["cub200"](tmp_path)
    swap(tmp_path / "CUB_200_2011/image_class_labels.txt", "1 1\n", "1 2\n")
    with pytest.raises(DataError, match="lies in another class's folder"):
        load_cub(tmp_path, expected=expected)
    expected = trees["inshop"](tmp_path)
    swap(tmp_path / "Eval/list_eval_partition.txt", "5\n", "52712\n")
    with pytest.raises(DataError, match="says 52712 pictures and 5 follow"):
        load_inshop(tmp_path, expected=expected)


def test_a_sop_class_of_one_test_picture_is_told(trees: Trees, tmp_path: Path) -> None:
    expected = trees["sop"](tmp_path)
    swap(tmp_path / "Stanford_Online_Products/Ebay_test.txt", "8 4 1 bicycle_final/4_1.JPG\n", "")
    with pytest.raises(DataError, match="test class 4 has one picture"):
        find_benchmark("sop").load(tmp_path, expected=None)
    with pytest.raises(DataError, match="test: 3 pictures"):
        find_benchmark("sop").load(tmp_path, expected=expected)


def test_test_annotations_without_classes_are_told(trees: Trees, tmp_path: Path) -> None:
    from scipy.io import savemat

    expected = trees["cars196"](tmp_path)
    savemat(tmp_path / "cars_test_annos_withlabels.mat", {"annotations": [{"fname": "00001.jpg", "bbox_x1": 1}] * 2})
    with pytest.raises(DataError, match=r"cars_test_annos\.mat is without labels"):
        load_cars(tmp_path, expected=expected)
    (tmp_path / "devkit/cars_meta.mat").write_bytes(b"not MATLAB")
    with pytest.raises(DataError, match="not a MATLAB file"):
        load_cars(tmp_path, expected=expected)


def test_inshop_works_with_the_query_gallery_protocol(trees: Trees, tmp_path: Path) -> None:
    frame = load_inshop(tmp_path, expected=trees["inshop"](tmp_path))
    assert frame["role"].tolist() == ["", "", "query", "gallery", "gallery"]
    table = {name: frame[name].tolist() for name in ("label", "role")}
    query_gallery(table, column="role")
    swap(tmp_path / "Eval/list_eval_partition.txt", "id_00000002 gallery", "id_00000003 gallery")
    with pytest.raises(DataError, match="1 query items have no gallery picture, first id_00000002"):
        load_inshop(tmp_path, expected=None)


def test_a_source_domain_leaves_nothing_of_it_to_learn_elsewhere(trees: Trees, tmp_path: Path) -> None:
    expected = trees["office-home"](tmp_path)
    frame = load_office_home(tmp_path, expected=expected)
    train, test = (frame[frame["split"] == name] for name in ("train", "test"))
    assert set(train["domain"]) == {"Real World"}
    assert sorted(set(train["label"])) == ["Bed", "Bike"]
    assert sorted(set(test["label"])) == ["Bottle", "TV"]
    assert set(test["domain"]) == set(expected.parts)
    assert len(load_office_home(tmp_path, source=None, expected=expected).query("split == ''")) == 0
    with pytest.raises(DataError, match=r"Unknown source domain 'Arts'. Did you mean 'Art'\?"):
        load_office_home(tmp_path, source="Arts", expected=expected)
    (tmp_path / "OfficeHomeDataset_10072016/Real World").rename(tmp_path / "OfficeHomeDataset_10072016/RealWorld")
    assert set(load_office_home(tmp_path, expected=expected)["domain"]) == set(expected.parts)
    (tmp_path / "OfficeHomeDataset_10072016/RealWorld").rename(tmp_path / "OfficeHomeDataset_10072016/Photos")
    with pytest.raises(DataError, match=r"Office-Home is not complete in .*: missing Real World"):
        load_office_home(tmp_path, expected=expected)


def test_official_numbers_add_up() -> None:
    def total(name: str) -> tuple[int, int]:
        parts = BENCHMARKS[name].release.expected.parts.values()
        return sum(part.images for part in parts), sum(part.classes for part in parts)

    assert total("cub200") == (11788, 200)
    assert total("cars196") == (16185, 196)
    assert total("sop") == (120053, 22634)
    assert total("inshop")[0] == 52712
    assert total("inaturalist2018") == (437513 + 24426, 8142)
    assert [total(name)[0] for name in ("pacs", "office-home", "domainnet")] == [9991, 15588, 586575]
    assert [len(class_list(name)) for name in ("cub200", "cars196", "office_home", "domainnet")] == [200, 196, 65, 345]
    assert len(UCDR_TEST) == 45
    assert set(UCDR_TEST) < set(class_list("domainnet"))
    assert find_benchmark("domainnet").release.expected.names == class_list("domainnet")
