"""`proxemics enrol`, `identify`, `classes` and `forget` on the command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from PIL import Image

from proxemics.cli.identify import classes, identify
from proxemics.cli.main import main
from proxemics.core.errors import ProxemicsError
from proxemics.models.bundle import save_bundle
from proxemics.models.embedder import Embedder
from proxemics.search import Index
from proxemics.search.classes.pictures import open_for_classes

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("enrol") / "birds"
    generator = np.random.default_rng(3)
    for number in range(12):
        (root / f"bird{number:02d}").mkdir(parents=True)
        colour = generator.uniform(30, 220, 3)
        for picture in range(6):
            pixels = colour + generator.normal(0, 25, (32, 32, 3))
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(root / f"bird{number:02d}" / f"{picture}.png")
    return root


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """The entry point itself; `identify` and `classes` through an application of their own."""
    own = typer.Typer(pretty_exceptions_enable=False)
    own.command()(identify)
    own.command()(classes)

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["proxemics", *arguments])
        code: object = 0
        try:
            own() if arguments[0] in ("identify", "classes") else main()
        except SystemExit as stopped:
            code = stopped.code or 0
        except ProxemicsError as error:
            typer.echo(f"Error: {error}", err=True)
            code = 2
        told = capfd.readouterr()
        return (code if isinstance(code, int) else 1), told.out, " ".join(told.err.split())

    torch.manual_seed(0)
    save_bundle(Embedder("test_resnet", dim=8, weights="none", size=32), tmp_path / "bundle")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    return call


QUICK = ("--set", "data.workers=0", "-q")


def test_a_class_is_enrolled_listed_known_and_forgotten(run: Run, pictures: Path, tmp_path: Path) -> None:
    code, out, err = run("enrol", "bundle", str(pictures / "bird03"), "--name", "robin", *QUICK)
    assert code == 0
    assert out.splitlines() == ["Added: robin", "Class book: bundle (1 class, pictures weigh by number alone)"]
    assert "nothing is unknown yet; run `proxemics calibrate bundle --for identify`" in err
    code, out, _ = run("enrol", "bundle", str(pictures), *QUICK)
    assert "Added: bird00, bird01" in out
    assert "(13 classes" in out
    assert "More pictures: robin" in run("enrol", "bundle", str(pictures / "bird04"), "--name", "robin", *QUICK)[1]
    listed = json.loads(run("classes", "bundle", "--json")[1])
    assert (listed[-1]["name"], listed[-1]["pictures"]) == ("robin", 12)
    assert "robin" in run("classes", "bundle")[1]

    code, out, err = run("identify", "bundle", str(pictures / "bird07" / "2.png"), *QUICK)
    assert code == 0
    assert "bird07" in out
    assert "every picture is given its nearest class" in err
    code, out, err = run("identify", "bundle", str(pictures / "bird07"), "--threshold", "1.01", "--json", *QUICK)
    rows = json.loads(out)
    assert (len(rows), rows[0]["label"], rows[0]["threshold"], err) == (6, "unknown", 1.01, "")
    assert {"path", "best", "score", "second", "margin"} <= set(rows[0])

    assert run("forget", "bundle", "robin", "bird00")[:2] == (0, "Forgotten: robin, bird00\n")
    assert "robin" not in (tmp_path / "bundle" / "classes.json").read_text()
    code, _, err = run("forget", "bundle", "bird0")
    assert code == 2
    assert "No class 'bird0' is enrolled. Did you mean 'bird1" in err


def test_after_calibration_strangers_are_unknown_and_copies_are_warned_of(run: Run, pictures: Path) -> None:
    options = ("--data", str(pictures), "--for", "identify", "--target-fpir", "0.45", "--gallery", "4")
    assert run("calibrate", "bundle", *options, "--pictures", "5", *QUICK)[0] == 0
    _, _, err = run("enrol", "bundle", str(pictures / "bird03"), *QUICK)
    assert err == ""
    _, _, err = run("enrol", "bundle", str(pictures / "bird03"), "--name", "copy", *QUICK)
    assert "Warning: copy is nearly the same as bird03 (cosine of the centroids 1.000, threshold" in err
    _, out, err = run("identify", "bundle", str(pictures), "--json", *QUICK)
    answers = json.loads(out)
    assert {one["label"] for one in answers} == {
        "bird03",
        "unknown",
    }  # the copy scores the same and is later in the alphabet
    assert all((one["score"] >= one["threshold"]) == (one["label"] != "unknown") for one in answers)
    assert err == ""
    for number in range(4, 8):
        run("enrol", "bundle", str(pictures / f"bird0{number}"), *QUICK)
    assert "calibrated for 4 enrolled classes and there are 6" in run("identify", "bundle", str(pictures), *QUICK)[2]


def test_the_index_is_kept_in_step(run: Run, pictures: Path, tmp_path: Path) -> None:
    Index.create(str(tmp_path / "index"), open_for_classes(tmp_path / "bundle").key).close()
    _, out, _ = run("enrol", "bundle", str(pictures), "--index", "index", *QUICK)
    assert "Index: 72 rows added, 0 replaced" in out
    _, out, _ = run("forget", "bundle", "bird01", "--index", "index")
    assert out == "Forgotten: bird01\nIndex: 6 rows removed\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("enrol", "bundle", "BIRDS", "--name", "x"), "--name 'x' names one class"),
        (("enrol", "bundle", "BIRDS/bird00", "--name", "unknown"), "is the answer where no class fits"),
        (("enrol", "bundle", "absent"), "absent"),
        (("enrol", "nothing", "BIRDS"), "holds no model"),
        (("forget", "bundle", "robin"), "holds no enrolled classes; add one with `proxemics enrol`"),
        (("identify", "bundle", "BIRDS"), "holds no enrolled classes"),
        (("enrol", "bundle", "BIRDS", "--index", "nowhere"), "nowhere"),
    ],
)
def test_errors_are_one_line(run: Run, pictures: Path, arguments: tuple[str, ...], words: str) -> None:
    code, out, err = run(*(one.replace("BIRDS", str(pictures)) for one in arguments))
    assert (code, out) == (2, "")
    assert err.startswith("Error: ")
    assert words in err
