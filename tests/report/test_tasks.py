"""The table of a protocol with several tasks."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest

from proxemics.core.files import read_json, write_json
from proxemics.report import write_report
from proxemics.report.tasks import task_table


def result(run: Path) -> dict:
    """Make the run one of leave-one-domain-out with a source beside."""
    value = copy.deepcopy(read_json(run / "result.json"))
    for lift, row in zip((0.1, 0.0), value["rows"], strict=True):
        one = {"metrics": {"recall_at_1": 0.5 + lift, "map_at_r": 0.2 + lift}, "intervals": {}, "num_queries": 1234}
        low = {
            **one,
            "metrics": {"recall_at_1": 0.3 + lift, "map_at_r": 0.1},
            "intervals": {"recall_at_1": [0.25, 0.5]},
        }
        row |= {"protocol": "leave_one_domain_out", "tasks": {"photo": one, "<sketch>": low}, "beside": {"source": one}}
    return value


def test_each_task_stands_beside_the_untrained_trunk(glyph_run: Path) -> None:
    table = task_table(result(glyph_run))
    assert table is not None
    assert table.has_untrained
    assert [(row.name, row.kind) for row in table.rows] == [
        ("photo", "task"), ("<sketch>", "task"), ("Mean", "mean"), ("source", "beside"),
    ]  # fmt: skip
    number = table.rows[1].numbers[0]
    assert (number.trained.value, number.untrained.value) == (pytest.approx(0.4), pytest.approx(0.3))
    assert number.trained.known_interval == (0.25, 0.5)
    assert table.rows[2].numbers[0].trained.value == result(glyph_run)["rows"][0]["metrics"]["recall_at_1"]
    assert "no part of it" in table.hint


def test_the_report_shows_the_table_in_place_of_the_domains(full_run: Path, tmp_path: Path) -> None:
    before = read_json(full_run / "result.json")
    try:
        write_json(full_run / "result.json", result(full_run))
        text = write_report(full_run, out=tmp_path / "r.html", similarity=False, points=0).read_text()
    finally:
        write_json(full_run / "result.json", before)
    section = re.search(r'<section id="domains".*?</section>', text, re.DOTALL)
    assert section is not None
    assert "&lt;sketch&gt;" in section[0]
    assert "not part of the mean" in section[0]
    assert "1,234" in section[0]
    assert "60.0\u00a0%" in section[0]
    assert text.count('id="domains"') == 1


def test_one_task_is_no_table(glyph_run: Path) -> None:
    assert task_table(read_json(glyph_run / "result.json")) is None
