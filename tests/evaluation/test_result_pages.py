"""Tables on pages are those of the result files."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from _page import on_page

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(("name", "page"), [("emoji5", "emoji5"), ("bias_cards", "probes")])
def test_the_page_shows_the_result_file(name: str, page: str) -> None:
    whole = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8"))
    shown = importlib.import_module(name).tables(whole)
    assert shown.count("\n") > 5
    assert on_page(ROOT / "docs" / f"{page}.md", name) == shown


def test_the_figures_of_the_index_are_those_of_the_file() -> None:
    whole = json.loads((ROOT / "benchmarks" / "results" / "search.json").read_text(encoding="utf-8"))
    assert on_page(ROOT / "docs" / "search.md", "search") == importlib.import_module("search_page").tables(whole)


@pytest.mark.parametrize("page", ["see", "probabilistic", "couce", "center_polar"])
def test_the_page_of_a_method_shows_what_it_costs_and_does(page: str) -> None:
    pages = importlib.import_module("method_pages")
    for name, make in (("methods", pages.cost), ("controlled", pages.effect)):
        whole = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8"))
        assert on_page(ROOT / "docs" / "methods" / f"{page}.md", name) == make(whole, page)
