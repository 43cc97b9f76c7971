"""The section on certainty: which pictures, which words, which curve, and when there is none."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from proxemics.core.files import read_json, write_json
from proxemics.evaluation.certainty import certainty_auroc, risk_coverage
from proxemics.report import write_report
from proxemics.report.certainty import certainty_part, read_certainty, risk_chart
from proxemics.report.charts import HEIGHT, WIDTH

RESULT = {"rows": [{"method": "none"}, {"method": "frozen", "certainty": {"auroc": 0.5}}]}


def table(size: int = 40) -> pd.DataFrame:
    """Certainty falls from row to row; every fourth query of the second half is wrong."""
    rows = np.arange(size)
    wrong = (rows >= size // 2) & (rows % 4 == 0)
    return pd.DataFrame(
        {
            "path": [f"/p/{row}.png" for row in rows],
            "label": "cat",
            "nearest_label": np.where(wrong, "dog", "cat"),
            "kappa": np.linspace(50, 10, size).astype(np.float32),
            "average_precision": 0.5,
        }
    )


def test_the_ends_of_the_order_are_shown_with_right_and_wrong() -> None:
    part = certainty_part(table(), RESULT)
    assert part is not None
    assert [one.path for one in part.most] == [f"/p/{row}.png" for row in range(12)]
    assert [one.path for one in part.least] == [f"/p/{row}.png" for row in range(39, 27, -1)]
    assert {one.correct for one in part.most} == {True}
    assert [one.path for one in part.least if not one.correct] == ["/p/36.png", "/p/32.png", "/p/28.png"]
    assert (part.least[3].taken_for, part.most[0].kappa, part.least[0].kappa) == ("dog", "50.0", "10.0")
    assert (part.count, part.untrained_auroc) == (40, 0.5)
    wrong = (table()["nearest_label"] == "dog").to_numpy()
    assert part.auroc == certainty_auroc(table()["kappa"].to_numpy(), wrong)


@pytest.mark.parametrize(("size", "shown"), [(2, 1), (5, 2), (23, 11), (24, 12)])
def test_no_picture_is_at_both_ends(size: int, shown: int) -> None:
    part = certainty_part(table(size), RESULT)
    assert part is not None
    assert len(part.most) == len(part.least) == shown
    assert not {one.path for one in part.most} & {one.path for one in part.least}


def test_queries_without_a_partner_or_a_length_are_left_out() -> None:
    frame = table()
    frame.loc[0, "average_precision"] = np.nan
    frame.loc[1, "kappa"] = np.nan
    part = certainty_part(frame, RESULT)
    assert part is not None
    assert part.most[0].path == "/p/2.png"
    assert part.count == 38


def test_without_lengths_or_with_one_length_there_is_no_section() -> None:
    assert certainty_part(None, RESULT) is None
    assert certainty_part(table().drop(columns="kappa"), RESULT) is None
    assert certainty_part(table().assign(kappa=3.0), RESULT) is None
    assert certainty_part(table().assign(average_precision=np.nan), RESULT) is None
    assert certainty_part(table(1), RESULT) is None


@pytest.mark.parametrize(
    ("methods", "trained"),
    [(None, False), ({}, False), ({"see": {}}, False), ({"probabilistic": None}, True),
     ({"probabilistic": {"distance": "cos"}}, False)],
)  # fmt: skip
def test_the_configuration_tells_whether_the_length_was_trained(methods: dict | None, trained: bool) -> None:
    part = certainty_part(table(), {**RESULT, "config": {"methods": methods}})
    assert part is not None
    assert part.trained is trained


@pytest.mark.parametrize(
    ("auroc", "told"),
    [
        (0.93, "Certainty tells right answers from mistakes: it is higher for the right one in 93 % of pairs."),
        (0.7, "Certainty tells some mistakes from right answers: it is higher for the right one in 70 % of pairs."),
        (0.6, "Certainty says little about mistakes: it is higher for the right one in 60 % of pairs, and chance is"),
        (0.5, "Certainty says nothing about mistakes"),
        (0.2, "Mistakes are the more certain answers: certainty is higher for the right one in only 20 % of pairs."),
    ],
)
def test_the_reading_follows_the_auroc(auroc: float, told: str) -> None:
    frame = table(200)
    curve = risk_coverage(frame["kappa"].to_numpy(), (frame["nearest_label"] == "dog").to_numpy())
    reading = read_certainty(auroc, curve, 200)
    assert reading[0].startswith(told)
    assert reading[1] == "Of all 200 queries 12.5 % are wrong; of the 50 % most certain, 0.0 %."
    assert len(reading) == 3  # 25 mistakes are not few


def test_few_mistakes_are_said_to_be_few() -> None:
    frame = table(40)
    curve = risk_coverage(frame["kappa"].to_numpy(), (frame["nearest_label"] == "dog").to_numpy())
    assert read_certainty(0.9, curve, 40)[-1] == "Only 5 queries are wrong, so this may be chance."
    nearly_all = risk_coverage(np.arange(30.0), np.arange(30) < 29)
    assert read_certainty(1.0, nearly_all, 30)[-1] == "Only 1 query is right, so this may be chance."


@pytest.mark.parametrize(("wrong", "word"), [(False, "right"), (True, "wrong")])
def test_all_right_or_all_wrong_leaves_nothing_to_predict(wrong: bool, word: str) -> None:
    part = certainty_part(table().assign(nearest_label="dog" if wrong else "cat"), RESULT)
    assert part is not None
    assert part.auroc is None
    assert part.reading == (f"All 40 queries are {word}, so there is nothing to predict.",)


def test_the_curve_lies_between_the_perfect_order_and_is_drawn_inside() -> None:
    generator = np.random.default_rng(0)
    kappa = generator.normal(size=3000)
    wrong = generator.random(3000) < 1 / (1 + np.exp(2 * kappa))
    chart = risk_chart(risk_coverage(kappa, wrong), 3000)
    assert chart is not None
    left, top, right, bottom = chart.plot
    found = [[tuple(map(float, xy.split())) for xy in line.path[1:].split(" L")] for line in chart.lines]
    for points in found:
        assert all(left <= x <= right <= WIDTH and top <= y <= bottom <= HEIGHT for x, y in points)
    measured, perfect, blind = ([y for _, y in points] for points in found)  # a larger y is lower on the page
    assert all(best >= own >= worst - 8 for best, own, worst in zip(perfect, measured, blind, strict=True))
    assert measured[-1] == perfect[-1] == blind[-1]
    assert [line.note.split()[0] for line in chart.lines] == ["area"] * 3


def test_the_first_queries_alone_are_not_drawn() -> None:
    wrong = np.zeros(1000, dtype=bool)
    wrong[0] = True
    chart = risk_chart(risk_coverage(-np.arange(1000.0), wrong), 1000)
    assert chart is not None
    assert "100.0 %" not in chart.summary
    assert risk_chart(risk_coverage([2.0, 1.0], np.array([False, True])), 2) is not None


@pytest.fixture
def copy(glyph_run: Path, tmp_path: Path) -> Path:
    shutil.copytree(glyph_run, tmp_path / "run")
    return tmp_path / "run"


def section(run: Path) -> str:
    found = re.search(r'<section id="certainty".*?</section>', write_report(run).read_text(encoding="utf-8"), re.DOTALL)
    return found[0] if found else ""


def test_the_page_shows_pictures_number_and_curve(copy: Path) -> None:
    trained, frozen = read_json(copy / "result.json")["rows"]
    html = section(copy)
    assert f"{100 * trained['certainty']['auroc']:.1f}\u00a0%" in html
    assert f"untrained {100 * frozen['certainty']['auroc']:.1f}\u00a0%" in html
    assert html.count('alt="Most certain ') == html.count('alt="Least certain ') == 12
    assert html.count('class="sign right"') + html.count('class="sign wrong"') == 24 + 4
    assert 'aria-label="Risk–coverage' in html
    assert "was not trained to mean certainty" in html


def test_the_page_of_a_probabilistic_run_does_not_warn(copy: Path) -> None:
    result = read_json(copy / "result.json")
    result["config"]["methods"] = {"probabilistic": {"distance": "el-vmf"}}
    write_json(copy / "result.json", result)
    assert "not trained to mean" not in section(copy)


def test_an_older_run_has_no_section_and_no_link(copy: Path) -> None:
    frame = pd.read_parquet(copy / "per_query.parquet").drop(columns=["kappa", "nearest_kappa"])
    frame.to_parquet(copy / "per_query.parquet")
    assert section(copy) == ""
    assert "#certainty" not in (copy / "report.html").read_text(encoding="utf-8")
