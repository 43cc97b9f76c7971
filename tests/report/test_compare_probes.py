"""Bias cards of several runs side by side: values, paired differences, and every format."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
from dataclasses import replace
from html.parser import HTMLParser
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from proxemics.cli.compare import show_comparison
from proxemics.core.files import write_json
from proxemics.evaluation.probes.card import bias_card
from proxemics.evaluation.probes.measures import Sample
from proxemics.report.compare import compare
from proxemics.report.compare_rows import read_compared
from proxemics.report.compare_runs import UNTRAINED, Run
from proxemics.report.compare_text import FORMATS


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"probes_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make_run = _load("test_compare").make_run


def card(follows: float | None, hubs: float, **more: Any) -> dict[str, Any]:
    def one(probe: str, name: str, title: str, value: float | None, better: str, unit: str) -> dict[str, Any]:
        return {
            "probe": probe, "name": name, "title": title, "value": value, "interval": None, "chance": 0.5,
            "untrained": 0.9, "better": better, "unit": unit, "reading": "",
        }  # fmt: skip

    numbers = [
        one("background", "follows", "goes with the background", follows, "down", "share"),
        one("geometry", "hubness", "Hubness", hubs, "down", "number"),
    ]
    return {
        "schema": 1, "verdict": "", "pictures": 100, "classes": 5, "probes": [], "seed": 0, "masks": None,
        "has_untrained": True, "numbers": numbers, "curves": [], "risk": None, "skipped": {}, **more,
    }  # fmt: skip


@pytest.fixture
def probed(tmp_path: Path) -> list[str]:
    """Two variants on three seeds; one run was not probed, and one number is unknown under one seed."""
    for seed in (0, 1, 2):
        for name, gain, follows in (("a", 0.0, 0.4), ("b", 0.2, 0.1)):
            run = make_run(tmp_path / name / str(seed), seed=seed, gain=gain)
            if (name, seed) != ("b", 2):
                known = None if (name, seed) == ("a", 1) else follows + seed / 100
                write_json(run / "probe.json", card(known, 2.0 + seed - gain))
    return [f"plain={tmp_path / 'a'}", f"better <b>={tmp_path / 'b'}"]


def test_differences_are_over_the_seeds_that_both_have(probed: list[str]) -> None:
    (part,) = compare(read_compared(probed), resamples=200).probes
    assert (part.variants, part.baseline, part.dataset) == (("plain", "better <b>"), True, "birds")
    follows, hubs = part.lines
    assert [follows.name, hubs.name] == ["background/follows", "geometry/hubness"]
    plain, better = follows.entries
    assert plain.mean == pytest.approx((0.40 + 0.42) / 2)
    assert plain.deviation == pytest.approx(0.02 / 2**0.5)
    assert (plain.difference, plain.per_seed) == (None, ())
    assert better.mean == pytest.approx((0.10 + 0.11) / 2)
    assert better.per_seed == pytest.approx((-0.3,))
    assert better.difference == pytest.approx(-0.3)  # not the difference of the means
    assert hubs.entries[1].per_seed == pytest.approx((-0.2, -0.2))
    assert follows.chance == 0.5


def test_the_baseline_stands_first_whatever_the_order(probed: list[str]) -> None:
    (part,) = compare(read_compared(probed), baseline="better <b>", resamples=200).probes
    assert part.variants == ("better <b>", "plain")
    assert part.lines[0].entries[1].difference == pytest.approx(0.3)


def test_a_card_that_only_one_variant_has_is_shown_without_differences(probed: list[str], tmp_path: Path) -> None:
    for seed in (0, 1, 2):
        (tmp_path / "a" / str(seed) / "probe.json").unlink()
    found = compare(read_compared(probed), resamples=200)
    (part,) = found.probes
    assert (part.variants, part.baseline) == (("better <b>",), False)
    assert all(entry.difference is None for line in part.lines for entry in line.entries)
    assert "| number | chance | better" in FORMATS["md"](found, 1)
    for seed in (0, 1):
        (tmp_path / "b" / str(seed) / "probe.json").unlink()
    assert compare(read_compared(probed), resamples=200).probes == ()


def test_the_untrained_trunk_has_the_numbers_that_the_cards_hold_of_it(probed: list[str]) -> None:
    run = read_compared(probed)[0]
    assert isinstance(run, Run)
    frozen = replace(run, variant=UNTRAINED, untrained=True)
    assert run.card is not None
    assert frozen.card is not None
    assert [one["value"] for one in run.card["numbers"]] == [0.4, 2.0]
    assert [one["value"] for one in frozen.card["numbers"]] == [0.9, 0.9]
    write_json(run.folder / "probe.json", card(0.4, 2.0, has_untrained=False))
    assert replace(run, variant=UNTRAINED, untrained=True).card is None


def test_damaged_and_unlike_cards_are_said(probed: list[str], tmp_path: Path) -> None:
    write_json(tmp_path / "a" / "0" / "probe.json", {"numbers": [{}]})
    write_json(tmp_path / "a" / "1" / "probe.json", card(0.4, 2.0, pictures=30))
    (tmp_path / "b" / "1" / "probe.json").write_text("{")
    (part,) = compare(read_compared(probed), resamples=200).probes
    assert sum("cannot be read and is left out" in note for note in part.notes) == 2
    assert any("were not made alike" in note for note in part.notes)


def test_cards_of_other_pictures_are_unlike(probed: list[str], tmp_path: Path) -> None:
    (part,) = compare(read_compared(probed), resamples=200).probes
    assert not part.notes
    write_json(tmp_path / "a" / "1" / "probe.json", card(0.4, 2.0, split="all"))
    (part,) = compare(read_compared(probed), resamples=200).probes
    assert any("splits" in note for note in part.notes)


class Cells(HTMLParser):
    """Collects the text of table cells."""

    def __init__(self) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("td", "th"):
            self.cells.append("")
            self.inside = True

    def handle_endtag(self, tag: str) -> None:
        self.inside = self.inside and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.cells[-1] += data


def test_every_format_shows_the_cards(probed: list[str]) -> None:
    found = compare(read_compared(probed), resamples=200)
    text = {name: write(found, 1) for name, write in FORMATS.items()}
    records = json.loads(text["json"])["probes"]
    assert {one["number"] for one in records} == {"background/follows", "geometry/hubness"}
    assert [one["mean"] for one in records if one["variant"] == "plain"] == pytest.approx([0.41, 3.0])
    rows = list(csv.DictReader(io.StringIO(text["csv"])))
    (follows,) = [one for one in rows if (one["metric"], one["variant"]) == ("background/follows", "better <b>")]
    assert float(follows["difference"]) == pytest.approx(-0.3)
    assert (follows["low"], follows["pairs"]) == ("", "1")
    page = Cells()
    page.feed(text["html"])
    for cell in ("goes with the background ↓", "41.0 ± 1.4", "-30.0", "Background", "-0.2 (-0.2, -0.2)", "50.0"):
        assert cell in page.cells
    lines = [line for line in text["md"].splitlines() if line.startswith("|") and "goes with" in line]
    assert lines == ["| goes with the background ↓ | 50.0 | 41.0 ± 1.4 | 10.5 ± 0.7 | -30.0 |"]
    assert "goes with the background $\\downarrow$ & 50.0 & 41.0 $\\pm$ 1.4" in text["latex"]
    assert text["latex"].count("\\end{tabular}") == 2
    shown = Console(width=140, record=True, file=io.StringIO())
    show_comparison(found, shown)
    printed = shown.export_text()
    assert "Bias cards, birds, zero-shot" in printed
    assert "-0.2 (-0.2, -0.2)" in printed
    assert "better <b>" in printed


def test_cards_as_the_probes_write_them_are_read(tmp_path: Path) -> None:
    """The real card of two small models: what this file makes up has the same fields."""
    generator = torch.Generator().manual_seed(0)
    pictures = torch.randint(0, 256, (24, 3, 16, 16), dtype=torch.uint8, generator=generator)
    sample = Sample(pictures, np.arange(24) // 4)
    weights = torch.randn(768, 8, generator=generator)
    places = []
    for name, embed in (
        ("pixels", lambda x: x.float().flatten(1)),
        ("drawn", lambda x: x.float().flatten(1) @ weights),
    ):
        run = make_run(tmp_path / name)
        write_json(run / "probe.json", bias_card(embed, sample, only=["geometry", "nuisance"]))
        places.append(f"{name}={run}")
    (part,) = compare(read_compared(places), resamples=50).probes
    assert part.notes == ()
    first = json.loads((tmp_path / "pixels" / "probe.json").read_text())["numbers"]
    assert {line.name for line in part.lines} == {f"{one['probe']}/{one['name']}" for one in first}
    assert len([group for group, _ in groupby(part.lines, lambda line: line.group)]) == 2  # each probe together
    for one in first:
        (line,) = [line for line in part.lines if line.name == f"{one['probe']}/{one['name']}"]
        assert line.entries[0].mean == one["value"]
