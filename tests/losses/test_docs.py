"""The pages of the losses: examples run, and every option stands there with its default (user-pains 28)."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

from proxemics.losses import LOSSES, loss_options

PAGES = Path(__file__).resolve().parents[2] / "docs" / "losses"


@pytest.mark.parametrize("page", sorted(path.name for path in PAGES.glob("*.md")))
def test_examples(page):
    result = doctest.testfile(str(PAGES / page), module_relative=False)
    assert result.failed == 0
    assert result.attempted > 0


@pytest.mark.parametrize("name", LOSSES)
def test_options(name):
    text = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    rows = {
        line.split("|")[1].strip().strip("`"): line.split("|")[2].strip() for line in text.splitlines() if "| `" in line
    }
    shown = {key: f'"{value}"' if isinstance(value, str) else str(value) for key, value in loss_options(name).items()}
    assert rows == shown


def test_every_loss_is_in_the_index():
    text = (PAGES / "index.md").read_text(encoding="utf-8")
    for name, kind in LOSSES.items():
        way = "equals the big batch" if kind.per_sample_mean else "differs"
        (line,) = [line for line in text.splitlines() if line.startswith(f"| `{name}` ")]
        assert f"`{kind.__name__}`" in line
        assert way in line
        assert f"({name}.md)" in line
