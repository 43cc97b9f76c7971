"""Result files in a comparison: the tables of the documentation come out again, and what cannot be paired is said."""

from __future__ import annotations

import copy
import csv
import importlib.util
import io
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from proxemics.cli.main import main
from proxemics.core.errors import ConfigError, DataError, EvaluationError
from proxemics.core.files import write_json
from proxemics.report.compare import Comparison, compare
from proxemics.report.compare_rows import FileRow, read_compared
from proxemics.report.compare_text import FORMATS, difference_text, number, to_records

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"files_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make_run = _load("test_compare").make_run


def entries(found: Comparison, metric: str = "recall_at_1") -> dict[tuple[str, str], Any]:
    column = found.metrics.index(metric)
    return {(part.dataset, line.variant): line.entries[column] for part in found.parts for line in part.lines}


def test_the_table_of_base_losses_is_that_of_the_page() -> None:
    """benchmarks/README.md: untrained, and each loss with its difference for each seed."""
    page = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    found = entries(
        compare(
            read_compared([str(RESULTS / "real_base.json")], untrained=True),
            baseline="untrained trunk",
            metrics=["recall_at_1"],
        )
    )
    rows = re.findall(
        r"^\| (cub200_2010|cars196|grocery), ?.*|^\| (cub200_2010|cars196) \|.*", page, flags=re.MULTILINE
    )
    shown = [line for line in page.splitlines() if re.match(r"\| (cub200_2010|cars196|grocery)[ ,].*\(\+", line)]
    assert len(shown) == len(rows) == 3
    for line in shown:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        name = cells[0].partition(",")[0]
        assert cells[2] == number(found[name, "untrained trunk"].mean, "recall_at_1", 1)
        for cell, loss in zip(cells[3:], ("norm_softmax", "proxy_anchor"), strict=True):
            entry = found[name, loss]
            of_seeds = difference_text(entry, "recall_at_1", 1).partition(" ")[2]
            assert cell == f"{number(entry.mean, 'recall_at_1', 1)} {of_seeds}"


def test_the_table_of_the_controlled_study_is_that_of_the_page() -> None:
    """docs/evidence.md: R@1, MAP@R, and the difference to the base with its interval; and every stored difference."""
    file = RESULTS / "controlled.json"
    whole = json.loads(file.read_text())
    found = compare(read_compared([str(file)]), resamples=2000)
    assert found.baseline == "proxy_anchor"  # rows without a method come first
    views = compare(read_compared([str(file)]), baseline="proxy_anchor + none_views_4", resamples=2000)
    bases = {"none": found, "none_views_4": views}
    against = {row["method"]: row["against"] for row in whole["rows"]}
    for one in whole["differences"]:
        assert one["against"] == against[one["method"]]
        method = one["method"] + (" + strong" if one["method"] == "strong" else "")
        key = (f"controlled_emoji_rho{one['rho']:g}", f"proxy_anchor + {method}")
        entry = entries(bases[one["against"]], one["metric"])[key]
        estimate = entry.difference.estimate
        assert estimate.difference == pytest.approx(one["difference"], abs=1e-12)
        assert [estimate.low, estimate.high] == pytest.approx(one["interval"], abs=1e-12)
        assert estimate.p == pytest.approx(one["p"], abs=1e-12)
        assert estimate.num_seeds == len(one["seeds"])
    page = (ROOT / "docs" / "evidence.md").read_text(encoding="utf-8")
    page = page.partition("<!-- table of benchmarks/results/controlled.json -->")[2].partition("<!-- end -->")[0]
    lines = [line.split("|")[1:-1] for line in page.splitlines() if re.match(r"\| 0(\.\d+)? \| \w+ \|", line)]
    assert len(lines) == len({(row["rho"], row["method"]) for row in whole["rows"]})
    for cells in lines:
        rho, method, seeds, recall, precision, _, difference = (cell.strip() for cell in cells[:7])
        name = "proxy_anchor" if method == "none" else f"proxy_anchor + {method}"
        key = (f"controlled_emoji_rho{rho}", name + " + strong" * (method == "strong"))
        for metric, shown in (("recall_at_1", recall), ("map_at_r", precision)):
            assert float(shown) == pytest.approx(100 * entries(found, metric)[key].mean, abs=0.0501)
        told = difference_text(entries(bases[against[method]])[key], "recall_at_1", 1).removesuffix(" *")
        signs = [re.sub(r"\d", "", text.replace("-0.0", "+0.0")) for text in (difference, told)]
        assert signs[0] == signs[1]
        figures = [[float(one) for one in re.findall(r"[+-][\d.]+", text)] for text in (difference, told)]
        assert figures[0] == pytest.approx(figures[1], abs=0.1001)  # 0.25 may be rounded up or down
        assert int(seeds) == sum((row["rho"], row["method"]) == (float(rho), method) for row in whole["rows"])


def row(seed: int, method: str = "none", value: float = 0.5, **more: Any) -> dict[str, Any]:
    hits = [value * 4, value * 6]
    return {
        "dataset": "birds", "protocol": "zero_shot", "base": "proxy_anchor", "method": method, "augmentation": "plain",
        "seed": seed, "fingerprint": "same", "metrics": {"recall_at_1": value, "map_at_r": value / 2}, "intervals": {},
        "per_class": {"labels": ["b", "a"], "count": [4, 6], "recall_at_1": hits, "map_at_r": [h / 2 for h in hits]},
        **more,
    }  # fmt: skip


def write(path: Path, *rows: dict[str, Any], **more: Any) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"schema": 1, "versions": {"torch": "2"}, "rows": list(rows), **more})
    return str(path)


def test_classes_that_a_file_lists_once_are_those_of_its_rows(tmp_path: Path) -> None:
    rows = [row(seed, method, value) for seed in (0, 1) for method, value in (("none", 0.5), ("see", 0.7))]
    apart = write(tmp_path / "apart.json", *rows)
    listed = {key: rows[0]["per_class"][key] for key in ("labels", "count")}
    for one in rows:
        sums = {key: value for key, value in one["per_class"].items() if key not in listed}
        one["per_class"] = {"classes": "all", **sums}
    once = write(tmp_path / "once.json", *rows, classes={"all": listed})
    tables = [entries(compare(read_compared([file]))) for file in (apart, once)]
    estimates = [table["birds", "proxy_anchor + see"].difference.estimate for table in tables]
    assert estimates[0] == estimates[1]
    assert estimates[0].difference == pytest.approx(0.2)
    lost = write(tmp_path / "lost.json", *rows, classes={"some": listed})
    with pytest.raises(DataError, match="has a row of the classes 'all', which the file does not list"):
        read_compared([lost])


def test_rows_with_sums_have_an_interval_and_those_without_do_not(tmp_path: Path) -> None:
    with_sums = [row(seed, method, value) for seed in (0, 1) for method, value in (("see", 0.7), ("none", 0.5))]
    bare = [{key: value for key, value in one.items() if key != "per_class"} for one in with_sums]
    first = compare(read_compared([write(tmp_path / "a.json", *with_sums)]))
    second = compare(read_compared([write(tmp_path / "b.json", *bare)]))
    sure, unsure = (entries(found)["birds", "proxy_anchor + see"].difference for found in (first, second))
    assert (first.baseline, second.baseline) == ("proxy_anchor", "proxy_anchor")
    assert sure.estimate.low == pytest.approx(0.2)
    assert sure.estimate.num_classes == 2
    assert sure.per_seed == unsure.per_seed == pytest.approx((0.2, 0.2))
    assert unsure.estimate.low != unsure.estimate.low
    assert unsure.significant is False
    assert (first.num_comparisons, second.num_comparisons) == (2, 0)
    assert any("b.json has differences without sums" in note for note in second.notes)
    records = to_records(second)
    assert [one["low"] for one in records] == [None] * 4
    json.loads(FORMATS["json"](second, 1))
    rows = list(csv.DictReader(io.StringIO(FORMATS["csv"](second, 1))))
    assert [float(one) for one in rows[2]["per_seed"].split()] == pytest.approx([0.2, 0.2])
    assert "+20.0 (+20.0, +20.0)" in FORMATS["md"](second, 1)


def test_a_run_folder_is_paired_with_a_row_of_a_file(tmp_path: Path) -> None:
    """The row holds the sums of another run, so the difference is that of the two run folders."""
    folders = [make_run(tmp_path / name, seed=3, gain=gain) for name, gain in (("plain", 0.0), ("better", 0.3))]
    expected = compare(read_compared([f"{one.name}={one}" for one in folders]), resamples=300)
    better = read_compared([str(folders[1])])[0]
    sums = {metric: better.class_totals(metric) for metric in ("recall_at_1", "map_at_r")}
    per_class = {"labels": sums["recall_at_1"].names.tolist(), "count": sums["recall_at_1"].count.tolist()}
    kept = {
        **better.row,
        "fingerprint": "same",
        "per_class": per_class | {n: s.total.tolist() for n, s in sums.items()},
    }
    file = write(tmp_path / "kept.json", kept)
    found = compare(read_compared([f"plain={folders[0]}", f"better={file}"]), resamples=300)
    assert found.baseline == "plain"
    for metric in ("recall_at_1", "map_at_r"):
        one, other = (entries(each, metric)["birds", "better"].difference.estimate for each in (found, expected))
        assert one.difference == pytest.approx(other.difference, abs=1e-12)
        assert (one.low, one.high, one.p) == pytest.approx((other.low, other.high, other.p), abs=1e-12)
    swapped = compare(read_compared([f"better={file}", f"plain={folders[0]}"]), resamples=300)
    assert swapped.baseline == "better"


def test_a_result_file_away_from_its_run_and_inside_it(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    inside = read_compared([str(run / "result.json")])
    assert inside[0].folder == run
    moved = tmp_path / "moved.json"
    moved.write_bytes((run / "result.json").read_bytes())
    (alone,) = read_compared([str(moved)])
    assert isinstance(alone, FileRow)
    assert (alone.fingerprint, alone.variant, alone.seed) == ("same", "proxy_anchor", 0)
    assert compare([*inside, *read_compared([f"moved={moved}"])]).parts[0].lines[1].entries[0].difference is not None


def test_names_and_rows_that_differ_in_options(tmp_path: Path) -> None:
    options = [{"odba": {"lambda_o": 5, "ramp": 1}}, {"odba": {"lambda_o": 9, "ramp": 1}}]
    rows = [row(0), *(row(0, "odba", options=one) for one in options)]
    found = read_compared([write(tmp_path / "a.json", *rows), f"new={write(tmp_path / 'b.json', row(0, 'see'))}"])
    assert [run.variant for run in found] == [
        "proxy_anchor", "proxy_anchor + odba (lambda_o=5)", "proxy_anchor + odba (lambda_o=9)", "new",
    ]  # fmt: skip
    named = read_compared([f"old={tmp_path / 'a.json'}"])
    assert named[0].variant == "old proxy_anchor"
    with pytest.raises(DataError, match=r"a\.json and .*a\.json both hold proxy_anchor \+ see on birds with seed 0"):
        read_compared([write(tmp_path / "a.json", row(0, "see"), row(0, "see"))])


def test_the_untrained_trunk_is_shown_when_asked_for(tmp_path: Path) -> None:
    file = write(tmp_path / "a.json", row(0), row(0, "frozen", 0.2))
    assert [run.variant for run in read_compared([file])] == ["proxy_anchor"]
    assert [run.variant for run in read_compared([file], untrained=True)] == ["proxy_anchor", "untrained trunk"]
    with pytest.raises(DataError, match="holds the untrained trunk alone; add --untrained"):
        read_compared([write(tmp_path / "b.json", row(0, "frozen"))])


def test_other_test_pictures_are_refused(tmp_path: Path) -> None:
    other = row(0, "see", fingerprint="other00000")
    for change in ({"count": [5, 5]}, {"labels": ["b", "c"]}):
        changed = copy.deepcopy(other)
        changed["per_class"] |= change
        with pytest.raises(
            EvaluationError, match=r"tested on different pictures \(data fingerprints other000 and same"
        ):
            compare(read_compared([write(tmp_path / "a.json", row(0), changed)]))
        changed["fingerprint"] = "same"
        with pytest.raises(EvaluationError, match="other test classes, or other numbers of queries"):
            compare(read_compared([write(tmp_path / "a.json", row(0), changed)]))
    found = compare(read_compared([write(tmp_path / "a.json", row(0), other)]))
    assert any("trained on different data" in note for note in found.notes)
    unmarked = {key: value for key, value in other.items() if key != "fingerprint"}
    found = compare(read_compared([write(tmp_path / "a.json", row(0), unmarked)]))
    assert any("has no data fingerprints" in note for note in found.notes)


def test_what_is_no_result_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "text.json").write_text("not JSON")
    with pytest.raises(Exception, match="not valid JSON"):
        read_compared([str(tmp_path / "text.json")])
    with pytest.raises(DataError, match="rows of time; only rows of quality"):
        read_compared([str(RESULTS / "losses.json")])
    with pytest.raises(DataError, match="is no result file: it has no rows"):
        read_compared([write(tmp_path / "none.json")])
    with pytest.raises(DataError, match=r"There is no folder .*absent.* or result files"):
        read_compared([str(tmp_path / "absent")])
    wrong = row(0, "see")
    wrong["per_class"]["recall_at_1"] = [0, 0]
    with pytest.raises(DataError, match=r"recall_at_1 of proxy_anchor \+ see with seed 0 is 0\.5000, and 0\.0000 over"):
        compare(read_compared([write(tmp_path / "a.json", row(0), wrong)]))
    with pytest.raises(ConfigError, match=r"no run has it. Did you mean 'map_at_r'"):
        compare(read_compared([str(RESULTS / "controlled.json")]), metrics=["map_at"])


def test_the_command_takes_files(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    for arguments, code, part in (
        (["--untrained", "--baseline", "untrained trunk", "--format", "md"], 0, "+4.8 (+4.6, +5.4, +4.5)"),
        (["--baseline", "untrained trunk"], 2, "no such variant"),
    ):
        monkeypatch.setattr(sys, "argv", ["proxemics", "compare", str(RESULTS / "real_base.json"), *arguments])
        with pytest.raises(SystemExit) as stopped:
            main()
        assert int(stopped.value.code or 0) == code
        shown = capfd.readouterr()
        assert part in (shown.err if code else shown.out)
