from __future__ import annotations

import os
import warnings
from pathlib import Path

import pandas as pd
import pytest

from proxemics.core.errors import DataError
from proxemics.data import sources
from proxemics.data.folders import FolderScan, scan_folder
from proxemics.data.sources import load_table


def put(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(name.encode())
    return root


def places(table: pd.DataFrame, root: Path) -> dict[str, str]:
    return {os.path.relpath(path, root): label for path, label in zip(table["path"], table["label"], strict=True)}


# Folders


def test_first_level_is_the_class_and_clutter_is_skipped(tmp_path) -> None:
    """user-pains 70: hidden files, empty class folder, nested folders, upper-case extensions, foreign files."""
    put(
        tmp_path,
        "Grünspecht/a.jpg",
        "Grünspecht/deep/er/b.JPG",
        "cat/c.Png",
        "cat/.DS_Store",
        "cat/Thumbs.db",
        "cat/notes.txt",
    )
    put(tmp_path, ".git/x.jpg", "cat/.hidden.jpg", "__MACOSX/cat/c.png", "desktop.ini")
    (tmp_path / "empty").mkdir()
    table = load_table(tmp_path)
    assert places(table, tmp_path) == {
        "Grünspecht/a.jpg": "Grünspecht",
        "Grünspecht/deep/er/b.JPG": "Grünspecht",
        "cat/c.Png": "cat",
    }
    assert set(table["split"]) == {""}


def test_link_loops_end_and_links_between_classes_are_followed(tmp_path) -> None:
    """user-pains 70: symlink loop."""
    put(tmp_path, "cat/a.jpg", "dog/b.jpg")
    (tmp_path / "cat" / "again").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "cat" / "self").symlink_to(tmp_path / "cat", target_is_directory=True)
    (tmp_path / "puppy").symlink_to(tmp_path / "dog", target_is_directory=True)
    assert places(load_table(tmp_path), tmp_path) == {"cat/a.jpg": "cat", "dog/b.jpg": "dog", "puppy/b.jpg": "puppy"}
    assert scan_folder(tmp_path).loops == ["cat/again", "cat/self"]


def test_broken_links_are_reported_as_missing(tmp_path) -> None:
    put(tmp_path, "cat/a.jpg")
    (tmp_path / "cat" / "b.jpg").symlink_to(tmp_path / "gone.jpg")
    with pytest.raises(DataError, match=r"1 of 2 pictures are missing, first .*cat/b.jpg"):
        load_table(tmp_path)


def test_train_val_test_folders_become_the_split(tmp_path) -> None:
    put(tmp_path, "train/cat/a.jpg", "Valid/dog/b.jpg", "test/emu/c.jpg")
    table = load_table(tmp_path)
    assert dict(zip(table["label"], table["split"], strict=True)) == {"cat": "train", "dog": "val", "emu": "test"}


def test_a_class_called_train_stays_a_class(tmp_path) -> None:
    put(tmp_path / "one", "train/a.jpg", "plane/b.jpg")
    put(tmp_path / "two", "train/x/a.jpg", "plane/y/b.jpg")
    put(tmp_path / "three", "train/a.jpg", "test/b.jpg")
    for name in ("one", "two", "three"):
        assert "train" in set(load_table(tmp_path / name)["label"])


def test_empty_validation_folder_is_refused_at_the_start(tmp_path) -> None:
    """user-pains 65."""
    put(tmp_path, "train/cat/a.jpg", "test/emu/c.jpg")
    (tmp_path / "val").mkdir()
    with pytest.raises(DataError, match=r"The split folder .*val holds no picture. Fill it, or delete it"):
        load_table(tmp_path)


def test_domain_and_class_levels(tmp_path) -> None:
    put(tmp_path, "photo/cat/a.jpg", "sketch/cat/b.jpg")
    table = load_table(tmp_path, layout="domain/class")
    assert table[["domain", "label"]].values.tolist() == [["photo", "cat"], ["sketch", "cat"]]
    assert load_table(tmp_path)["label"].tolist() == ["photo", "sketch"]
    assert load_table(tmp_path, layout="domain/class", where={"domain": "sketch"})["path"].tolist() == [
        str(tmp_path / "sketch/cat/b.jpg")
    ]


def test_loose_pictures_are_left_out_with_a_warning(tmp_path) -> None:
    put(tmp_path, "cat/a.jpg", "loose.jpg")
    with pytest.warns(
        UserWarning, match=r"1 pictures in .* lie above the class folders and were left out, first loose.jpg"
    ):
        assert len(load_table(tmp_path)) == 1


def test_a_loose_picture_behind_many_others_is_found_at_once() -> None:
    many = [f"{number % 50}/{number}.jpg" for number in range(50_000)]
    scan = FolderScan("/data", pictures=[*many, "zz.jpg"])  # looking through all for each would take hours
    with pytest.warns(UserWarning, match="first zz.jpg"):
        assert len(sources._from_folder(scan, "class")) == len(many)


def test_flat_folders_have_no_labels(tmp_path) -> None:
    put(tmp_path, "a.jpg", "x/b.jpg")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_table(tmp_path, layout="flat")["label"].tolist() == ["", ""]


def test_unusable_folders(tmp_path) -> None:
    put(tmp_path / "text", "cat/a.txt")
    put(tmp_path / "loose", "a.jpg")
    put(tmp_path / "good", "cat/a.jpg")
    with pytest.raises(
        DataError, match=r"holds no picture. Pictures end in .avif, .bmp, .gif, .*put those of each class"
    ):
        load_table(tmp_path / "text")
    with pytest.raises(
        DataError, match=r"has pictures but not in the layout 'class', for example a.jpg. Put them in folders class/"
    ):
        load_table(tmp_path / "loose")
    with pytest.raises(
        DataError, match=r"No file or folder .*/god. Did you mean 'good'\? Give a folder of class folders or a .csv"
    ):
        load_table(tmp_path / "god")
    with pytest.raises(DataError, match=r"Unknown layout 'domain'. Allowed are class, domain/class, flat"):
        load_table(tmp_path / "good", layout="domain")
    with pytest.raises(DataError, match=r"A root is for tables only"):
        load_table(tmp_path / "good", root=tmp_path)


def test_a_folder_name_that_is_not_unicode(tmp_path) -> None:
    folder = os.fsencode(tmp_path) + b"/caf\xe9"
    os.mkdir(folder)  # noqa: PTH102  (bytes)
    with open(folder + b"/a.jpg", "wb") as file:
        file.write(b"x")
    with pytest.raises(DataError, match=r"The path '.*caf\\udce9/a.jpg' in row 0 is not valid Unicode"):
        load_table(tmp_path)


# Files and frames


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def birds(tmp_path) -> Path:
    put(tmp_path, "img/1.jpg", "img/2.jpg", "img/3.jpg")
    return write(
        tmp_path / "birds.csv",
        "path,species,genus,set,label\nimg/1.jpg,001,NA,train,p\nimg/2.jpg,002,NA,train,q\nimg/3.jpg,003,null,test,r\n",
    )


def test_the_column_to_learn_is_chosen_and_cells_stay_text(birds: Path) -> None:
    """user-pains 3: species and genus; and 'NA', 'null' and '001' are names, not gaps and numbers."""
    assert load_table(birds, label="species", split="set")["label"].tolist() == ["001", "002", "003"]
    table = load_table(birds, label="genus", split="set")
    assert table["label"].tolist() == ["NA", "NA", "null"]
    assert table["split"].tolist() == ["train", "train", "test"]
    assert table["label_original"].tolist() == ["p", "q", "r"]
    assert table["species"].tolist() == ["001", "002", "003"]
    assert table["path"].tolist()[0] == str(birds.parent / "img/1.jpg")


def test_tsv_parquet_frame_and_byte_order_mark_read_alike(birds: Path) -> None:
    expected = load_table(birds)
    text = birds.read_text()
    tsv = write(birds.with_suffix(".tsv"), "\ufeff" + text.replace(",", "\t"))
    pd.testing.assert_frame_equal(load_table(tsv), expected)
    frame = pd.read_csv(birds, dtype=str, keep_default_na=False)
    frame.to_parquet(birds.with_suffix(".parquet"))
    pd.testing.assert_frame_equal(load_table(birds.with_suffix(".parquet")), expected)
    pd.testing.assert_frame_equal(load_table(frame, root=birds.parent), expected)
    frame["path"] = [str(birds.parent / path) for path in frame["path"]]
    pd.testing.assert_frame_equal(load_table(frame), expected)
    pd.testing.assert_frame_equal(load_table(expected), expected)


def test_whole_number_labels_in_parquet_with_gaps_in_other_columns(tmp_path) -> None:
    """user-pains 4: a numeric column that pandas turned to floats."""
    put(tmp_path, "1.jpg", "2.jpg")
    pd.DataFrame({"path": ["1.jpg", "2.jpg"], "label": [3.0, 1000.0], "domain": ["a", None]}).to_parquet(
        tmp_path / "t.parquet"
    )
    table = load_table(tmp_path / "t.parquet")
    assert table["label"].tolist() == ["3", "1000"]
    assert table["domain"].tolist() == ["a", ""]
    assert load_table(tmp_path / "t.parquet", where={"label": "3", "domain": "a"})["label"].tolist() == ["3"]
    with pytest.raises(DataError, match=r"No row has domain = 'b'; values are \(none\), a"):
        load_table(tmp_path / "t.parquet", where={"domain": "b"})


def test_list_cells_in_parquet_are_several_labels(tmp_path) -> None:
    """user-pains 7."""
    put(tmp_path, "1.jpg")
    pd.DataFrame({"path": ["1.jpg"], "label": [["a", "b"]]}).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(
        DataError, match=r"in row 0 is array.*Several labels for one picture are not supported, because"
    ):
        load_table(tmp_path / "t.parquet")


def test_filters(birds: Path) -> None:
    assert load_table(birds, where={"set": "train", "species": "002"})["label"].tolist() == ["q"]
    assert load_table(birds, where={"species": ["001", "003"]})["label"].tolist() == ["p", "r"]
    with pytest.raises(
        DataError, match=r"The filter names the column 'sets', but there are path, species, .* Did you mean 'set'\?"
    ):
        load_table(birds, where={"sets": "train"})
    with pytest.raises(DataError, match=r"No row has set = 'trian'; values are test, train. Did you mean 'train'\?"):
        load_table(birds, where={"set": "trian"})


def test_absent_columns_name_the_nearest(birds: Path) -> None:
    with pytest.raises(
        DataError, match=r"birds.csv has no column 'specis'; it has path, species, .* Did you mean 'species'\?"
    ):
        load_table(birds, label="specis")
    with pytest.raises(DataError, match=r"has no column 'style'"):
        load_table(birds, domain="style")
    with pytest.raises(DataError, match=r"has no column 'file'"):
        load_table(birds, path="file")


def test_missing_files_are_counted_and_the_first_three_named(birds: Path) -> None:
    for name in ("1.jpg", "2.jpg", "3.jpg"):
        (birds.parent / "img" / name).unlink()
    with pytest.raises(
        DataError, match=r"3 of 3 pictures are missing, first \S+1.jpg, \S+2.jpg, \S+3.jpg. Check root="
    ) as error:
        load_table(birds)
    assert "\n" not in str(error.value)
    assert len(load_table(birds, strict=False)) == 3


@pytest.mark.parametrize("path", ["../secret.jpg", "img/../../secret.jpg", "/etc/passwd", "..\\secret.jpg", "."])
def test_paths_that_leave_the_root_are_refused_with_the_fix(birds: Path, path: str) -> None:
    put(birds.parent.parent, "secret.jpg")
    table = write(birds.parent / "evil.csv", f"path,label\n{path},a\n")
    with pytest.raises(DataError, match=r"in row 0, which leaves the root .* set data.root=\S+ \(root=... in Python\)"):
        load_table(table)


def test_a_root_with_a_longer_name_is_not_inside(tmp_path) -> None:
    put(tmp_path, "data/a.jpg", "data-private/b.jpg")
    table = write(tmp_path / "data/t.csv", "path,label\n../data-private/b.jpg,a\n")
    with pytest.raises(DataError, match=r"leaves the root"):
        load_table(table)
    other = write(tmp_path / "data/u.csv", "path,label\ndata-private/b.jpg,a\n")
    assert load_table(other, root=tmp_path)["path"].tolist() == [str(tmp_path / "data-private/b.jpg")]


def test_paths_written_on_windows_are_understood(birds: Path) -> None:
    table = write(birds.parent / "windows.csv", "path,label\nimg\\1.jpg,a\n")
    assert load_table(table)["path"].tolist() == [str(birds.parent / "img/1.jpg")]


def test_addresses_are_not_paths(birds: Path) -> None:
    table = write(birds.parent / "web.csv", "path,label\nhttps://example.org/1.jpg,a\n")
    with pytest.raises(
        DataError, match=r"names the address https://example.org/1.jpg in row 0. Download the pictures first"
    ):
        load_table(table)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("t.csv", b"", "Cannot read the table .*t.csv: No columns to parse"),
        ("t.csv", b"path,label\n\xff\xfe,x\n", "Cannot read the table .*t.csv: .*utf-8.* Save it as UTF-8"),
        ("t.csv", b'path,label\na,b,c,d\n"e', "Cannot read the table"),
        ("t.csv", b"path,label\n", "The table has no rows"),
        ("t.parquet", b"not parquet", "Cannot read the table .*t.parquet"),
        ("t.xlsx", b"", "the suffix '.xlsx' is not one of .csv, .tsv, .parquet"),
    ],
)
def test_unreadable_tables_are_one_line(tmp_path, name: str, content: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=words) as error:
        load_table(tmp_path / name)
    assert "\n" not in str(error.value)


@pytest.mark.data
def test_the_index_of_the_real_pictures(shared_data: Path) -> None:
    """Spec 1.1: CUB 100/100 classes, Cars 98/98, by column."""
    for name, train, test in (("cub200_2010", 100, 100), ("cars196", 98, 98), ("emoji", 806, 754)):
        table = load_table(shared_data / "index.csv", where={"dataset": name})
        classes = {split: set(table.loc[table["split"] == split, "label"]) for split in ("train", "test")}
        assert (len(classes["train"]), len(classes["test"])) == (train, test)
        assert not classes["train"] & classes["test"]
    pacs = load_table(shared_data / "index.csv", where={"dataset": "pacs"})
    assert set(pacs["split"]) == {""}
    folder = load_table(shared_data / "pacs", layout="domain/class")
    assert sorted(zip(folder["path"], folder["label"], folder["domain"], strict=True)) == sorted(
        zip(pacs["path"], pacs["label"], pacs["domain"], strict=True)
    )


# Hugging Face


def test_hugging_face_data_sets(tmp_path) -> None:
    datasets = pytest.importorskip("datasets")
    from PIL import Image

    put(tmp_path, "on_disk.jpg")
    Image.new("RGB", (4, 4), "red").save(tmp_path / "on_disk.jpg")
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=["cat", "dog"]),
            "site": datasets.Value("string"),
        }
    )
    pictures = [Image.new("RGB", (4, 4), (10 * i, 0, 0)) for i in range(3)]
    part = datasets.Dataset.from_dict(
        {"image": pictures, "label": [1, 0, 1], "site": ["a", "b", "b"]}, features=features
    )
    table = load_table(
        datasets.DatasetDict(train=part, test=part), cache=tmp_path / "c", where={"site": "b", "split": "train"}
    )
    assert table[["label", "split", "site"]].values.tolist() == [["cat", "train", "b"], ["dog", "train", "b"]]
    assert Image.open(table["path"][1]).getpixel((0, 0)) == (20, 0, 0)
    before = {path: Path(path).stat().st_mtime_ns for path in table["path"]}
    assert len(list((tmp_path / "c").rglob("*.png"))) == 2
    again = load_table(
        datasets.DatasetDict(train=part, test=part), cache=tmp_path / "c", where={"split": "train"}, label="site"
    )
    assert {path: Path(path).stat().st_mtime_ns for path in before} == before
    assert again["label"].tolist() == ["a", "b", "b"]
    with pytest.raises(
        DataError, match=r"Give a folder to write them to once: load_table\(dataset, cache='pictures'\)"
    ):
        load_table(part)
    with pytest.raises(DataError, match=r"needs exactly one image column; it has none among label, site"):
        load_table(part.remove_columns("image"))
    files = datasets.Dataset.from_dict({"image": [str(tmp_path / "on_disk.jpg")], "label": ["x"]})
    assert load_table(files.cast_column("image", datasets.Image()))["path"].tolist() == [str(tmp_path / "on_disk.jpg")]
