"""`proxemics export` and `proxemics hub` on the command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from proxemics import runtime
from proxemics.cli.main import main
from proxemics.models import Embedder, load_bundle, save_bundle

Run = Callable[..., tuple[int, str, str]]


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

    torch.set_num_threads(1)
    save_bundle(Embedder("test_resnet", dim=8, weights="none", size=32), tmp_path / "bundle", labels=["owl"])
    monkeypatch.chdir(tmp_path)
    return call


def test_export_measures_and_tells(run: Run, tiny_folder: Path, tmp_path: Path) -> None:
    code, out, err = run(
        "export", "bundle", "--out", "out", "--precision", "float32,int8", "--data", str(tiny_folder), "--images", "24"
    )  # fmt: skip
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split() == ["precision", "MB", "difference", "R@1", "drift", "95", "%", "changed"]
    assert max(map(len, lines[:3])) <= 80
    assert [line.split()[0] for line in lines[1:3]] == ["float32", "int8"]
    assert "24 queries (24 pictures of photos that int8 was not calibrated on)." in lines[4]
    assert "bfloat16 was not written: ONNX Runtime has no bf16" in out
    fingerprint = load_bundle(tmp_path / "bundle").fingerprint()
    assert lines[-1] == f"Bundle: {tmp_path / 'out'} (model {fingerprint[:12]})"
    picture = next(tiny_folder.rglob("*.png"))
    full, small = (runtime.load("out", precision=name, threads=1).embed([picture]) for name in ("float32", "int8"))
    assert 0.9 < float((full @ small.T).item()) < 1 - 1e-9


def test_json_and_quiet(run: Run, tmp_path: Path) -> None:
    code, out, err = run("export", "bundle", "--out", "out", "--no-onnx", "--json", "--licence", "mit")
    assert (code, err) == (0, "")
    written = json.loads(out)
    assert written["folder"] == str(tmp_path / "out")
    assert written["licences"] == {"model": "mit", "weights": written["licences"]["weights"], "data": "not stated"}
    assert sorted(written["files"]) == [
        "card.md", "certainty.json", "labels.json", "model.json", "model.safetensors", "parity.json", "preprocess.json",
    ]  # fmt: skip
    code, out, _ = run("export", "bundle", "--out", "out", "--no-onnx", "--quiet")
    assert (code, out.count("\n")) == (0, 1)
    assert out.startswith("Bundle: ")
    code, out, _ = run("export", "bundle", "--out", "out", "--no-onnx")
    assert "No ONNX: it was left out (--no-onnx)." in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("export", "nothing", "--out", "o"), "Error: nothing holds no model; give a run folder or a bundle folder"),
        (("export", "bundle", "--out", "o", "--precision", "int8"), "Error: int8 needs pictures to calibrate on"),
        (("export", "bundle", "--out", "o", "--precision", "int4"), "Error: Unknown precision 'int4'. Did you mean"),
        (("export", "bundle", "--out", "o", "--data", "gone"), "Error: "),
        (("export", "bundle", "--out", "o", "--where", "label"), "Error: --where 'label': write COLUMN=VALUE."),
        (("export", "bundle"), "Missing option '--out'"),
        (("hub", "push", "nothing", "./repo"), "Error: nothing is no bundle: it has no model.safetensors."),
        (("hub", "pull", "./nothing", "--out", "o"), "Error: There is no folder nothing."),
    ],
)
def test_bad_input_gives_one_line(arguments: tuple[str, ...], message: str, run: Run, tmp_path: Path) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert not (tmp_path / "o").exists()


def test_a_bundle_goes_to_a_folder_and_back(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("hub", "push", "bundle", "./repo")
    assert (code, out) == (0, "Pushed: " + str(tmp_path / "repo") + "\n")
    code, out, _ = run("hub", "push", "bundle", "./repo", "--json")
    assert json.loads(out) == {"pushed": str(tmp_path / "repo")}
    fingerprint = load_bundle("bundle").fingerprint()
    code, out, _ = run("hub", "pull", "./repo", "--out", "back")
    assert (code, out) == (0, f"Bundle: {tmp_path / 'back'} (model {fingerprint[:12]})\n")
    code, out, _ = run("hub", "pull", "repo", "--out", "back", "--json")
    assert json.loads(out) == {"bundle": str(tmp_path / "back"), "fingerprint": fingerprint}
    assert load_bundle("back").fingerprint() == fingerprint
