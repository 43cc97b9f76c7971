"""`proxemics doctor` on the command line."""

from __future__ import annotations

from pathlib import Path

from PIL import Image
from typer.testing import CliRunner

from proxemics.cli.main import app


def test_one_picture_is_no_pictures(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    Image.new("RGB", (64, 64), (9, 99, 199)).save(tmp_path / "cat" / "1.png")
    out = CliRunner().invoke(app, ["doctor", str(tmp_path)]).output
    assert f"{tmp_path}: 1 picture of 1 class\n" in out
    Image.new("RGB", (64, 64), (199, 99, 9)).save(tmp_path / "cat" / "2.png")
    assert f"{tmp_path}: 2 pictures of 1 class\n" in CliRunner().invoke(app, ["doctor", str(tmp_path)]).output
