"""The statistics of the controlled study on made-up rows."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from _controlled_table import differences, gaps, per_class, shifts, table
from _packed import read_rows, write_packed
from _page import on_page, put_into


@pytest.fixture
def rows() -> list[dict[str, Any]]:
    made = []
    generator = np.random.default_rng(0)
    for seed in range(3):
        for rho, method, rate in ((0.0, "none", 0.9), (0.95, "none", 0.5), (0.95, "couce", 0.7)):
            hits = (np.arange(100) < 100 * rate).astype(float)
            frame = pd.DataFrame(
                {"path": [f"{i}.png" for i in range(100)], "label": [f"c{i % 10}" for i in range(100)]}
            )
            frame["recall_at_1"] = frame["map_at_r"] = hits
            frame = frame.sample(frac=1, random_state=int(generator.integers(99)))
            made.append(
                {
                    "rho": rho, "method": method, "against": "none", "seed": seed,
                    "metrics": {"recall_at_1": rate, "map_at_r": rate / 2}, "shifted": {"recall_at_1": rate - 0.1},
                    "scene_probe": {"trained": {"accuracy": 0.25}}, "per_class": per_class(frame),
                }
            )  # fmt: skip
    return made


def test_differences_gaps_and_table(rows: list[dict[str, Any]]) -> None:
    found = differences(rows)
    assert [(d["rho"], d["method"], d["metric"]) for d in found] == [
        (0.95, "couce", "recall_at_1"),
        (0.95, "couce", "map_at_r"),
    ]
    assert found[0]["seeds"] == [0, 1, 2]
    assert found[0]["difference"] == pytest.approx(0.2)
    assert found[0]["interval"][0] <= 0.2 <= found[0]["interval"][1]
    (gap,) = gaps(rows)
    assert gap["share_of_gap"] == pytest.approx(0.5)
    shown = table({"rows": rows, "differences": found, "gaps": [gap]}, ["none", "couce"])
    assert shown.splitlines()[-1].startswith("| 0.95 | couce | 3 | 70.0 | 35.0 | 25.0 | +20.0 [")
    assert shown.endswith("| +50 % | 60.0 | +20.0 [+20.0, +20.0] |")


def test_differences_where_pictures_are_shifted_have_the_interval_of_student_over_seeds(
    rows: list[dict[str, Any]],
) -> None:
    for row, won in zip((row for row in rows if row["method"] == "couce"), (0.01, 0.02, 0.06), strict=True):
        row["shifted"] = {"recall_at_1": 0.4 + won}
    (one,) = shifts(rows)
    assert (one["rho"], one["method"], one["seeds"]) == (0.95, "couce", [0, 1, 2])
    assert one["difference"] == pytest.approx(0.03)
    half = 4.30265 * 0.0264575 / 3**0.5  # t of two degrees of freedom
    assert one["interval"] == pytest.approx([0.03 - half, 0.03 + half], abs=2e-5)
    (single,) = shifts([row for row in rows if row["seed"] == 1])
    assert "interval" not in single  # one seed has no spread
    assert table({"rows": rows[:3], "differences": [], "gaps": []}, []).endswith("| 41.0 | +1.0 |")


@pytest.mark.parametrize("name", ["controlled", "controlled_msrci"])
def test_the_page_shows_the_result_file(name: str) -> None:
    root = Path(__file__).resolve().parents[2]
    whole = json.loads((root / "benchmarks" / "results" / f"{name}.json").read_text())
    assert on_page(root / "docs" / "evidence.md", name) == table(whole, list(whole["variants"]))


def test_a_table_replaces_the_one_before(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- table of benchmarks/results/controlled.json -->\nold\n<!-- end -->\nb\n")
    for shown in ("| one |", "| two |"):
        put_into(page, "controlled", shown)
        assert on_page(page, "controlled") == shown
    assert page.read_text().startswith("a\n")
    assert page.read_text().endswith("-->\nb\n")


def test_a_packed_file_gives_its_rows_back_and_lists_classes_once(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    for row in rows:
        row["dataset"] = f"rho{row['rho']:g}"
    rows[-1]["per_class"]["labels"] = [f"d{number}" for number in range(10)]  # the same seed, other classes
    file = tmp_path / "packed.json"
    write_packed(file, {"schema": 1, "rows": rows, "gaps": []})
    assert read_rows(file) == rows
    whole = json.loads(file.read_text())
    assert whole["schema"] == 1
    assert list(whole["classes"]) == ["seed 0", "seed 1", "seed 2", "seed 2 rho0.95 couce"]
    assert all("labels" not in row["per_class"] for row in whole["rows"])
    write_packed(file, {"schema": 1, "rows": read_rows(file), "gaps": []})
    assert json.loads(file.read_text()) == {**whole, "gaps": []}


def test_a_kind_has_its_own_files_and_rows_of_folders_are_read(
    rows: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import controlled

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(controlled, "__file__", str(tmp_path / "controlled.py"))
    (tmp_path / "results").mkdir()
    with pytest.raises(SystemExit):
        controlled.main(["--kind", "glyphs", "--table"])
    assert "no run has finished in runs/controlled_glyphs" in capsys.readouterr().err
    for number, row in enumerate(rows):
        folder = tmp_path / "runs" / "controlled_glyphs" / f"seed{number}"
        folder.mkdir(parents=True)
        (folder / "row.json").write_text(json.dumps({**row, "dataset": f"controlled_glyphs_rho{row['rho']:g}"}))
    other = tmp_path / "runs" / "controlled_glyphs" / "seed99"
    other.mkdir()  # of another kind: left out
    (other / "row.json").write_text(json.dumps({**rows[0], "seed": 99, "dataset": "controlled_emoji_rho0"}))
    controlled.main(["--kind", "glyphs", "--table"])
    assert "| 0.95 | couce | 3 |" in capsys.readouterr().out
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["controlled_glyphs.json"]
    whole = json.loads((tmp_path / "results" / "controlled_glyphs.json").read_text())
    assert whole["command"] == "python benchmarks/controlled.py --kind glyphs --runs RUNS"
    assert len(whole["rows"]) == len(rows)
