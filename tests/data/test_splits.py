from __future__ import annotations

import os
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxemics.core.errors import DataError
from proxemics.data.sources import load_table
from proxemics.data.splits import check_leaks, load_split, make_split, save_split, split_summary


def table(classes: int | list[str], each: int = 4, **columns: object) -> pd.DataFrame:
    names = [f"class {i}" for i in range(classes)] if isinstance(classes, int) else classes
    rows = [(f"/p/{name}/{i}.jpg", name) for name in names for i in range(each)]
    return pd.DataFrame(rows, columns=["path", "label"]).assign(**columns)


def classes(frame: pd.DataFrame) -> dict[str, set[str]]:
    return {split: set(part["label"]) for split, part in frame.groupby("split")}


def test_classes_are_disjoint_and_all_used() -> None:
    """user-pains 59: val comes from the training classes; spec 1.1: no class in train and test."""
    split = make_split(table(200), seed=3)
    found = classes(split)
    assert set(found) == {"train", "val", "test"}
    assert not found["train"] & found["test"]
    assert not found["train"] & found["val"]
    assert not found["val"] & found["test"]
    assert sum(map(len, found.values())) == 200
    assert 79 <= len(found["test"]) <= 121  # 100, three standard deviations around
    assert 8 <= len(found["val"]) <= 32
    assert split.attrs["split"] == {
        **{"how": "class_disjoint", "test_fraction": 0.5, "val_fraction": 0.2, "held_out_domain": [], "group": None},
        **{"unseen_classes": False, "seed": 3, "val": "classes"},
    }


def test_the_seed_decides_and_row_order_does_not() -> None:
    one = make_split(table(40), seed=1)
    again = make_split(table(40).sample(frac=1, random_state=5), seed=1)
    assert classes(one) == classes(again)
    assert classes(one) != classes(make_split(table(40), seed=2))


@settings(max_examples=15, deadline=None, derandomize=True)
@given(st.sets(st.integers(0, 10_000), min_size=60, max_size=90), st.sets(st.integers(0, 10_000), max_size=20))
def test_new_classes_move_no_old_one(old: set[int], new: set[int]) -> None:
    before = make_split(table([str(i) for i in sorted(old)], each=1), val_fraction=0.4)
    after = make_split(table([str(i) for i in sorted(old | new)], each=1), val_fraction=0.4)
    for split, names in classes(before).items():
        assert names <= classes(after)[split]


def test_six_classes_are_enough_for_two_everywhere() -> None:
    for seed in range(20):
        assert {split: len(names) >= 2 for split, names in classes(make_split(table(6), seed=seed)).items()} == {
            **{"train": True, "val": True, "test": True}
        }


def test_too_few_classes_for_unseen_classes_fall_back_with_a_warning() -> None:
    """A first try with three classes must work and say what its figures mean."""
    with pytest.warns(UserWarning, match=r"3 classes are too few to test on unseen classes \(6 are needed\)"):
        split = make_split(table(3, each=20))
    assert split.attrs["split"]["how"] == "images"
    for part in ("train", "val", "test"):
        counts = split.loc[split["split"] == part, "label"].value_counts()
        assert len(counts) == 3
        assert counts.min() >= 2
    with pytest.raises(
        DataError, match=r"There are 3 classes, and 6 are needed to set some apart for test. Add .* how='column'"
    ):
        make_split(table(3), how="class_disjoint")
    with pytest.raises(DataError, match=r"There are 4 classes, and 6 are needed"):
        make_split(table(4), how="class_disjoint")
    assert set(make_split(table(4), how="class_disjoint", val_fraction=0)["split"]) == {"train", "test"}


def test_a_split_of_pictures_never_takes_the_last_one() -> None:
    """user-pains 8: classes of one and two pictures keep training and get no query without a match."""
    frame = pd.concat(
        [table(["big"], 10), table(["pair"], 2), table(["lone"], 1), table(["three"], 3)], ignore_index=True
    )
    split = make_split(frame, how="images")
    test = split.loc[split["split"] == "test", "label"].value_counts()
    assert test.to_dict() == {"big": 5, "three": 2}
    assert set(split.loc[split["split"] == "train", "label"]) == {"big", "pair", "lone", "three"}
    most = make_split(frame, how="images", test_fraction=0.95)
    assert set(most.loc[most["split"] == "train", "label"]) == {"big", "pair", "lone", "three"}


def test_a_split_of_few_pictures_still_has_validation() -> None:
    """A fifth of five pictures is one, which has no match; four classes of ten must train all the same."""
    with pytest.warns(UserWarning, match="4 classes are too few"):
        split = make_split(table(4, each=10))
    for label, part in split.groupby("label"):
        assert part["split"].value_counts().to_dict() == {"test": 5, "train": 3, "val": 2}, label
    with pytest.warns(UserWarning, match="4 classes are too few"):
        assert "val" not in set(make_split(table(4, each=6))["split"])  # three left for training are not torn apart


def test_the_column_wins_when_it_says_train_and_test() -> None:
    frame = table(12)
    frame["split"] = np.where(frame["label"].isin(["class 0", "class 1"]), "test", "train")
    split = make_split(frame)
    assert split.attrs["split"]["how"] == "column"
    assert classes(split)["test"] == {"class 0", "class 1"}
    assert len(classes(split)["val"]) >= 2
    assert not classes(split)["val"] & classes(split)["train"]
    frame.loc[frame["label"] == "class 5", "split"] = "val"
    split = make_split(frame)
    assert classes(split)["val"] == {"class 5"}
    assert split.attrs["split"]["val"] == "column"
    assert "val" not in classes(make_split(frame[frame["split"] != "val"], val_fraction=0))


def test_a_column_with_few_training_classes_holds_out_pictures() -> None:
    frame = table(5, each=10)
    frame["split"] = np.where(frame["label"].isin(["class 0", "class 1"]), "test", "train")
    with pytest.warns(
        UserWarning, match=r"Fewer than 4 training classes: val holds unseen pictures of the training classes"
    ):
        split = make_split(frame)
    assert split.attrs["split"]["val"] == "images"
    assert classes(split)["val"] == classes(split)["train"]
    with pytest.raises(
        DataError,
        match=r"There are 3 training classes, and 4 are needed .* name the splits yourself in a split column",
    ):
        make_split(frame, how="column")


def domains() -> pd.DataFrame:
    return pd.concat(
        [table(10).assign(domain=name, path=lambda f, n=name: n + f["path"]) for name in ("/a", "/b", "/c")]
    ).assign(domain=lambda f: f["domain"].str[1:])


def test_a_domain_is_held_out() -> None:
    split = make_split(domains(), held_out_domain="c")
    assert split.attrs["split"]["how"] == "domain_held_out"
    assert set(split.loc[split["split"] == "test", "domain"]) == {"c"}
    assert set(split.loc[split["split"].isin(["train", "val"]), "domain"]) == {"a", "b"}
    assert not classes(split)["train"] & classes(split)["val"]
    assert len(classes(split)["test"]) == 10


def test_unseen_domain_and_unseen_classes() -> None:
    """Spec 6.6: train on the seen classes of the source, test on unseen classes of the targets."""
    split = make_split(domains(), how="domain_held_out", held_out_domain=["b", "c"], unseen_classes=True)
    assert set(split.loc[split["split"] == "train", "domain"]) == {"a"}
    assert set(split.loc[split["split"] == "test", "domain"]) == {"b", "c"}
    found = classes(split)
    assert not (found["train"] | found["val"]) & found["test"]
    assert set(split.loc[split["split"] == "", "domain"]) == {"a", "b", "c"}
    frame = domains()
    frame["split"] = np.where(frame["label"].isin(["class 1", "class 2"]), "test", "train")
    given = make_split(frame, held_out_domain=["b", "c"], unseen_classes=True)
    assert classes(given)["test"] == {"class 1", "class 2"}


def test_groups_stay_together() -> None:
    frame = table(12, each=10).assign(burst=lambda f: [f"{label}-{i % 10 // 2}" for i, label in enumerate(f["label"])])
    frame.loc[:4, "burst"] = ""
    split = make_split(frame, how="grouped", group="burst")
    assert (split[split["burst"] != ""].groupby("burst")["split"].nunique() == 1).all()
    assert classes(split)["test"] & classes(split)["train"]
    assert not classes(split)["val"] & classes(split)["train"]
    pictures = make_split(frame, how="images", group="burst")
    assert (pictures[pictures["burst"] != ""].groupby("burst")["split"].nunique() == 1).all()


def test_classes_that_share_a_group_go_together() -> None:
    frame = table(20).assign(shelf=lambda f: [str(int(label.split()[1]) // 2) for label in f["label"]])
    split = make_split(frame, group="shelf")
    assert (split.groupby("shelf")["split"].nunique() == 1).all()
    assert (split.groupby("label")["split"].nunique() == 1).all()
    with pytest.raises(DataError, match=r"There are 1 classes that share no group, and 6 are needed"):
        make_split(table(20).assign(shelf="same"), group="shelf")


def test_one_file_in_two_splits_is_a_leak_even_through_links(tmp_path: Path) -> None:
    """user-pains 71: the same picture in train and test."""
    paths = [tmp_path / f"{i}.jpg" for i in range(4)]
    for path in paths[:2]:
        path.write_bytes(b"x")
    paths[2].symlink_to(paths[0])
    os.link(paths[1], paths[3])
    frame = pd.DataFrame(
        {"path": list(map(str, paths)), "label": list("abcd"), "split": ["train", "train", "test", "test"]}
    )
    with pytest.raises(
        DataError, match=r"2 picture\(s\) are in more than one split, first \S+0.jpg \(train\), \S+1.jpg \(train\)"
    ):
        make_split(frame, val_fraction=0)
    check_leaks(frame.iloc[[0, 3]])


def test_leaks_of_classes_and_groups() -> None:
    frame = table(2, split=["train", "test"] * 4, site=["x", "y"] * 4)
    with pytest.raises(
        DataError, match=r"2 class\(s\) are in more than one split, first class 0 \(train\), class 0 \(test\)"
    ):
        check_leaks(frame, class_disjoint=True)
    check_leaks(frame, group="site")
    frame["site"] = "x"
    with pytest.raises(DataError, match=r"1 group\(s\) are in more than one split"):
        check_leaks(frame, group="site")
    check_leaks(frame.assign(site=""), group="site")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            {"how": "class-disjoint"},
            r"Unknown split 'class-disjoint'. Allowed are auto, .* Did you mean 'class_disjoint'\?",
        ),
        ({"test_fraction": 1.0}, "test_fraction is 1.0; it must be above 0 and below 1"),
        ({"val_fraction": -0.1}, "val_fraction is -0.1"),
        ({"how": "column"}, "The split column has nothing; the split 'column' needs train and test rows"),
        ({"how": "grouped"}, "The split 'grouped' needs group=..."),
        ({"how": "domain_held_out"}, "'domain_held_out' and the argument held_out_domain=... belong together"),
        ({"how": "images", "held_out_domain": "a"}, "belong together"),
        ({"group": "sit"}, r"There is no group column 'sit'; columns are .* Did you mean 'site'\?"),
        ({"held_out_domain": "foto"}, r"No picture has the domain 'foto'; domains are photo. Did you mean 'photo'\?"),
        ({"held_out_domain": "photo"}, "All pictures are in the held-out domains photo; none is left"),
    ],
)
def test_arguments_that_do_not_fit(arguments: dict, words: str) -> None:
    with pytest.raises(DataError, match=words):
        make_split(table(8, site="x", domain="photo"), **arguments)


def test_one_class_is_refused() -> None:
    """user-pains 65."""
    with pytest.raises(
        DataError, match=r"All pictures \(4\) have the label 'class 0'. Learning needs at least 2 classes"
    ):
        make_split(table(1))
    frame = table(6, split="train")
    frame.loc[frame["label"] == "class 0", "split"] = "test"
    with pytest.raises(
        DataError, match=r"The test has 4 pictures of 1 classes; retrieval is only defined with at least 2"
    ):
        make_split(frame)


def test_a_saved_split_comes_back_whole_and_moves(tmp_path: Path) -> None:
    split = make_split(table(["Grünspecht", "啄木鸟", "a", "b", "c", "d"], extra=1.5))
    save_split(split, tmp_path / "run" / "split.parquet")
    back = load_split(tmp_path / "run" / "split.parquet")
    assert back.attrs == {**split.attrs, "root": "/p"}
    pd.testing.assert_frame_equal(back, split)
    moved = load_split(tmp_path / "run" / "split.parquet", root=tmp_path)
    assert moved["path"].tolist() == [path.replace("/p/", f"{tmp_path}/") for path in split["path"]]
    assert make_split(back, seed=99)["split"].tolist() == split["split"].tolist()  # a saved split is a column split


def test_split_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"No split file .*none.parquet. Make one with make_split"):
        load_split(tmp_path / "none.parquet")
    (tmp_path / "bad.parquet").write_text("hello")
    with pytest.raises(DataError, match=r"bad.parquet is not a split file"):
        load_split(tmp_path / "bad.parquet")
    with pytest.raises(DataError, match=r"Cannot write .*Make every column text or numbers"):
        save_split(table(2, odd=[{1, 2}, "x"] * 4), tmp_path / "odd.parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["bad.parquet"]


@pytest.mark.data
def test_real_tables(shared_data: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cub = make_split(load_table(shared_data / "index.csv", where={"dataset": "cub200_2010"}))
        assert split_summary(cub)["test"] == {"images": 3043, "classes": 100}
        assert split_summary(cub)["train"]["classes"] + split_summary(cub)["val"]["classes"] == 100
        pacs = load_table(shared_data / "index.csv", where={"dataset": "pacs"})
        sketch = make_split(pacs, held_out_domain="sketch")
    assert split_summary(sketch)["test"] == {"images": 980, "classes": 7}
