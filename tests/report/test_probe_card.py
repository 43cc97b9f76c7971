"""The bias card in the report."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from proxemics.core.files import write_json
from proxemics.evaluation.probes.card import bias_card
from proxemics.evaluation.probes.masks import usable
from proxemics.evaluation.probes.measures import Sample
from proxemics.report import write_report
from proxemics.report.charts import small_curve
from proxemics.report.probe_card import bias_card_part, shown


@pytest.fixture(scope="module")
def card() -> dict[str, object]:
    generator = torch.Generator().manual_seed(0)
    pictures = torch.randint(0, 256, (40, 3, 24, 24), dtype=torch.uint8, generator=generator)
    masks = torch.zeros(40, 24, 24)
    masks[:, 8:16, 8:16] = 1
    sample = Sample(pictures, np.arange(40) // 4, usable(masks, "mask"))
    return bias_card(lambda x: x.float().flatten(1) - 127, sample, untrained=lambda x: x[:, :, :4].float().flatten(1))


@pytest.fixture(scope="module")
def run(glyph_run: Path) -> Path:
    return glyph_run


def test_the_section_is_there_when_the_card_is(run: Path, tmp_path: Path, card: dict[str, object]) -> None:
    page = tmp_path / "report.html"
    write_report(run, out=page)
    assert 'id="probes"' not in page.read_text()
    write_json(run / "probe.json", card)
    try:
        text = write_report(run, out=page).read_text()
    finally:
        (run / "probe.json").unlink()
    assert 'id="probes"' in text
    assert 'href="#probes"' in text
    for words in ("Goes with the background", "lower is better", "Amplitude mixing", "Hubness", "AUROC of certainty"):
        assert words in text
    assert text.count('class="plot small"') == 8
    assert str(card["verdict"]).split(";")[0].replace("'", "&#39;") in text


def test_other_pictures_than_those_of_the_run_are_named(run: Path, tmp_path: Path, card: dict[str, object]) -> None:
    for more, words in (
        ({"split": "all", "source": "/data/other.csv"}, "of other.csv, not of the test pictures of this run. Arrows"),
        ({"split": "val"}, "of the val split, not of the test pictures. Arrows"),
        ({"split": "test"}, "on 40 pictures of 10 classes. Arrows"),
    ):
        write_json(run / "probe.json", {**card, **more})
        try:
            assert words in write_report(run, out=tmp_path / "r.html", points=0, similarity=False).read_text()
        finally:
            (run / "probe.json").unlink()


def test_rows_carry_value_untrained_and_chance(tmp_path: Path, card: dict[str, object]) -> None:
    write_json(tmp_path / "probe.json", card)
    part = bias_card_part(tmp_path)
    assert part is not None
    assert part.head is not None
    assert part.head.chance == "50.0\u00a0%"
    assert part.has_untrained
    assert [group.title for group in part.groups][:2] == ["Background", "Nuisances"]
    rows = {row.name: row for group in part.groups for row in group.rows}
    assert rows["geometry/hubness"].places is None
    assert rows["background/follows"].places is not None
    curve = rows["nuisance/jpeg"].curve
    assert curve is not None
    assert len(curve.lines) == 2
    assert "75, 50, 25, 10" in curve.text


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"numbers": 3}', '{"schema": 1, "numbers": [{}], "curves": []}'])
def test_a_damaged_card_does_not_cost_the_report(tmp_path: Path, text: str) -> None:
    (tmp_path / "probe.json").write_text(text)
    assert bias_card_part(tmp_path) is None


def test_no_card_no_part(tmp_path: Path) -> None:
    assert bias_card_part(tmp_path) is None


def test_numbers_and_curves_are_laid_out() -> None:
    assert shown(-0.0312, "share") == "\u22123.1\u00a0%"
    curve = small_curve([[1.0, 0.5, 2.0], [0.0, 0.0, 0.0]], text="x")
    assert curve.lines[0][0] == "M8 5 L90 22 L172 5"  # above 1 is drawn at the top
    assert curve.lines[1][1][0] == (8.0, 39.0)


def test_names_cannot_break_out_of_the_page(run: Path, tmp_path: Path, card: dict[str, object]) -> None:
    evil = json.loads(json.dumps(card))
    evil["verdict"] = evil["numbers"][0]["reading"] = "<script>alert(1)</script>"
    write_json(run / "probe.json", evil)
    try:
        text = write_report(run, out=tmp_path / "r.html").read_text()
    finally:
        (run / "probe.json").unlink()
    assert "<script>alert" not in text
