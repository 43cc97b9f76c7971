from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from proxemics.core.errors import DataError, ProxemicsError
from proxemics.data.labels import LabelMap, label_text


def test_names_are_sorted_and_positions_are_ids() -> None:
    """user-pains 2: text labels work."""
    labels = LabelMap.fit(["dog", "cat", "dog", "axolotl"])
    assert labels.names == ("axolotl", "cat", "dog")
    ids = labels.encode(["cat", "dog", "cat"])
    assert ids.dtype == np.int64
    assert ids.tolist() == [1, 2, 1]
    assert labels.decode(ids) == ["cat", "dog", "cat"]
    assert len(labels) == 3
    assert "cat" in labels


@pytest.mark.parametrize(
    "labels", [[3, 7, 1000], np.array([3, 7, 1000]), pd.Series([3.0, 7.0, 1000.0]), ["3", "7", "1000"]]
)
def test_gaps_and_kinds_of_numbers_do_not_matter(labels: object) -> None:
    """user-pains 4: labels that are not 0..C-1."""
    fitted = LabelMap.fit(labels)
    assert fitted.names == ("1000", "3", "7")
    assert fitted.encode([7, 3]).tolist() == [2, 1]


def test_one_based_labels() -> None:
    """user-pains 4: PACS lists with labels 1..7."""
    fitted = LabelMap.fit(np.arange(1, 8))
    assert fitted.encode(np.arange(1, 8)).tolist() == list(range(7))


def test_two_level_text_labels_stay_apart() -> None:
    """user-pains 3."""
    assert LabelMap.fit(["A", "A.1", "A.10"]).encode(["A.1", "A"]).tolist() == [1, 0]


def test_unseen_label_is_named_with_its_row_and_the_nearest_name() -> None:
    """user-pains 4."""
    labels = LabelMap.fit(["sparrow", "swallow"])
    with pytest.raises(
        DataError, match=r"Label 'sparow' \(row 1\) is not among the 2 known classes. Did you mean 'sparrow'\?"
    ):
        labels.encode(["swallow", "sparow"])


def test_unicode_names_survive_the_file(tmp_path) -> None:
    labels = LabelMap.fit(["Grünspecht", "啄木鸟", "a/b", " x"])
    labels.save(tmp_path / "labels.json")
    assert LabelMap.load(tmp_path / "labels.json") == labels
    assert json.loads((tmp_path / "labels.json").read_text(encoding="utf-8"))["schema"] == 1


@pytest.mark.parametrize("content", ['["a"]', '{"names": "abc"}', '{"names": [1]}', "{}"])
def test_other_json_is_refused(tmp_path, content: str) -> None:
    file = tmp_path / "labels.json"
    file.write_text(content)
    with pytest.raises(DataError, match=r"is not a label map"):
        LabelMap.load(file)


def test_missing_file() -> None:
    with pytest.raises(ProxemicsError, match=r"No file /nowhere/labels.json"):
        LabelMap.load("/nowhere/labels.json")


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (["a", ""], r"The label in row 1 is empty"),
        (["a", None], r"The label in row 1 is None \(NoneType\)"),
        (["a", 1.5], r"The label in row 1 is 1.5 \(float\)"),
        (["a", float("nan")], r"The label in row 1 is nan"),
        ([True, False], r"The label in row 0 is True, a truth value"),
        (
            ["a", ["b", "c"]],
            r"The label in row 1 is \['b', 'c'\]. Several labels for one picture are not supported, because",
        ),
        ([], "There is no label"),
        ("cat", r"Got the single text 'cat' where a list of labels is expected"),
        (np.array([[0, 1], [1, 1]]), r"Got labels of shape \(2, 2\) where \(N,\) is expected"),
    ],
)
def test_unusable_labels(bad: object, words: str) -> None:
    """user-pains 7: a label matrix or a cell with two labels gets a clear answer."""
    with pytest.raises(DataError, match=words):
        LabelMap.fit(bad)


def test_ids_outside_the_map() -> None:
    with pytest.raises(DataError, match=r"Class number -1 \(row 1\) is outside 0..1"):
        LabelMap.fit(["a", "b"]).decode([0, -1])


def test_twice_the_same_name() -> None:
    with pytest.raises(DataError, match=r"The class name 'a' appears twice"):
        LabelMap(("a", "b", "a"))


def test_numpy_scalars_are_text() -> None:
    assert [label_text(v) for v in (np.int32(4), np.float64(4), np.str_("x"))] == ["4", "4", "x"]
