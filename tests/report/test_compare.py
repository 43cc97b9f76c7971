"""Tables of runs: the numbers in them, what is refused, and that each format says the same."""

from __future__ import annotations

import csv
import io
import json
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from proxemics.core.errors import ConfigError, DataError, EvaluationError
from proxemics.core.files import write_json
from proxemics.evaluation.paired import class_sums, paired_bootstrap
from proxemics.report.compare import Entry, Line, Part, compare
from proxemics.report.compare_runs import read_runs
from proxemics.report.compare_text import FORMATS, best_lines, to_records

CLASSES, EACH = 12, 5


def make_run(
    folder: Path,
    *,
    seed: int = 0,
    gain: float = 0.0,
    base: str = "proxy_anchor",
    root: str = "/pictures",
    drop: int = 0,
    fingerprint: str = "same",
    dataset: str = "birds",
    cell: dict | None = None,
) -> Path:
    """Write what a comparison reads; the values of a seed are alike for all gains, and a gain lifts some queries."""
    draw = np.random.default_rng(seed)
    count = CLASSES * EACH - drop
    labels = np.array([f"class{number // EACH:02d}" for number in range(count)])
    paths = [f"{root}/{label}/{number}.jpg" for number, label in enumerate(labels)]
    luck = draw.random(count)
    hits = (luck < 0.5 + gain).astype(float)
    precision = np.clip(luck * 0.5 + gain, 0, 1)
    order = np.random.default_rng(len(str(folder))).permutation(count)
    queries = pd.DataFrame({"path": paths, "label": labels, "domain": "", "recall_at_1": hits, "map_at_r": precision})
    folder.mkdir(parents=True)
    queries.iloc[order].to_parquet(folder / "per_query.parquet", index=False)
    split = queries[["path", "label", "domain"]].assign(split="test")
    train = pd.DataFrame({"path": [f"{root}/t.jpg"], "label": "t", "domain": "", "split": "train"})
    split = pd.concat([split, train], ignore_index=True)
    split.attrs["root"] = root
    split.to_parquet(folder / "split.parquet", index=False)
    row = {
        "dataset": dataset, "protocol": "zero_shot", "trunk": "t", "base": base, "method": "none",
        "augmentation": "plain", "seed": seed, "intervals": {},
        "metrics": {"recall_at_1": float(hits.mean()), "map_at_r": float(precision.mean()), "nmi": 0.5},
    }  # fmt: skip
    data = {"fingerprint": fingerprint}
    write_json(
        folder / "result.json", {"rows": [row], "data": data, "versions": {"torch": "2"}, "unseen_classes": True}
    )
    if cell is not None:
        write_json(folder / "cell.json", cell)
    return folder


@pytest.fixture
def pair(tmp_path: Path) -> list[str]:
    for seed in (0, 1, 2):
        make_run(tmp_path / "a" / f"run{seed}", seed=seed)
        make_run(tmp_path / "b" / f"a longer name {seed}", seed=seed, gain=0.3, root="/elsewhere/photos")
    return [f"plain={tmp_path / 'a'}", f"better={tmp_path / 'b'}"]


def test_the_numbers_are_those_of_the_statistics(pair: list[str]) -> None:
    """Queries are matched by path though the folder of the pictures moved and the order of rows differs."""
    found = compare(read_runs(pair), resamples=500)
    plain, better = found.parts[0].lines
    assert (plain.variant, plain.seeds, better.variant, found.baseline) == ("plain", (0, 1, 2), "better", "plain")
    assert found.num_comparisons == 2
    sums, means = [], []
    for seed in (0, 1, 2):
        luck = np.random.default_rng(seed).random(CLASSES * EACH)
        first, second = (luck < 0.8).astype(float), (luck < 0.5).astype(float)
        sums.append(class_sums(first, second, [f"class{number // EACH:02d}" for number in range(CLASSES * EACH)]))
        means.append(first.mean())
    entry = better.entries[0]
    assert entry.mean == pytest.approx(np.mean(means))
    assert entry.deviation == pytest.approx(np.std(means, ddof=1))
    expected = paired_bootstrap(sums, resamples=500)
    assert entry.difference is not None
    assert entry.difference.estimate == expected
    assert entry.difference.p_corrected == pytest.approx(2 * expected.p)  # two comparisons, both as small as can be
    assert entry.difference.significant
    assert plain.entries[0].difference is None


def test_the_other_baseline_turns_the_sign(pair: list[str]) -> None:
    found = compare(read_runs(pair), baseline="better", metrics=["map_at_r"])
    difference = found.parts[0].lines[0].entries[0].difference
    assert difference is not None
    assert difference.estimate.difference < 0
    assert found.parts[0].lines[0].variant == "plain"


def test_identical_runs_differ_by_nothing(tmp_path: Path) -> None:
    places = [f"{name}={make_run(tmp_path / name)}" for name in ("a", "b")]
    found = compare(read_runs(places))
    (difference,) = {entry.difference for entry in found.parts[0].lines[1].entries}
    assert difference is not None
    estimate = difference.estimate
    assert (estimate.difference, estimate.low, estimate.high, difference.p_corrected) == (0, 0, 0, 1)
    assert any("one seed only" in note for note in found.notes)


def test_other_test_pictures_are_refused_and_named(tmp_path: Path) -> None:
    first = make_run(tmp_path / "a", fingerprint="1111111122")
    second = make_run(tmp_path / "b", drop=3, fingerprint="3333333344")
    with pytest.raises(EvaluationError, match=r"b and .*a were tested on different pictures .*33333333 and 11111111"):
        compare(read_runs([f"x={first}", f"y={second}"]))


def test_other_training_pictures_are_said(tmp_path: Path) -> None:
    runs = read_runs([f"x={make_run(tmp_path / 'a')}", f"y={make_run(tmp_path / 'b', fingerprint='other')}"])
    assert any("trained on different data" in note for note in compare(runs).notes)


def test_seeds_without_a_partner_are_left_out_and_said(pair: list[str], tmp_path: Path) -> None:
    make_run(tmp_path / "b" / "more", seed=7, gain=0.3)
    found = compare(read_runs(pair))
    line = found.parts[0].lines[1]
    assert line.seeds == (0, 1, 2, 7)
    assert line.entries[0].difference is not None
    assert line.entries[0].difference.estimate.num_seeds == 3
    assert any("seeds 7 are in only one" in note for note in found.notes)


def test_data_sets_are_kept_apart_and_corrected_together(pair: list[str], tmp_path: Path) -> None:
    make_run(tmp_path / "a" / "cars", dataset="cars")
    make_run(tmp_path / "b" / "cars", dataset="cars", gain=0.1)
    make_run(tmp_path / "b" / "dogs", dataset="dogs")
    found = compare(read_runs(pair))
    assert {part.dataset: len(part.lines) for part in found.parts} == {"birds": 2, "cars": 2, "dogs": 1}
    assert found.num_comparisons == 4
    assert any("dogs has no run of plain" in note for note in found.notes)


def test_a_metric_of_the_whole_has_no_paired_difference(pair: list[str]) -> None:
    found = compare(read_runs(pair), metrics=["nmi"])
    assert found.parts[0].lines[1].entries[0].mean == 0.5
    assert found.parts[0].lines[1].entries[0].difference is None
    assert any("no mean over queries" in note for note in found.notes)


def test_enough_resamples_for_so_many_comparisons(pair: list[str], tmp_path: Path) -> None:
    places = [*pair, *(f"v{n}={make_run(tmp_path / f'v{n}', gain=0.1)}" for n in range(12))]
    assert compare(read_runs(places)).resamples == 2600
    few = compare(read_runs(places), resamples=50)
    assert any("raise --resamples" in note for note in few.notes)


def test_what_is_wrong_is_said(pair: list[str], tmp_path: Path) -> None:
    runs = read_runs(pair)
    with pytest.raises(ConfigError, match=r"no such variant. Did you mean 'plain'"):
        compare(runs, baseline="plan")
    with pytest.raises(ConfigError, match=r"no run has it. Did you mean 'recall_at_1'"):
        compare(runs, metrics=["recall_at_l"])
    with pytest.raises(DataError, match="There is no folder"):
        read_runs([str(tmp_path / "absent")])
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no finished run"):
        read_runs([str(tmp_path / "empty")])
    with pytest.raises(DataError, match="are both proxy_anchor on birds with seed 0"):
        read_runs([str(tmp_path / "a" / "run0"), str(tmp_path / "b" / "a longer name 0")])
    result = json.loads((tmp_path / "a" / "run0" / "result.json").read_text())
    result["rows"][0]["metrics"]["recall_at_1"] = 0.1
    write_json(tmp_path / "a" / "run0" / "result.json", result)
    with pytest.raises(DataError, match="not of one run"):
        compare(read_runs(pair))


def test_a_sweep_is_read_by_its_contents(tmp_path: Path) -> None:
    """Trials and runs of an older plan do not count; settings name the variants only where there are several."""
    names = []
    for variant, gain in (("see", 0.2), ("plain", 0.0)):
        for seed in (0, 1):
            cell = {"dataset": "", "variant": variant, "seed": seed, "settings": {"optim.lr": 0.1}}
            names.append(make_run(tmp_path / f"{variant}{seed}", seed=seed, gain=gain, cell=cell).name)
    make_run(tmp_path / "old", cell={"dataset": "", "variant": "see", "seed": 0, "settings": {}})
    contents = {"variants": ["see", "plain"], "trials": ["old"], "runs": [*names, "unfinished"]}
    write_json(tmp_path / "cells.json", contents)
    found = compare(read_runs([str(tmp_path)]))
    assert found.baseline == "see"
    assert [(line.variant, line.seeds) for line in found.parts[0].lines] == [("see", (0, 1)), ("plain", (0, 1))]
    write_json(tmp_path / "cells.json", {**contents, "runs": [*names, "old"]})
    assert {run.variant for run in read_runs([str(tmp_path)])} == {"see lr=0.1", "see", "plain lr=0.1"}
    write_json(tmp_path / "cells.json", {**contents, "runs": []})
    with pytest.raises(DataError, match=r"search .* is not over"):
        read_runs([str(tmp_path)])


@pytest.mark.parametrize(("seeds", "best"), [((0, 1), {1}), ((1, 2), {1}), ((2, 3), set())])
def test_no_mean_is_called_the_best_where_no_seed_is_common(seeds: tuple[int, int], best: set[int]) -> None:
    """A seed may draw the test classes."""
    lines = [Line("a", (0, 1), (Entry(0.5, None),)), Line("b", seeds, (Entry(0.6, None),))]
    assert best_lines(Part("birds", "zero_shot", tuple(lines)), 0, "recall_at_1") == best


class Cells(HTMLParser):
    """Collects the text of table cells, and what a page would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [str(value) for name, value in attrs if name in ("src", "href")]
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_data(self, data: str) -> None:
        if self.cells:
            self.cells[-1] += data


def test_every_format_says_the_same(pair: list[str], tmp_path: Path) -> None:
    places = [*pair, f"<a|b>_&={make_run(tmp_path / 'odd')}"]
    found = compare(read_runs(places))
    text = {name: write(found, 1) for name, write in FORMATS.items()}
    records = to_records(found)
    assert json.loads(text["json"])["rows"] == records
    rows = list(csv.DictReader(io.StringIO(text["csv"])))
    assert [float(row["mean"]) for row in rows] == [record["mean"] for record in records]
    assert [row["significant"] for row in rows if row["variant"] == "better"] == ["True", "True"]
    mean = f"{100 * records[2]['mean']:.1f} ± {100 * records[2]['deviation']:.1f}"
    page = Cells()
    page.feed(text["html"])
    assert mean in page.cells
    assert "<a|b>_&" in page.cells
    assert page.fetched == []
    lines = [line for line in text["md"].splitlines() if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in lines} == {9}
    assert f"**{mean}**" in text["md"]
    assert "\\textbf{" + mean.replace("±", "$\\pm$") + "}" in text["latex"]
    assert "<a|b>\\_\\&" in text["latex"]
    body = [line for line in text["latex"].splitlines() if line.endswith("\\\\") and "multicolumn{6}" not in line]
    assert {line.replace("\\&", "").count("&") for line in body[1:]} == {5}
    for name in ("md", "html", "latex"):
        assert "Holm" in text[name]
    assert "\\*" in text["md"]
    assert "$^{*}$" in text["latex"]
