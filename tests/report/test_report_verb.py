"""`proxemics report`: one run, several runs, wrong options."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from proxemics.cli.main import app
from proxemics.core.errors import ConfigError, DataError


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["report", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_one_run(full_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "page.html"
    said = run(full_run, "--out", out, "--points", 40, "--no-similarity", "--quiet")
    assert f"Report: {out}" in said
    text = out.read_text()
    assert "40 of 360 test pictures, drawn at random" in text
    assert 'id="similarity"' not in text


def test_several_runs(two_runs: list[str], tmp_path: Path) -> None:
    out = tmp_path / "c.html"
    said = run(*two_runs, "--out", out, "--baseline", "noisy", "--metric", "recall_at_1")
    assert f"Comparison: {out}" in said
    text = out.read_text()
    assert "Differences are to <b>noisy</b>" in text
    assert "good: Recall@1" in text


def test_a_folder_of_runs_is_compared(two_runs: list[str], tmp_path: Path) -> None:
    folder = Path(two_runs[0].partition("=")[2]).parent
    said = run(folder, "--out", tmp_path / "c.html")
    assert "Comparison:" in said
    assert "Differences are to <b>first</b>" in (tmp_path / "c.html").read_text()
    assert run("a=" + str(folder / "first"), "b=" + str(folder / "second")).strip().endswith("comparison.html")
    assert (folder / "comparison.html").exists()


@pytest.mark.parametrize(
    "option", [("--projection", "pca"), ("--perplexity", "30"), ("--points", "0"), ("--no-similarity",)]
)
def test_options_of_one_run_are_refused_with_several(two_runs: list[str], tmp_path: Path, option: list[str]) -> None:
    with pytest.raises(ConfigError, match="the page of several runs has no map"):
        run(*two_runs, "--out", tmp_path / "c.html", *option)
    assert not (tmp_path / "c.html").exists()


def test_wrong_options_say_so(full_run: Path, tmp_path: Path) -> None:
    for arguments, words in (
        ([full_run, "--projection", "umap"], "no such projection"),
        ([full_run, "--projection", "tsne", "--perplexity", "-1"], "give a positive number"),
        ([full_run, "--baseline", "x"], "--baseline and --metric compare runs"),
        ([f"x={full_run}"], "holds one run"),
    ):
        with pytest.raises(ConfigError, match=words):
            run(*arguments)
    with pytest.raises(DataError, match="There is no folder"):
        run(tmp_path / "nowhere")
    assert CliRunner().invoke(app, ["report"]).exit_code == 2
