"""Several runs on one page: paired numbers, the same queries in columns, bias cards and settings side by side."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from proxemics.core.errors import ConfigError, EvaluationError
from proxemics.core.files import read_json, write_json
from proxemics.report.compare import compare
from proxemics.report.compare_page import cell_table, left_out, verdicts, write_comparison
from proxemics.report.compare_runs import read_runs
from proxemics.report.comparison import columns_of, compared_cards, compared_queries, differing_settings, named_places


def part_of(html: str, name: str) -> str:
    found = re.search(rf'<section id="{name}".*?</section>', html, re.DOTALL)
    assert found is not None, name
    return found[0]


def test_numbers_are_those_of_the_paired_comparison(two_runs: list[str], comparison: str) -> None:
    found = compare(read_runs(two_runs), metrics=["recall_at_1", "map_at_r"], resamples=200)
    table = cell_table(found, found.parts[0])
    numbers = part_of(comparison, "numbers")
    good, noisy = table.lines
    assert (good.variant, good.baseline, noisy.variant) == ("good", True, "noisy")
    assert noisy.cells[0].difference.startswith("\u2212")
    assert noisy.cells[0].kind == "loss"
    assert noisy.cells[0].plot is not None
    low, middle, high = noisy.cells[0].plot
    assert low < middle < high < 60  # all below zero, which is drawn at 60
    for text in (noisy.cells[0].difference, noisy.cells[0].value, good.cells[0].value, noisy.cells[0].p):
        assert text in numbers
    assert "noisy: Recall@1" in verdicts(found)[0]
    assert "lower." in verdicts(found)[0]
    assert "Share of queries whose nearest other picture shows the same class." in numbers
    assert "higher is better" in numbers


def test_each_run_has_a_column_of_its_own_neighbours(two_runs: list[str], comparison: str) -> None:
    runs = columns_of(read_runs(two_runs), "good")
    queries = compared_queries(runs)
    assert queries is not None
    assert queries.total == 360
    assert len(queries.worst) == 12
    frames = [pd.read_parquet(run.folder / "per_query.parquet").set_index("path") for run in runs]
    for query in (*queries.worst, *queries.gained, *queries.lost):
        for answer, frame in zip(query.answers, frames, strict=True):
            row = frame.loc[query.path]
            assert answer.precision == pytest.approx(row["average_precision"])
            assert [one.path for one in answer.neighbours] == list(row["neighbours"])[:6]
            assert answer.neighbours[0].correct == (row["nearest_label"] == row["label"])
    means = [sum(answer.precision for answer in query.answers) / 2 for query in queries.worst]
    assert means == sorted(means)
    changes = [query.answers[1].precision - query.answers[0].precision for query in queries.lost]
    assert changes == sorted(changes)
    assert changes[-1] < 0
    assert all(query.answers[1].precision > query.answers[0].precision for query in queries.gained)
    section = part_of(comparison, "queries")
    assert section.count('<li class="compared"') == 12 + len(queries.gained) + len(queries.lost)
    assert section.count('<div class="answer">') == 2 * section.count('<li class="compared"')


def test_bias_cards_stand_beside_each_other(two_runs: list[str], comparison: str, bias_numbers: dict[str, Any]) -> None:
    runs = columns_of(read_runs(two_runs), "good")
    blocks = compared_cards(runs)
    assert [block.title for block in blocks][:2] == ["Background", "Nuisances"]
    lines = [line for block in blocks for line in block.lines]
    assert all(len(line.rows) == 2 for line in lines)
    changed = next(line for line in lines if line.title == "Goes with the background")
    assert changed.better == "down"
    assert changed.best == {1}  # the second card has half the value
    section = part_of(comparison, "probes")
    for line in lines:
        assert line.title in section.replace("&#39;", "'")
    assert "lower is better" in section


def test_settings_that_differ_are_listed(two_runs: list[str], comparison: str) -> None:
    runs = columns_of(read_runs(two_runs), "good")
    assert differing_settings(runs) == [("train.epochs", ("8", "3")), ("methods.see", ("–", "none"))]
    assert "train.epochs" in part_of(comparison, "settings")
    assert "train.select" not in part_of(comparison, "settings")


def test_the_page_names_nothing_outside(comparison: str) -> None:
    assert "script-src 'sha256-" in comparison
    assert not re.search(r'(?:src|href)="(?!data:|#)', comparison)
    assert not re.search(r"https?://", comparison.replace("http://www.w3.org", ""))
    links = set(re.findall(r'href="#([^"]+)"', comparison))
    assert links <= set(re.findall(r' id="([^"]+)"', comparison))


def test_runs_without_cards_and_neighbours_still_compare(two_runs: list[str], tmp_path: Path) -> None:
    bare = []
    for place in two_runs:
        name, _, folder = place.partition("=")
        shutil.copytree(folder, tmp_path / name)
        (tmp_path / name / "probe.json").unlink()
        frame = pd.read_parquet(tmp_path / name / "per_query.parquet")
        frame[["path", "label", "recall_at_1"]].to_parquet(tmp_path / name / "per_query.parquet")
        bare.append(str(tmp_path / name))
    page = write_comparison(bare, out=tmp_path / "c.html", resamples=100)
    text = page.read_text()
    assert 'id="numbers"' in text
    assert 'id="probes"' not in text
    assert 'id="queries"' not in text


def with_seed(folder: str | Path, other: Path, seed: int) -> Path:
    """Copy a run as if it had had another seed."""
    shutil.copytree(folder, other)
    result = read_json(other / "result.json")
    for row in result["rows"]:
        row["seed"] = seed
    write_json(other / "result.json", result)
    return other


def test_variants_without_a_column_are_named(two_runs: list[str], tmp_path: Path) -> None:
    name, _, folder = two_runs[1].partition("=")
    other = with_seed(folder, tmp_path / "other", 5)
    text = write_comparison([two_runs[0], f"{name}={other}"], out=tmp_path / "c.html", resamples=50).read_text()
    assert f"Not shown: {name}, without a run on " in text
    assert "2 variants" in text
    columns = columns_of(read_runs(two_runs), two_runs[0].partition("=")[0])
    assert left_out([run.variant for run in columns], columns) == ""
    assert left_out(["x", *(run.variant for run in columns)], 2 * columns) == "Only 4 variants are shown."


def test_one_variant_of_two_seeds_is_one_variant(two_runs: list[str], tmp_path: Path) -> None:
    folder = Path(two_runs[0].partition("=")[2])
    other = with_seed(folder, tmp_path / "other", 5)
    text = write_comparison([f"a={folder}", f"a={other}"], out=tmp_path / "c.html", resamples=50).read_text()
    assert "1 variant in 2 runs" in text


def test_runs_of_one_name_are_called_by_their_folders(two_runs: list[str], tmp_path: Path) -> None:
    folders = [place.partition("=")[2] for place in two_runs]
    assert named_places(folders) == [f"{Path(folder).name}={folder}" for folder in folders]
    assert named_places([folders[0]]) == [folders[0]]
    assert named_places(["a=b", str(tmp_path)]) == ["a=b", str(tmp_path)]
    assert [run.variant for run in read_runs(named_places(folders))] == [Path(folder).name for folder in folders]


def test_what_cannot_be_compared_says_so(two_runs: list[str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No runs to show"):
        write_comparison([])
    with pytest.raises(ConfigError, match="holds one run; give two or more"):
        write_comparison(two_runs[:1])
    with pytest.raises(ConfigError, match="no such variant"):
        write_comparison(two_runs, baseline="nobody")
    other = tmp_path / "other"
    shutil.copytree(two_runs[0].partition("=")[2], other)
    frame = pd.read_parquet(other / "per_query.parquet")
    frame.iloc[:-5].to_parquet(other / "per_query.parquet")
    result = read_json(other / "result.json")
    result["rows"][0]["metrics"] = {"recall_at_1": float(frame.iloc[:-5]["recall_at_1"].mean())}
    write_json(other / "result.json", result)
    with pytest.raises(EvaluationError, match="queries are in only one of the two runs"):
        write_comparison([two_runs[0], f"other={other}"], metrics=["recall_at_1"])


def test_labels_cannot_become_markup(two_runs: list[str], tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    places = [f"{evil}={place.partition('=')[2]}" if number else place for number, place in enumerate(two_runs)]
    text = write_comparison(places, out=tmp_path / "c.html", resamples=50).read_text()
    assert evil not in text
    assert "&lt;script&gt;alert(1)" in text
    assert json.dumps(evil) not in text
