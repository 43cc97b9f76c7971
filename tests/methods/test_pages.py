"""The pages of SEE and of the probabilistic proxies: examples run, and every option stands there with its default."""

import doctest
import inspect
from pathlib import Path

import pytest

from proxemics.methods.base import Method
from proxemics.methods.probabilistic import ProbabilisticProxies
from proxemics.methods.probabilistic.criterion import SETTINGS
from proxemics.methods.see import SEE

PAGES = Path(__file__).resolve().parents[2] / "docs" / "methods"
METHODS: dict[str, type[Method]] = {"see": SEE, "probabilistic": ProbabilisticProxies}


def rows(name: str) -> dict[str, list[str]]:
    text = (PAGES / f"{name}.md").read_text(encoding="utf-8").replace("\\|", "/")
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| `")]
    return {row[0].strip("`"): row[1:] for row in cells}


@pytest.mark.parametrize("name", METHODS)
def test_examples(name: str) -> None:
    result = doctest.testfile(str(PAGES / f"{name}.md"), module_relative=False)
    assert result.failed == 0
    assert result.attempted > 0


@pytest.mark.parametrize("name", METHODS)
def test_options(name: str) -> None:
    parameters = inspect.signature(METHODS[name]).parameters.values()
    options = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
    shown = {key: f'"{value}"' if isinstance(value, str) else str(value) for key, value in options.items()}
    found = {key: cells[0] for key, cells in rows(name).items() if key not in SETTINGS}
    assert found == shown


def test_settings_of_the_distances() -> None:
    table = rows("probabilistic")
    for distance, (temperature, concentration, factor) in SETTINGS.items():
        t, kappa, times = (value.strip() for value in table[distance][1].split("(")[0].split(","))
        numerator, _, denominator = t.partition("/")
        assert float(numerator) / float(denominator or 1) == pytest.approx(temperature)
        assert kappa == "–" or float(kappa) == concentration
        assert float(times) == factor
