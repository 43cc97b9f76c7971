"""`proxemics data`: the verbs on tiny sets, and their one-line errors."""

from __future__ import annotations

import csv
import hashlib
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

from proxemics.cli.main import app, main
from proxemics.data.benchmarks import BENCHMARKS
from proxemics.data.sources import load_table


def run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["data", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.output


def failure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    monkeypatch.setattr(sys, "argv", ["proxemics", "data", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("Error: ")
    assert error.count("\n") == 1
    return error


@pytest.fixture
def birds(tmp_path: Path) -> Path:
    """Two classes of CUB in the official layout, with real pictures."""
    folder = tmp_path / "CUB_200_2011"
    names = ["001.Albatross", "101.Pelican"]
    (folder / "images").mkdir(parents=True)
    (folder / "classes.txt").write_text(
        "".join(f"{i} {names[i > 1] if i in (1, 101) else f'{i:03d}.Bird'}\n" for i in range(1, 102))
    )
    paths = [(f"{name}/{k}.png", number) for name, number in zip(names, (1, 101), strict=True) for k in range(2)]
    for path, _ in paths:
        (folder / "images" / path).parent.mkdir(exist_ok=True)
        Image.new("RGB", (8, 6), (9, 99, 199)).save(folder / "images" / path)
    (folder / "images.txt").write_text("".join(f"{i} {path}\n" for i, (path, _) in enumerate(paths)))
    (folder / "image_class_labels.txt").write_text("".join(f"{i} {n}\n" for i, (_, n) in enumerate(paths)))
    return tmp_path


def test_list_names_every_set_and_its_terms() -> None:
    text = run("list")
    for name, one in BENCHMARKS.items():
        assert f"{name}: {one.release.title}" in text
        assert one.release.licence in text
    assert all(name in text for name in ("emoji5", "cub-synthdomains", "cars-synthdomains"))


def test_a_table_can_be_trained_on(birds: Path) -> None:
    out = birds / "elsewhere/table.csv"
    text = run("table", "cub200", birds, "--subset", "--out", out)
    root = birds / "CUB_200_2011"
    assert f"Next:   proxemics train --data {out} --set data.root={root}" in text
    with out.open(encoding="utf-8") as file:
        assert next(csv.DictReader(file))["path"] == "images/001.Albatross/0.png"
    frame = load_table(out, root=root)
    assert frame.groupby("split")["label"].unique().map(list).to_dict() == {
        "test": ["101.Pelican"],
        "train": ["001.Albatross"],
    }


def test_check_holds_a_folder_to_the_official_numbers(
    birds: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "train photo                          2 pictures       1 classes" in run(
        "check", "cub200", birds, "--subset"
    )
    hashes = [line for line in run("check", "cub200", birds, "--subset").splitlines() if line.startswith("Hash:   ")]
    Image.new("RGB", (16, 6), (9, 99, 199)).save(birds / "CUB_200_2011" / "images" / "001.Albatross" / "0.png")
    assert len(hashes) == 1
    assert len(hashes[0].split()[1]) == 64
    assert hashes[0] not in run("check", "cub200", birds, "--subset")
    assert "the class list is not the official one" in failure(monkeypatch, capsys, "check", "cub200", birds)
    assert "Did you mean 'cub200'?" in failure(monkeypatch, capsys, "check", "cub-200", birds)
    assert "Leave --source out" in failure(monkeypatch, capsys, "check", "cub200", birds, "--source", "photo")
    assert "missing Ebay_train.txt, Ebay_test.txt. Put" in failure(monkeypatch, capsys, "check", "sop", birds)


def test_fetch_tells_what_to_put_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = run("fetch", "sop", "--to", tmp_path, "--quiet", code=1)
    assert "Stanford_Online_Products.zip: no official address; put it into" in text
    assert "ask the authors" in failure(monkeypatch, capsys, "fetch", "cub200-paintings", "--to", tmp_path)
    (tmp_path / "img.zip").write_bytes(b"PK\x05\x06" + b"\0" * 18)
    text = run("fetch", "inshop", "--to", tmp_path, "--quiet")
    assert "NOT VERIFIED" in text
    assert hashlib.sha256((tmp_path / "img.zip").read_bytes()).hexdigest() in text


def test_synth_makes_seven_domains(birds: Path) -> None:
    text = run("synth", "cub-synthdomains", birds, "--to", birds / "out", "--subset", "--quiet")
    frame = load_table(birds / "out/table.csv")
    assert frame["domain"].nunique() == 8
    assert len(frame) == 4 + 7 * 2
    assert f"Next:   proxemics train {birds / 'out/table.csv'}" in text


def test_emoji_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    assert 'pip install "proxemics[emoji]"' in failure(monkeypatch, capsys, "emoji", "--to", tmp_path, "--quiet")


def test_source_and_help(trees_pacs: Any) -> None:
    root = trees_pacs
    text = run("check", "pacs", root, "--subset", "--source", "sketch")
    assert "train sketch" in text
    assert "unused" not in run("check", "pacs", root, "--subset", "--source", "all")


@pytest.fixture
def trees_pacs(tmp_path: Path) -> Path:
    for domain in ("photo", "art_painting", "cartoon", "sketch"):
        for name in ("dog", "person"):
            (tmp_path / domain / name).mkdir(parents=True)
            (tmp_path / domain / name / "1.jpg").touch()
    return tmp_path
