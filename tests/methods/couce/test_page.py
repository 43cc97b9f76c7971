"""The page of CouCE: its example runs, and every option stands there with its default."""

import doctest
import inspect
from pathlib import Path

import pytest

from proxemics.methods.base import Method
from proxemics.methods.couce import MSRCI, ODBA, CouCE

PAGE = Path(__file__).resolve().parents[3] / "docs" / "methods" / "couce.md"


def tables() -> dict[str, dict[str, str]]:
    """Default by option, by the class that the head of the table names."""
    found: dict[str, dict[str, str]] = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if cells and cells[0].startswith("option of "):
            current = found[cells[0].removeprefix("option of ")] = {}
        elif line.startswith("| `"):
            current[cells[0].strip("`")] = cells[1]
    return found


def test_examples() -> None:
    result = doctest.testfile(str(PAGE), module_relative=False)
    assert result.failed == 0
    assert result.attempted > 0


@pytest.mark.parametrize("method", [CouCE, MSRCI, ODBA])
def test_options(method: type[Method]) -> None:
    parameters = inspect.signature(method).parameters.values()
    options = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
    shown = {key: f'"{value}"' if isinstance(value, str) else str(value) for key, value in options.items()}
    assert tables()[method.__name__] == shown
