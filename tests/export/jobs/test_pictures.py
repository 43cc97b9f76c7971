"""What a source holds: ids, labels and places of folders, tables and Parquet files with pictures inside."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from proxemics.core.errors import DataError
from proxemics.export.jobs.pictures import open_pictures
from proxemics.export.jobs.places import PlaceReader


def test_a_folder_of_class_folders(photos: Path) -> None:
    found = open_pictures(photos)
    assert found.frame.columns.to_list() == ["id", "path", "label", "domain"]
    assert found.frame["id"].to_list() == [
        f"{name}/{n}.{'jpg' if n % 2 else 'png'}" for name in ("ant", "bée", "cat") for n in range(7)
    ]
    assert found.frame["path"].iloc[0] == str(photos / "ant" / "0.png")
    assert found.frame["label"].value_counts().to_dict() == {"ant": 7, "bée": 7, "cat": 7}
    assert open_pictures(f"{photos}/").frame["id"].to_list() == found.frame["id"].to_list()


def test_a_folder_without_folders_has_no_labels(photos: Path) -> None:
    found = open_pictures(photos / "ant")
    assert found.frame["id"].to_list()[0] == "0.png"
    assert set(found.frame["label"]) == {""}


def test_a_table_with_ids_and_further_columns(photos: Path) -> None:
    rows = {"path": ["ant/0.png", "cat/1.jpg"], "label": ["a", ""], "id": ["007", "x/y"], "year": ["1999", "2001"]}
    pd.DataFrame(rows).to_csv(photos / "t.csv", index=False)
    found = open_pictures(photos / "t.csv", keep=["year"])
    assert found.frame.drop(columns="path").to_dict("list") == {
        "id": ["007", "x/y"],
        "label": ["a", ""],
        "domain": ["", ""],
        "year": ["1999", "2001"],
    }
    with pytest.raises(DataError, match=r"--keep yaer: there is no such column\. Did you mean 'year'\?"):
        open_pictures(photos / "t.csv", keep=["yaer"])
    assert len(open_pictures(photos / "t.csv", where={"year": "2001"})) == 1


def test_a_table_needs_no_labels(photos: Path) -> None:
    pd.DataFrame({"path": ["ant/0.png"], "season": ["spring"]}).to_parquet(photos / "t.parquet")
    found = open_pictures(photos / "t.parquet", domain="season", keep=["split"])
    assert found.frame.drop(columns="path").to_dict("list") == {
        "id": ["ant/0.png"],
        "label": [""],
        "domain": ["spring"],
        "split": [""],
    }


def test_numbers_stay_numbers(photos: Path) -> None:
    pd.DataFrame({"path": ["ant/0.png"], "year": [1999], "id": [12]}).to_parquet(photos / "t.parquet")
    found = open_pictures(photos / "t.parquet", keep=["year"]).frame
    assert (found["year"].dtype.kind, found["id"].to_list()) == ("i", ["12"])


@pytest.mark.parametrize(
    ("ids", "words"), [(["a", "a"], "the id 'a' stands in several rows"), (["a", ""], "row 1 has an empty id")]
)
def test_ids_name_rows(photos: Path, ids: list[str], words: str) -> None:
    pd.DataFrame({"path": ["ant/0.png", "ant/1.jpg"], "id": ids}).to_csv(photos / "t.csv", index=False)
    with pytest.raises(DataError, match=words):
        open_pictures(photos / "t.csv")


def test_absent_files_stop_at_once_or_are_left_to_the_job(photos: Path) -> None:
    pd.DataFrame({"path": ["ant/0.png", "ant/gone.png"]}).to_csv(photos / "t.csv", index=False)
    with pytest.raises(DataError, match="1 of 2 pictures are missing"):
        open_pictures(photos / "t.csv")
    found = open_pictures(photos / "t.csv", on_error="skip")
    assert len(found) == 2
    assert found.stamps[1] == "absent"


def test_a_path_may_not_leave_the_table(photos: Path) -> None:
    pd.DataFrame({"path": ["../photos/ant/0.png", "../../etc/passwd.png"]}).to_csv(photos / "t.csv", index=False)
    with pytest.raises(DataError, match="leaves the root"):
        open_pictures(photos / "t.csv")


def test_no_such_source(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No file or folder"):
        open_pictures(tmp_path / "nowhere")


@pytest.mark.parametrize("struct", [True, False])
def test_parquet_with_the_pictures_inside(photos: Path, struct: bool) -> None:
    files = sorted((photos / "ant").iterdir())
    data = [file.read_bytes() for file in files]
    images = [{"bytes": one, "path": None} for one in data] if struct else data
    table = pa.table({"image": images, "label": pa.array([1] * len(files), pa.int64())})
    pq.write_table(table, photos / "inside.parquet", row_group_size=3)
    found = open_pictures(photos / "inside.parquet")
    assert found.frame["id"].to_list() == [str(number) for number in range(7)]
    assert set(found.frame["label"]) == {"1"}
    assert found.frame["path"].iloc[6].endswith("inside.parquet!/6")
    reader = PlaceReader()
    order = [6, 0, 3, 1, 5, 2, 4]  # across row groups, and back
    assert [reader.read(found.places[row]) for row in order] == [data[row] for row in order]
    assert len(open_pictures(photos / "inside.parquet", where={"label": "1"})) == 7


def test_a_stamp_changes_with_the_file(photos: Path) -> None:
    before = open_pictures(photos).stamps
    Image.new("RGB", (9, 9)).save(photos / "ant" / "0.png")
    after = open_pictures(photos).stamps
    assert [one == other for one, other in zip(before, after, strict=True)] == [False] + [True] * 20
