"""The controlled study's sets: what rho changes and what it leaves, what is disjoint, and the shift at test."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from proxemics.core.errors import DataError
from proxemics.core.seeds import numpy_generator

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
SMALL = {"classes": (6, 3, 4), "train_scenes": 3, "copies": 8, "size": 48}


@pytest.fixture(scope="module")
def controlled() -> Iterator[ModuleType]:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield importlib.import_module("controlled_data")
    finally:
        sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten training and six test classes in four styles, and seven scenes of three photographs."""
    root = tmp_path_factory.mktemp("data")
    generator = np.random.default_rng(0)
    rows = []
    for number in range(16):
        for style in ("noto", "twemoji", "openmoji", "fluent-emoji-flat"):
            path = f"emoji/{style}/class{number}/default.webp"
            pixels = np.zeros((24, 24, 4), dtype=np.uint8)
            pixels[4:20, 4:20] = [*generator.integers(0, 256, 3), 255]
            (root / path).parent.mkdir(parents=True)
            Image.fromarray(pixels).save(root / path, lossless=True)
            rows.append((path, "emoji", f"class{number}", style, "train" if number < 10 else "test"))
    rows.append(("emoji/noto/lonely/default.webp", "emoji", "lonely", "noto", "train"))  # in one style only: no class
    for scene in range(7):
        for photo in range(3):
            path = f"grocery/natural/scene{scene}/{photo}.jpg"
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(generator.integers(0, 256, (40, 50, 3), dtype=np.uint8)).save(root / path)
            rows.append((path, "grocery", f"scene{scene}", "natural", "train"))
    pd.DataFrame(rows, columns=["path", "dataset", "label", "domain", "split"]).to_csv(root / "index.csv", index=False)
    return root


def read(table: Path) -> pd.DataFrame:
    return pd.read_csv(table, keep_default_na=False)


@pytest.fixture(scope="module")
def tables(controlled: ModuleType, data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[float, Path]:
    folder = tmp_path_factory.mktemp("sets")
    return {rho: controlled.build(folder / f"{rho}", data, rho, 0, masks=rho == 0.9, **SMALL) for rho in (0.0, 0.9)}


def test_counts_and_what_is_disjoint(tables: dict[float, Path]) -> None:
    frame = read(tables[0.9])
    counts = frame.groupby(["split", "condition"]).size().to_dict()
    assert counts == {
        ("train", "plain"): 6 * 4 * 8, ("val", "plain"): 3 * 4 * 2, ("test", "plain"): 4 * 4 * 2,
        ("test", "shifted"): 4 * 4 * 2,
    }  # fmt: skip
    train, val, test = (frame[frame["split"] == split] for split in ("train", "val", "test"))
    for one, other in ((train, val), (train, test), (val, test)):
        assert not set(one["label"]) & set(other["label"])
    assert "lonely" not in set(frame["label"])
    assert set(val["scene"]) <= set(train["scene"])
    assert not set(test["scene"]) & set(train["scene"])
    assert not set(test["photo"]) & (set(train["photo"]) | set(val["photo"]))
    assert set(test["home"]) == {""}
    assert train.groupby("home")["label"].nunique().tolist() == [2, 2, 2], "homes are dealt out evenly"
    assert not frame["path"].map(lambda path: Path(path).is_absolute()).any()


def test_the_package_reads_the_table(tables: dict[float, Path]) -> None:
    from proxemics.data.sources import load_table

    frame = load_table(tables[0.9], where={"condition": "plain"})
    assert set(frame["split"]) == {"train", "val", "test"}
    assert len(frame) == 6 * 4 * 8 + 3 * 4 * 2 + 4 * 4 * 2


def test_rho_ties_training_and_validation_only(tables: dict[float, Path]) -> None:
    free, tied = read(tables[0.0]), read(tables[0.9])
    assert not free["tied"].any()
    assert not tied[tied["split"] == "test"]["tied"].any()
    learnt = tied[tied["split"] != "test"]
    assert 0.82 < learnt["tied"].mean() < 0.97
    assert (learnt["scene"] == learnt["home"])[learnt["tied"]].all()
    chance = (free["scene"] == free["home"])[free["split"] == "train"].mean()
    assert 0.2 < chance < 0.47, "one in three scenes"


def test_rho_changes_scenes_and_nothing_else(tables: dict[float, Path]) -> None:
    free, tied = read(tables[0.0]), read(tables[0.9])
    same = [name for name in free.columns if name not in ("scene", "tied", "photo", "mask")]
    pd.testing.assert_frame_equal(free[same], tied[same])
    for path in free[free["split"] == "test"]["path"]:
        assert (tables[0.0].parent / path).read_bytes() == (tables[0.9].parent / path).read_bytes()


def test_equal_arguments_give_equal_bytes_and_another_seed_another_set(
    controlled: ModuleType, data: Path, tables: dict[float, Path], tmp_path: Path
) -> None:
    again = controlled.build(tmp_path / "again", data, 0.0, 0, **SMALL)
    assert again.read_bytes() == tables[0.0].read_bytes()
    for path in read(again)["path"][::7]:
        assert (again.parent / path).read_bytes() == (tables[0.0].parent / path).read_bytes()
    other = read(controlled.build(tmp_path / "other", data, 0.0, 1, **SMALL))
    assert set(other["label"]) != set(read(again)["label"]) or set(other["scene"]) != set(read(again)["scene"])
    assert not np.allclose(other["x"], read(again)["x"])


def test_masks_lie_where_the_object_is(controlled: ModuleType, tables: dict[float, Path]) -> None:
    row = read(tables[0.9]).iloc[0]
    mask = np.asarray(Image.open(tables[0.9].parent / row["mask"]))
    box = Image.fromarray(mask).getbbox()
    assert box is not None
    assert 0.45 * 48 - 2 <= max(box[2] - box[0], box[3] - box[1]) <= 0.75 * 48 + 2
    assert mask.max() == 255
    assert set(read(tables[0.0])["mask"]) == {""}


def test_pairs_differ_by_the_shift_alone(tables: dict[float, Path]) -> None:
    frame = read(tables[0.9])
    test = frame[frame["split"] == "test"].set_index("pair")
    plain, shifted = (test[test["condition"] == name] for name in ("plain", "shifted"))
    assert plain.index.equals(shifted.index)
    same = ["label", "domain", "scene", "photo", "x", "y", "scale", "crop_x", "crop_y", "crop_zoom", "crop_flip"]
    pd.testing.assert_frame_equal(plain[same], shifted[same])
    assert (plain["gain"] == 1).all()
    assert (np.abs(np.log(shifted["gain"])) > 0.2).all()
    assert (shifted["hue_shift"].abs() >= 25).all()
    for before, after in zip(plain["path"][:6], shifted["path"][:6], strict=True):
        pictures = [np.asarray(Image.open(tables[0.9].parent / path), dtype=float) for path in (before, after)]
        assert np.abs(pictures[0] - pictures[1]).mean() > 8


def test_the_shift_does_what_it_says(controlled: ModuleType) -> None:
    shift, nuisance = controlled.shift, controlled.Nuisance
    picture = np.random.default_rng(0).integers(60, 190, (32, 33, 3), dtype=np.uint8)
    assert shift(picture, nuisance()) is picture
    assert shift(picture, nuisance.draw(numpy_generator(0), 0.0)) is picture
    half = shift(picture, nuisance(contrast=0.5)).astype(float)
    means = picture.mean(axis=(0, 1))
    assert np.abs(half - (means + (picture - means) / 2)).max() <= 0.51, "half of all amplitudes is half the contrast"
    phase = [
        np.angle(np.fft.rfft2(p.astype(float), axes=(0, 1))) for p in (picture, shift(picture, nuisance(tilt=-0.3)))
    ]
    strong = np.abs(np.fft.rfft2(picture.astype(float), axes=(0, 1))) > 1500
    assert np.abs(np.angle(np.exp(1j * (phase[0] - phase[1]))))[strong].max() < 0.1, "phases stay"
    light = nuisance.draw(numpy_generator(0), kinds=("light",))
    assert (light.hue, light.contrast, light.tilt) == (0, 1, 0)
    whole = nuisance.draw(numpy_generator(0))
    assert (light.gain, light.slope, light.angle) == (whole.gain, whole.slope, whole.angle), "kinds add, draws stay"
    red = np.full((4, 4, 3), [200, 60, 60], dtype=np.uint8)
    assert np.abs(shift(red, nuisance(hue=120))[0, 0].astype(int) - [60, 200, 60]).max() <= 1
    assert np.abs(shift(red, nuisance(hue=-120))[0, 0].astype(int) - [60, 60, 200]).max() <= 1
    assert shift(red, nuisance(gain=0.5))[0, 0].tolist() == [100, 30, 30]


def test_glyphs_need_no_data_and_share_no_photograph(controlled: ModuleType, tmp_path: Path) -> None:
    from proxemics.data.confounded import SOURCES

    table = controlled.build(tmp_path / "glyphs", None, 0.9, 0, "glyphs", classes=(4, 2, 3), copies=2, size=48)
    frame = read(table)
    assert frame.groupby("split").size().to_dict() == {"train": 4 * 3 * 2, "val": 2 * 3 * 2, "test": 3 * 3 * 2 * 2}
    photograph = frame["scene"].map(lambda name: SOURCES[name].photograph)
    assert not set(photograph[frame["split"] == "test"]) & set(photograph[frame["split"] != "test"])
    page = controlled.sheet(table, tmp_path / "sheet.png", classes=2, columns=4)
    assert Image.open(page).size == (4 * 96, (2 + 2 + 4) * 96)


def test_a_finished_set_is_kept_and_another_is_refused(
    controlled: ModuleType, data: Path, tables: dict[float, Path]
) -> None:
    before = tables[0.0].stat().st_mtime_ns
    assert controlled.build(tables[0.0].parent, data, 0.0, 0, **SMALL) == tables[0.0]
    assert tables[0.0].stat().st_mtime_ns == before
    with pytest.raises(DataError, match="holds another set or an unfinished one"):
        controlled.build(tables[0.0].parent, data, 0.5, 0, **SMALL)


def test_bad_arguments_are_told(controlled: ModuleType, data: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="rho=2 is not a probability"):
        controlled.build(tmp_path / "a", data, 2, 0)
    with pytest.raises(DataError, match="kind='emojis'; allowed are 'emoji', 'glyphs'"):
        controlled.build(tmp_path / "a", data, 0, 0, "emojis")
    with pytest.raises(DataError, match="shifts names 'lite'; allowed are 'light', 'hue', 'amplitude'"):
        controlled.build(tmp_path / "a", data, 0, 0, shifts=("lite",))
    with pytest.raises(DataError, match=r"Emoji need the folder with index\.csv"):
        controlled.build(tmp_path / "a", None, 0, 0)
    with pytest.raises(DataError, match="hold 10 training and validation classes and 240 are asked for"):
        controlled.build(tmp_path / "a", data, 0, 0)
    with pytest.raises(DataError, match=r"index\.csv does not exist"):
        controlled.build(tmp_path / "a", tmp_path, 0, 0)
    assert not (tmp_path / "a").exists()
