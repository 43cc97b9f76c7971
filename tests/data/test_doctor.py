from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from proxemics.core.errors import DataError, ImageError
from proxemics.data.decode import read_image
from proxemics.data.doctor import diagnose
from proxemics.data.facts import inspect_file
from proxemics.data.hashing import equal_files


def photo(seed: int, width: int = 120, height: int = 90) -> Image.Image:
    """Soft coloured blobs with grain: as compressible, and as different from each other, as photographs."""
    generator = np.random.default_rng(seed)
    coarse = Image.fromarray(generator.integers(0, 255, (6, 8, 3), dtype=np.uint8))
    grain = generator.normal(0, 6, (height, width, 3))
    return Image.fromarray(np.clip(np.asarray(coarse.resize((width, height), 3)) + grain, 0, 255).astype(np.uint8))


def save(path: Path, image: Image.Image, **options: object) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **options)
    return str(path)


def names(paths: list[str]) -> list[str]:
    return sorted(Path(path).name for path in paths)


@pytest.fixture
def healthy(tmp_path: Path) -> Path:
    """Two classes of three sound pictures."""
    for i in range(6):
        save(tmp_path / "sound" / ("cat" if i < 3 else "dog") / f"{i}.jpg", photo(i), quality=90)
    return tmp_path / "sound"


def test_a_sound_folder_has_no_finding(healthy: Path) -> None:
    diagnosis = diagnose(healthy)
    assert diagnosis.findings == []
    assert diagnosis.ok
    assert diagnosis.histogram == {"cat": 3, "dog": 3}
    assert (diagnosis.num_files, diagnosis.num_classes, diagnosis.short_side) == (6, 2, (90, 90, 90))
    assert diagnosis.modes == {"RGB": 6}
    assert diagnosis.files_per_second > 0


def test_broken_files_are_told_apart_and_agree_with_the_reader(healthy: Path) -> None:
    """user-pains 66: zero bytes, half a JPEG, a text called .png, half a PNG, a PNG with a flipped byte."""
    cat = healthy / "cat"
    (cat / "zero.jpg").write_bytes(b"")
    (cat / "text.png").write_text("not a picture")
    whole = (cat / "0.jpg").read_bytes()
    (cat / "half.jpg").write_bytes(whole[: len(whole) // 2])
    save(cat / "whole.png", photo(40))
    png = bytearray((cat / "whole.png").read_bytes())
    (cat / "half.png").write_bytes(png[: len(png) // 2])
    png[len(png) // 2] ^= 255
    (cat / "flipped.png").write_bytes(png)
    diagnosis = diagnose(healthy)
    assert not diagnosis.ok
    assert names(diagnosis.find("empty").paths) == ["zero.jpg"]
    assert names(diagnosis.find("unreadable").paths) == ["text.png"]
    assert names(diagnosis.find("truncated").paths) == ["flipped.png", "half.jpg", "half.png"]
    assert diagnosis.find("truncated").severity == "error"
    assert diagnosis.find("truncated").message.startswith("3 files cut off or damaged (")
    for path in (str(p) for p in healthy.rglob("*.*")):
        if path in diagnosis.broken:
            with pytest.raises(ImageError, match=Path(path).name):
                read_image(path)
        else:
            read_image(path)
    headers = diagnose(healthy, decode=False)
    assert names(headers.broken) == ["text.png", "zero.jpg"]
    assert not headers.decoded


def test_pixel_modes_orientation_and_names(healthy: Path) -> None:
    """Scenario K1: CMYK, 16-bit PNG, orientation 6, alpha, animation, a PNG called .jpg."""
    cat = healthy / "cat"
    save(cat / "cmyk.jpg", photo(10).convert("CMYK"))
    save(cat / "deep.png", Image.fromarray(np.random.default_rng(1).integers(0, 65535, (64, 64), dtype=np.uint16)))
    save(cat / "alpha.png", photo(12).convert("RGBA"))
    save(cat / "grey.png", photo(13).convert("L"))
    exif = Image.Exif()
    exif[0x0112] = 6
    save(cat / "lying.jpg", photo(14), exif=exif)
    save(cat / "moving.gif", photo(15).convert("P"), save_all=True, append_images=[photo(16).convert("P")])
    save(cat / "named.jpg", photo(17), format="PNG")
    diagnosis = diagnose(healthy)
    assert diagnosis.ok
    assert diagnosis.modes["CMYK"] == 1
    assert names(diagnosis.find("modes").paths) == ["alpha.png", "cmyk.jpg", "deep.png", "moving.gif"]
    assert names(diagnosis.find("orientation").paths) == ["lying.jpg"]
    assert names(diagnosis.find("animated").paths) == ["moving.gif"]
    assert names(diagnosis.find("suffix").paths) == ["named.jpg"]
    assert {finding.severity for finding in diagnosis.findings} == {"info"}


def test_sizes_and_shapes(healthy: Path) -> None:
    save(healthy / "dog" / "tiny.png", photo(20, 20, 31))
    save(healthy / "dog" / "banner.png", photo(21, 330, 66))
    save(healthy / "dog" / "blank.png", Image.new("RGB", (64, 64), "navy"))
    diagnosis = diagnose(healthy)
    assert names(diagnosis.find("small").paths) == ["tiny.png"]
    assert names(diagnosis.find("aspect").paths) == ["banner.png"]
    assert names(diagnosis.find("flat").paths) == ["blank.png"]
    assert diagnosis.short_side == (20, 90, 90)
    assert names(diagnose(healthy, max_pixels=10_800).find("too_large").paths) == ["banner.png"]
    assert diagnose(healthy, min_side=16, max_aspect=6).find("small") is None


def test_a_picture_that_claims_to_be_huge_is_not_decoded(tmp_path: Path) -> None:
    """A decompression bomb: 50,000 x 50,000 pixels in a header."""
    bomb = bytearray(Path(save(tmp_path / "a.bmp", Image.new("RGB", (4, 4)))).read_bytes())
    bomb[18:26] = (50_000).to_bytes(4, "little") * 2
    (tmp_path / "a.bmp").write_bytes(bomb)
    facts = inspect_file(str(tmp_path / "a.bmp"))
    assert facts.problem == "too_large"
    assert "2500000000" in facts.detail.replace(" ", "")


def test_clutter_in_folders(healthy: Path) -> None:
    """user-pains 70: hidden files, empty class folders, links in a circle, foreign files, loose pictures."""
    (healthy / ".DS_Store").write_bytes(b"x")
    (healthy / "cat" / "Thumbs.db").write_bytes(b"x")
    (healthy / "emu" / "inner").mkdir(parents=True)
    (healthy / "cat" / "notes.txt").write_text("x")
    (healthy / "cat" / "round").symlink_to(healthy, target_is_directory=True)
    save(healthy / "loose.JPG", photo(30))
    diagnosis = diagnose(healthy)
    assert diagnosis.histogram == {"cat": 3, "dog": 3}
    found = {code: diagnosis.find(code) for code in ("hidden", "empty_folder", "other_file", "loop", "left_out")}
    assert {code: names(finding.paths) for code, finding in found.items()} == {
        "hidden": [".DS_Store", "Thumbs.db"],
        "empty_folder": ["emu"],
        "other_file": ["notes.txt"],
        "loop": ["round"],
        "left_out": ["loose.JPG"],
    }
    assert found["empty_folder"].severity == found["left_out"].severity == "warning"


def test_copies_across_splits_and_classes(tmp_path: Path) -> None:
    """user-pains 71: a byte-equal and a re-encoded copy, in another split and under another label."""
    rows = []
    for i, (label, split) in enumerate([("cat", "train"), ("dog", "train"), ("emu", "test"), ("fox", "test")] * 3):
        rows.append((save(tmp_path / label / f"{i}.jpg", photo(i), quality=92), label, split))
    for name, label, split in [
        ("equal.jpg", "emu", "test"),
        ("same.jpg", "cat", "train"),
        ("wrong.jpg", "dog", "train"),
    ]:
        shutil.copy(tmp_path / "cat" / "0.jpg", tmp_path / label / name)
        rows.append((str(tmp_path / label / name), label, split))
    again = Image.open(tmp_path / "dog" / "1.jpg").resize((75, 56), Image.Resampling.BICUBIC)
    rows.append((save(tmp_path / "fox" / "saved.webp", again, quality=60), "fox", "test"))
    rows.append((save(tmp_path / "cat" / "png.png", Image.open(tmp_path / "cat" / "4.jpg")), "cat", "train"))
    frame = pd.DataFrame(rows, columns=["path", "label", "split"])
    diagnosis = diagnose(frame)
    equal = diagnosis.find("duplicate_across_splits")
    assert equal.severity == "error"
    assert [names(group) for group in equal.groups] == [["0.jpg", "equal.jpg", "same.jpg", "wrong.jpg"]]
    assert names(diagnosis.find("duplicate_across_classes").paths) == ["0.jpg", "equal.jpg", "same.jpg", "wrong.jpg"]
    assert diagnosis.find("duplicate") is None
    near = diagnosis.find("near_duplicate_across_splits")
    assert near.severity == "warning"
    assert [names(group) for group in near.groups] == [["1.jpg", "saved.webp"]]
    assert names(diagnosis.find("near_duplicate_across_classes").paths) == ["1.jpg", "saved.webp"]
    assert [names(group) for group in diagnosis.find("near_duplicate").groups] == [["4.jpg", "png.png"]]
    assert diagnosis.find("shared_classes") is None
    headers = diagnose(frame, decode=False)
    assert headers.find("duplicate_across_splits") is not None
    assert headers.find("near_duplicate_across_splits") is None


def test_a_turned_copy_is_a_copy(tmp_path: Path) -> None:
    """user-pains 68 and 71: turned pixels in one file, an Exif orientation in the other."""
    upright = photo(3)
    exif = Image.Exif()
    exif[0x0112] = 6
    save(tmp_path / "cat" / "a.jpg", upright, quality=95)
    save(tmp_path / "dog" / "b.jpg", upright.transpose(Image.Transpose.ROTATE_90), quality=90, exif=exif)
    assert names(diagnose(tmp_path).find("near_duplicate_across_classes").paths) == ["a.jpg", "b.jpg"]


def test_labels(tmp_path: Path) -> None:
    rows = [
        (save(tmp_path / f"{i}.png", photo(i)), label)
        for i, label in enumerate(["Cat", "cat ", "dog", "dog", "x_y", "X-y"])
    ]
    diagnosis = diagnose(pd.DataFrame(rows, columns=["path", "label"]))
    similar = diagnosis.find("similar_labels")
    assert similar.labels == ["Cat", "cat ", "X-y", "x_y"]
    assert (
        similar.message
        == "2 groups of class names differ only in case, spaces or Unicode form, first 'Cat' and 'cat '."
    )
    assert diagnosis.find("singleton").labels == ["Cat", "X-y", "cat ", "x_y"]
    one = diagnose(pd.DataFrame(rows[2:4], columns=["path", "label"]))
    assert one.find("one_class").severity == "error"


def test_imbalance_and_shared_classes(tmp_path: Path) -> None:
    paths = [save(tmp_path / f"{i}.png", photo(i, 40, 40)) for i in range(44)]
    frame = pd.DataFrame({"path": paths, "label": ["many"] * 42 + ["few"] * 2, "split": ["train", "test"] * 22})
    diagnosis = diagnose(frame)
    assert diagnosis.find("imbalance").message == "The largest class 'many' has 42 pictures, the smallest 2."
    assert diagnosis.find("shared_classes").labels == ["few", "many"]
    assert diagnosis.splits == {"train": {"images": 22, "classes": 2}, "test": {"images": 22, "classes": 2}}


def test_missing_and_repeated_rows_are_findings_and_not_errors(healthy: Path) -> None:
    table = healthy / "table.csv"
    table.write_text(
        "path,label,split\ncat/0.jpg,cat,train\ncat/0.jpg,cat,test\ncat/1.jpg,cat,train\ngone.jpg,dog,train\n"
    )
    diagnosis = diagnose(table)
    assert names(diagnosis.find("missing").paths) == ["gone.jpg"]
    repeated = diagnosis.find("repeated_path")
    assert repeated.message == "1 path listed more than once, 1 of them in different splits or with different labels."
    assert names(repeated.paths) == ["0.jpg"]
    assert diagnosis.find("duplicate_across_splits") is None
    with pytest.raises(DataError, match="has no column 'labels'"):
        diagnose(table, label="labels")
    with pytest.raises(DataError, match="No file or folder"):
        diagnose(healthy / "nothing")


def test_every_finding_says_how_to_fix_it_and_all_is_json(healthy: Path) -> None:
    (healthy / "cat" / "zero.jpg").write_bytes(b"")
    save(healthy / "lone" / "a.jpg", photo(50))
    done: list[tuple[int, int]] = []
    diagnosis = diagnose(healthy, progress=lambda count, total: done.append((count, total)), workers=2)
    assert done[-1] == (8, 8)
    assert [finding.severity for finding in diagnosis.findings] == ["error", "warning"]
    for finding in diagnosis.findings:
        assert finding.message.endswith(".")
        assert finding.fix.endswith(".")
        assert "\n" not in finding.message + finding.fix
        assert all(Path(path).is_absolute() for path in finding.paths)
    content = json.loads(json.dumps(diagnosis.to_dict()))
    assert content["ok"] is False
    assert content["findings"][0]["code"] == "empty"
    assert content["histogram"] == {"cat": 4, "dog": 3, "lone": 1}


def test_equal_files_reads_only_files_of_one_size(tmp_path: Path) -> None:
    contents = [b"aa", b"bb", b"aa", b"ccc"]
    paths = []
    for i, content in enumerate(contents):
        (tmp_path / str(i)).write_bytes(content)
        paths.append(str(tmp_path / str(i)))
    Path(paths[3]).unlink()
    assert equal_files(paths, [len(content) for content in contents]) == [[0, 2]]


@pytest.mark.data
def test_the_copies_in_the_real_cars_are_found(shared_data: Path) -> None:
    """user-pains 71 on Stanford Cars, whose source holds byte-identical files under different labels."""
    diagnosis = diagnose(shared_data / "index.csv", where={"dataset": "cars196"})
    copies = diagnosis.find("duplicate_across_classes")
    assert len(copies.groups) == 8
    for group in copies.groups:
        assert len({Path(path).read_bytes() for path in group}) == 1
        assert len({Path(path).parent for path in group}) == 2
    assert diagnosis.find("duplicate_across_splits") is None
    assert diagnosis.broken == []
    assert len(diagnosis.find("near_duplicate_across_classes").groups) <= 5
    assert diagnosis.histogram == pd.Series(diagnosis.histogram).sort_values(ascending=False, kind="stable").to_dict()
