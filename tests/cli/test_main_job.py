"""doctor -> split -> train -> evaluate -> report -> embed, as a person would type it."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from warm_processes import Warm

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def proxemics(warm: Warm) -> Command:
    """Run the command in a process of its own."""

    def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        done = warm.run(["-m", "proxemics", *arguments], cwd=cwd)
        assert done.returncode == 0, done.stderr[-3000:]
        return done

    return run


def sets(settings: list[str]) -> list[str]:
    return [part for one in settings for part in ("--set", one)]


def test_from_a_folder_to_embeddings(
    proxemics: Command, tiny_settings: list[str], tiny_folder: Path, tmp_path: Path
) -> None:
    photos = tmp_path / "photos"
    shutil.copytree(tiny_folder, photos)
    found = json.loads(proxemics("doctor", "photos", "--json", cwd=tmp_path).stdout)
    assert found["num_files"] == 96
    assert "test" in proxemics("split", "photos", "--out", "split.parquet", cwd=tmp_path).stdout
    settings = [one for one in tiny_settings if not one.startswith("data.source")]
    settings += ["data.split_file=split.parquet", "train.epochs=2"]
    done = proxemics("train", "--out", "runs/a", *sets(settings), cwd=tmp_path)
    assert "Report: runs/a/report.html" in done.stdout
    assert "Next:" in done.stdout
    run = tmp_path / "runs" / "a"
    assert (run / "report.html").stat().st_size > 10_000
    asked, used = (
        pd.read_parquet(path)["split"].tolist() for path in (tmp_path / "split.parquet", run / "split.parquet")
    )
    assert asked == used
    measured = json.loads(proxemics("evaluate", "runs/a", "--json", cwd=tmp_path).stdout)
    result = json.loads((run / "result.json").read_text())
    assert measured["rows"][0]["metrics"] == result["rows"][0]["metrics"]
    proxemics("embed", "runs/a", "photos", "--out", "vectors.parquet", cwd=tmp_path)
    vectors = pd.read_parquet(tmp_path / "vectors.parquet")
    assert len(vectors) == 96
    np.testing.assert_allclose(np.linalg.norm(np.stack(vectors["embedding"]), axis=1), 1, atol=1e-5)


def test_messy_folder_end_to_end_under_spawn(proxemics: Command, tmp_path: Path, tiny_settings: list[str]) -> None:
    """Scenarios K1 and K2: unicode names, CMYK, 16 bit, orientation, hidden files, a singleton; workers under spawn."""
    photos = tmp_path / "写真"
    generator = np.random.default_rng(1)
    for number in range(6):
        folder = photos / f"classe ü{number}"
        folder.mkdir(parents=True)
        for picture in range(4):
            pixels = (generator.normal(0, 12, (48, 40, 3)) + 40 * number + 20).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"photo {picture}.JPG", quality=90)
        (folder / ".DS_Store").write_bytes(b"\0")
    first = photos / "classe ü0"
    Image.open(first / "photo 0.JPG").convert("CMYK").save(first / "cmyk.jpg")
    Image.fromarray(generator.integers(0, 65535, (40, 40)).astype(np.uint16)).save(first / "deep.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.open(first / "photo 1.JPG").save(first / "turned.jpg", exif=exif)
    (photos / "alone").mkdir()
    Image.new("RGB", (40, 40)).save(photos / "alone" / "one.png")
    settings = [
        *(one for one in tiny_settings if not one.startswith(("data.source", "train.batch_size"))),
        "data.workers=1", "data.worker_start=spawn", "train.epochs=1",
    ]  # fmt: skip
    done = proxemics("train", "写真", "--out", "run", "--json", *sets(settings), cwd=tmp_path)
    result = json.loads(done.stdout)
    assert result["data"]["num_classes"] == 7
    # Without a batch size the few training classes decide.
    assert result["config"]["train"]["batch_size"] == 2 * result["data"]["splits"]["train"]["classes"]
    assert (tmp_path / "run" / "report.html").exists()


def test_two_processes_give_the_numbers_of_one(proxemics: Command, tiny_settings: list[str], tmp_path: Path) -> None:
    """User-pains 39, 43, 45: same weights up to rounding, each test picture counted once."""
    runs = {}
    for devices in (1, 2):
        out = f"run{devices}"
        line = ["--devices", str(devices), "--quiet", "--no-report", "--out", out]
        epochs = sets([*tiny_settings, "train.epochs=2", "model.freeze_bn=true"])
        done = proxemics("train", *line, *epochs, cwd=tmp_path)
        # Quiet means the result alone, said by one process.
        assert done.stdout.count("map_at_r") == 1
        assert "Model:" not in done.stdout
        assert "Data:" not in done.stderr
        runs[devices] = json.loads((tmp_path / out / "result.json").read_text())
    assert runs[1]["rows"][1]["metrics"] == pytest.approx(runs[2]["rows"][1]["metrics"])
    assert runs[1]["rows"][0]["num_queries"] == runs[2]["rows"][0]["num_queries"] > 0
    logs = [(tmp_path / f"run{n}" / "metrics.jsonl").read_text().splitlines() for n in (1, 2)]
    losses = [[json.loads(line)["loss"] for line in log if '"loss"' in line] for log in logs]
    assert len(losses[0]) == len(losses[1]) > 4
    assert losses[0][:4] == pytest.approx(losses[1][:4], rel=1e-4)


def test_config_verbs(proxemics: Command, tmp_path: Path) -> None:
    schema = json.loads(proxemics("config", "schema", cwd=tmp_path).stdout)
    assert "optim" in schema["properties"]
    shown = proxemics("config", "show", "--set", "train.epochs=3", cwd=tmp_path).stdout
    assert "epochs: 3" in shown
    (tmp_path / "a.yaml").write_text(shown)
    assert "is valid" in proxemics("config", "validate", "a.yaml", cwd=tmp_path).stdout
    assert proxemics("--version", cwd=tmp_path).stdout.startswith("proxemics 0.")
