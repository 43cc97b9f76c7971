"""Bad input ends with one clear line and exit code 2; nothing is lost."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image
from warm_processes import Warm

from proxemics.cli.main import main

Run = Callable[..., tuple[int, str]]
Start = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def proxemics(warm: Warm) -> Start:
    """Run the real command in a process of its own."""

    def start(*arguments: str, limit_file_bytes: int | None = None) -> subprocess.CompletedProcess[str]:
        return warm.run(["-m", "proxemics", *arguments], limit_file_bytes=limit_file_bytes)

    return start


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """The entry point itself, without paying for another import of torch: returns exit code and standard error."""

    def call(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["proxemics", *arguments])
        with pytest.raises(SystemExit) as stopped:
            main()
        code = stopped.value.code
        return (code if isinstance(code, int) else 1), capfd.readouterr().err

    monkeypatch.chdir(tmp_path)
    return call


def sets(settings: list[str]) -> list[str]:
    return [part for one in settings for part in ("--set", one)]


def assert_one_line(done: subprocess.CompletedProcess[str] | tuple[int, str], *parts: str) -> None:
    code, text = done if isinstance(done, tuple) else (done.returncode, done.stderr)
    assert code == 2, (code, text[-2000:])
    lines = [line for line in text.splitlines() if line.startswith("Error:")]
    assert len(lines) == 1, text
    assert "Traceback" not in text
    for part in parts:
        assert part in lines[0], lines[0]


def test_missing_and_empty_folder(tmp_path: Path, run: Run, proxemics: Start) -> None:
    assert_one_line(proxemics("train", str(tmp_path / "absent")), "absent")
    (tmp_path / "empty").mkdir()
    assert_one_line(run("train", str(tmp_path / "empty")), "empty")
    assert_one_line(run("train"), "No pictures given")


def test_one_class(tmp_path: Path, run: Run) -> None:
    """User-pains 65."""
    folder = tmp_path / "photos" / "only"
    folder.mkdir(parents=True)
    for number in range(4):
        Image.new("RGB", (40, 40), (number * 20, 0, 0)).save(folder / f"{number}.png")
    assert_one_line(run("train", str(tmp_path / "photos")), "class")


def test_unreadable_picture_is_named(
    tiny_settings: list[str], tiny_folder: Path, tmp_path: Path, proxemics: Start
) -> None:
    """User-pains 66: the path stands in the message, even from a worker."""
    import shutil

    photos = tmp_path / "photos"
    shutil.copytree(tiny_folder, photos)
    for folder in photos.iterdir():
        (folder / "7.png").write_bytes(b"this is text")
    settings = [*tiny_settings, f"data.source={photos}", "data.workers=1"]
    assert_one_line(proxemics("train", "--out", str(tmp_path / "run"), *sets(settings)), "7.png")


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("model.trunk=resnet5", "resnet5"),
        ("loss.name=proxy_ancor", "Did you mean 'proxy_anchor'?"),
        ("loss.options.alhpa=3", "alhpa"),
        ("trian.epochs=3", "Did you mean 'train'?"),
        ("epochs=3", "epochs: no such key. Did you mean 'train.epochs'?"),
        ("loss=arcface", "loss is a section, not a single value. Did you mean 'loss.name'?"),
        ("train.batch_size=64", "batch"),
        ("model.weights=nowhere.safetensors", "nowhere.safetensors"),
        ("train.device=tpu", "use auto, cpu, cuda or mps"),
    ],
)
def test_wrong_values(assignment: str, expected: str, tiny_settings: list[str], tmp_path: Path, run: Run) -> None:
    done = run("train", "--out", str(tmp_path / "run"), *sets([*tiny_settings, assignment]))
    assert_one_line(done, expected)


def test_full_disk_keeps_the_checkpoint(tiny_settings: list[str], tmp_path: Path, proxemics: Start) -> None:
    out = tmp_path / "run"
    first = [*tiny_settings, "train.epochs=2"]
    done = proxemics("train", "--quiet", "--no-report", "--out", str(out), *sets(first))
    assert done.returncode == 0, done.stderr
    before = {path.name: path.read_bytes() for path in (out / "checkpoint").iterdir()}
    (out / "config.yaml").write_text((out / "config.yaml").read_text().replace("epochs: 2", "epochs: 3"))
    progress = (out / "checkpoint" / "latest.json").read_text().replace('"finished": true', '"finished": false')
    (out / "checkpoint" / "latest.json").write_text(progress)
    (out / "result.json").unlink()
    longer = [*tiny_settings, "train.epochs=3"]
    done = proxemics("train", "--quiet", "--no-report", "--out", str(out), *sets(longer), limit_file_bytes=50_000)
    assert_one_line(done, "Cannot write", "untouched")
    after = {path.name: path.read_bytes() for path in (out / "checkpoint").iterdir()}
    assert {name for name in before if name.startswith("step-")} <= set(after)
    done = proxemics("train", "--quiet", "--no-report", "--out", str(out), *sets(longer))
    assert done.returncode == 0, done.stderr


def test_wrong_flag_and_wrong_file(tmp_path: Path, run: Run) -> None:
    code, text = run("train", "--zzz", "3")
    assert code == 2
    assert "No such option" in text
    assert_one_line(run("train", "--config", str(tmp_path / "absent.yaml")), "No configuration file")
    (tmp_path / "bad.yaml").write_text("train: {epoch: 3}")
    assert_one_line(run("config", "validate", str(tmp_path / "bad.yaml")), "train.epoch", "Did you mean 'epochs'?")
    assert_one_line(run("evaluate", str(tmp_path)), "holds no model")
    assert_one_line(run("report", str(tmp_path)), str(tmp_path))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["train", "pictures", "--epochs", "3"], "No such option: --epochs. It is a setting: --set train.epochs=3"),
        (["train", "--loss=arcface"], "--set loss.name=arcface"),
        (["evaluate", "run", "--batch-size", "8", "--quiet"], "--set train.batch_size=8"),
        (["probe", "run", "--epochs", "3"], "No such option: --epochs"),
    ],
)
def test_a_setting_given_as_an_option(given: list[str], expected: str, run: Run) -> None:
    code, text = run(*given)
    text = " ".join(text.replace("│", " ").split())
    assert code == 2
    assert expected in text
    assert ("It is a setting" in text) == (given[0] != "probe")


def test_a_warning_is_one_line(tmp_path: Path, run: Run) -> None:
    for number in range(40):
        picture = tmp_path / "pictures" / f"class {number % 4}" / f"{number}.png"
        picture.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (16, 16), (number, 0, 0)).save(picture)
    code, text = run("split", str(tmp_path / "pictures"), "--out", "split.csv")
    assert code == 0
    assert text.startswith("Warning: 4 classes are too few to test on unseen classes")
    assert ".py:" not in text


def test_help_needs_no_torch() -> None:
    """The help is quick because it imports no torch."""
    code = "import sys, proxemics.cli.main; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    line = [sys.executable, "-m", "proxemics", "--help"]
    assert "train" in subprocess.run(line, capture_output=True, text=True, check=True).stdout
