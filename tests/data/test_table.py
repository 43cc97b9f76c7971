from __future__ import annotations

import shutil

import numpy as np
import pandas as pd
import pytest

from proxemics.core.errors import DataError
from proxemics.data.table import check_table, fingerprint


def frame(**columns: object) -> pd.DataFrame:
    return pd.DataFrame({"path": ["/p/a.jpg", "/p/b.jpg"], "label": ["x", "y"], **columns})


def test_columns_are_completed_ordered_and_text() -> None:
    table = check_table(frame(extra=[1, 2], label=[7, 8], split=["Validation", "any"]).iloc[:, ::-1])
    assert list(table.columns[:4]) == ["path", "label", "domain", "split"]
    assert table["label"].tolist() == ["7", "8"]
    assert table["split"].tolist() == ["val", ""]
    assert table["domain"].tolist() == ["", ""]
    assert table["extra"].tolist() == [1, 2]
    assert all(type(value) is str for name in ("path", "label", "domain", "split") for value in table[name])


def test_checking_twice_changes_nothing_and_the_input_is_left_alone() -> None:
    given = frame(split=["train", None])
    given.attrs["note"] = "kept"
    before = given.copy()
    once = check_table(given)
    pd.testing.assert_frame_equal(check_table(once), once)
    pd.testing.assert_frame_equal(given, before)
    assert once.attrs == {"note": "kept"}


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (frame(label=["x", ""]), r"The label in row 1 is empty"),
        (frame(label=["x", None]), r"The label in row 1 is empty"),
        (frame(label=["x", ["y", "z"]]), r"in row 1 is \['y', 'z'\]. Several labels for one picture are not supported"),
        (frame(label=["x", np.array([0, 1])]), r"in row 1 is array\(\[0, 1\]\). Several labels"),
        (frame(label=["['x', 'y']", "x"]), r"The label \"\['x', 'y'\]\" in row 0 holds several labels"),
        (frame(split=["train", "trian"]), r"The split 'trian' in row 1 is unknown. Did you mean 'train'\?"),
        (frame(path=["/p/a.jpg", "b.jpg"]), r"The path 'b.jpg' in row 1 is relative"),
        (frame(path=["/p/a.jpg", None]), r"The path in row 1 is (nan|None)"),
        (
            frame(path=["/p/a.jpg", "/p/a.jpg"]),
            r"/p/a.jpg has two labels \('x' and 'y'\); 1 paths are listed more than once",
        ),
        (frame().iloc[:0], "The table has no rows"),
        (
            frame().rename(columns={"label": "lable"}),
            r"has no column 'label'; it has path, lable. Did you mean 'lable'\?",
        ),
        (
            frame(label=pd.Series(["x", "ab\udce4"], dtype="object")),
            r"The label 'ab\\udce4' in row 1 is not valid Unicode",
        ),
    ],
)
def test_unusable_tables(bad: pd.DataFrame, words: str) -> None:
    """user-pains 2, 7."""
    with pytest.raises(DataError, match=words):
        check_table(bad)


def test_labels_joined_by_a_sign_are_refused_only_if_the_parts_are_labels() -> None:
    """user-pains 7: 'cat;dog' next to 'cat' and 'dog' is two labels; 'AC|DC' alone is a name."""
    paths = ["/1", "/2", "/3"]
    assert check_table(pd.DataFrame({"path": paths, "label": ["AC|DC", "cat", "dog"]}))["label"][0] == "AC|DC"
    with pytest.raises(DataError, match=r"The label 'cat;dog' in row 2 holds several labels"):
        check_table(pd.DataFrame({"path": paths, "label": ["cat", "dog", "cat;dog"]}))


def test_one_path_in_two_splits_is_said_as_such() -> None:
    bad = pd.DataFrame({"path": ["/a", "/a"], "label": ["x", "x"], "split": ["train", "test"]})
    with pytest.raises(DataError, match=r"/a is in two splits \('train' and 'test'\)"):
        check_table(bad)


def test_fingerprint_follows_the_content_and_not_the_place(tmp_path) -> None:
    """user-pains 58: a result file can name the data it was made with."""
    for name in ("one/a.jpg", "one/b.jpg", "two/c.jpg"):
        (tmp_path / "old" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "old" / name).write_bytes(name.encode())
    shutil.copytree(tmp_path / "old", tmp_path / "new")

    def table(root: str) -> pd.DataFrame:
        paths = sorted(str(p) for p in (tmp_path / root).rglob("*.jpg"))
        return check_table(pd.DataFrame({"path": paths, "label": [p.split("/")[-2] for p in paths]}))

    old = fingerprint(table("old"))
    assert len(old) == 64
    assert fingerprint(table("new")) == old
    assert fingerprint(table("old").sample(frac=1, random_state=1)) == old
    for column in ("label", "domain", "split"):
        changed = table("old")
        changed.loc[1, column] = "test"
        assert fingerprint(changed) != old
    (tmp_path / "old/one/a.jpg").write_bytes(b"longer than before")
    assert fingerprint(table("old")) != old
    (tmp_path / "new/one/a.jpg").rename(tmp_path / "new/one/renamed.jpg")
    assert fingerprint(table("new")) != old
    gone = table("new")
    (tmp_path / "new/two/c.jpg").unlink()
    with pytest.raises(DataError, match=r"Cannot read .*c.jpg: No such file"):
        fingerprint(gone)
