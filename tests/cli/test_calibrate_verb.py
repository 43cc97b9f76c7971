"""`proxemics calibrate` on the command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from proxemics.cli.main import main
from proxemics.models.bundle import save_bundle
from proxemics.models.embedder import Embedder

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty classes of six pictures, each class a colour under noise."""
    root = tmp_path_factory.mktemp("calibrate") / "birds"
    generator = np.random.default_rng(3)
    for number in range(20):
        (root / f"bird{number:02d}").mkdir(parents=True)
        colour = generator.uniform(30, 220, 3)
        for picture in range(6):
            pixels = colour + generator.normal(0, 25, (32, 32, 3))
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(root / f"bird{number:02d}" / f"{picture}.png")
    return root


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """The entry point itself; returns exit code, standard output and standard error."""

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["proxemics", *arguments])
        code: object = 0
        try:
            main()
        except SystemExit as stopped:
            code = stopped.code or 0
        told = capfd.readouterr()
        return (code if isinstance(code, int) else 1), told.out, " ".join(told.err.split())

    torch.manual_seed(0)
    save_bundle(Embedder("test_resnet", dim=8, weights="none", size=32), tmp_path / "bundle")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    return call


QUICK = ("--set", "data.workers=0", "-q")


def test_pairs(run: Run, pictures: Path, tmp_path: Path) -> None:
    code, out, err = run("calibrate", "bundle", "--data", str(pictures), "--target-fmr", "0.02", *QUICK)
    assert (code, err) == (0, "")
    content = json.loads((tmp_path / "bundle" / "thresholds.json").read_text())
    point, source = content["verify"]["point"], content["verify"]["source"]
    assert f"{point['threshold']:.4f} [{point['interval'][0]:.4f}, {point['interval'][1]:.4f}]" in out
    assert "Two pictures match, at a score from" in out
    assert "Target 0.02; 6,840 pairs of different classes, worth about" in out
    assert f"Calibrated on 120 pictures of 20 classes of unknown origin, from {pictures}." in out
    assert "Thresholds: bundle/thresholds.json" in out
    assert (content["schema"], point["target"], point["level"]) == (1, 0.02, 0.95)
    assert point["false_match"]["low"] < point["false_match"]["value"] <= 0.02
    assert source["command"].startswith(f"proxemics calibrate bundle --data {pictures} --target-fmr 0.02")
    assert len(content["model"]["model"]) == 64
    assert content["identify"] is None


def test_options_without_effect_and_values_out_of_range_are_refused_before_anything_is_read(run: Run) -> None:
    for arguments, told in (
        (("--gallery", "5"), "--gallery does not belong to --for verify"),
        (("--pictures", "2"), "--pictures does not belong to --for verify"),
        (("--template", "nearest"), "--template does not belong to --for verify"),
        (("--for", "identify", "--pictures", "1,²"), "--pictures '1,²': give whole numbers from 1 up"),
        (("--for", "identify", "--per-class"), "use --per-class with --for verify"),
        (("--target-fmr", "2"), "target_fmr"),
        (("--for", "identify", "--target-fpir", "nan"), "target_fpir"),
        (("--level", "1"), "give a confidence in (0.5, 1)"),
        (("--min-errors", "1"), "give 3 or more"),
    ):
        code, out, err = run("calibrate", "bundle", "--data", "nowhere", *arguments, *QUICK)
        assert (code, out, told in err) == (2, "", True), err


def test_identification_and_json(run: Run, pictures: Path, tmp_path: Path) -> None:
    arguments = ("--data", str(pictures), "--for", "identify", "--target-fpir", "0.3", "--gallery", "10", *QUICK)
    code, out, err = run("calibrate", "bundle", *arguments, "--pictures", "1,4", "--out", "here", "--json")
    assert (code, err) == (0, "")
    point = json.loads(out)
    assert [one["pictures"] for one in point["by_count"]] == [1, 4]
    assert point == json.loads((tmp_path / "here" / "thresholds.json").read_text())["identify"]["point"]
    code, out, _ = run("calibrate", "bundle", *arguments, "--cautious", "--pictures", "2")
    assert code == 0
    assert "A picture is known, of 10 classes, at a score from" in out
    assert "2 a class" in out
    assert "The threshold is the upper end of its interval (--cautious)." in out


def test_thresholds_by_class_are_told(run: Run, pictures: Path) -> None:
    code, out, _ = run("calibrate", "bundle", "--data", str(pictures), "--target-fmr", "0.02", "--per-class", *QUICK)
    assert code == 0
    assert "Thresholds of 20 classes: " in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--target-fmr", "0.001"], "A false-match rate of 0.001 needs 30,000 pairs of different classes"),
        (["--target-fmr", "0"], "target_fmr: 0.0 is no error rate"),
        (["--target-fpir", "0.1"], "--target-fpir does not belong to --for verify; give --target-fmr."),
        (["--for", "identify", "--target-fmr", "0.1"], "--target-fmr does not belong to --for identify"),
        (["--for", "identify"], "A false-positive identification rate of 0.01 needs 3,000 pictures"),
        (["--pictures", "a"], "--pictures 'a': give whole numbers from 1 up"),
        (["--where", "label"], "--where 'label': write COLUMN=VALUE."),
        (["--min-errors", "2"], "rule of three"),
    ],
)
def test_errors_are_one_line(run: Run, pictures: Path, tmp_path: Path, arguments: list[str], words: str) -> None:
    code, out, err = run("calibrate", "bundle", "--data", str(pictures), *arguments, *QUICK)
    assert (code, out) == (2, "")
    assert err.startswith("Error: ")
    assert words in err
    assert not (tmp_path / "bundle" / "thresholds.json").exists()


def test_a_bundle_alone_has_no_pictures(run: Run) -> None:
    code, _, err = run("calibrate", "bundle")
    assert code == 2
    assert "name pictures of classes that were not trained on with --data" in err
    assert run("calibrate", "bundle", "--where", "a=b")[2] == (
        "Error: --where needs --data: it chooses among the rows of other pictures."
    )
