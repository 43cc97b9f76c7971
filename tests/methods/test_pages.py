"""The pages of SEE and of the probabilistic proxies: examples run, and every option stands there with its default."""

import doctest
import inspect
from pathlib import Path

import pytest

from proxemics.methods.base import Method
from proxemics.methods.center_polar import CenterPolar, ExpansionEqualisation
from proxemics.methods.probabilistic import ProbabilisticProxies
from proxemics.methods.probabilistic.criterion import SETTINGS
from proxemics.methods.see import SEE

PAGES = Path(__file__).resolve().parents[2] / "docs" / "methods"
METHODS: dict[str, type[Method]] = {"see": SEE, "probabilistic": ProbabilisticProxies, "center_polar": CenterPolar}


def rows(name: str, head: str) -> dict[str, list[str]]:
    """Rows of the tables of a page whose first column is called ``head``."""
    text = (PAGES / f"{name}.md").read_text(encoding="utf-8").replace("\\|", "/")
    found = {}
    for table in text.split("\n\n"):
        lines = [
            [cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("|")
        ]
        if lines and lines[0][0] == head:
            found.update({row[0].strip("`"): row[1:] for row in lines[2:]})
    return found


@pytest.mark.parametrize("name", METHODS)
def test_examples(name: str) -> None:
    result = doctest.testfile(str(PAGES / f"{name}.md"), module_relative=False)
    assert result.failed == 0
    assert result.attempted > 0


@pytest.mark.parametrize(
    ("name", "kind", "head"),
    [
        *((name, kind, "option") for name, kind in METHODS.items()),
        ("center_polar", ExpansionEqualisation, "option of the baseline"),
    ],
)
def test_options(name: str, kind: type[Method], head: str) -> None:
    parameters = inspect.signature(kind).parameters.values()
    options = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
    shown = {key: f'"{value}"' if isinstance(value, str) else str(value) for key, value in options.items()}
    assert {key: cells[0] for key, cells in rows(name, head).items()} == shown


def test_settings_of_the_distances() -> None:
    table = rows("probabilistic", "name")
    for distance, (temperature, concentration, factor) in SETTINGS.items():
        t, kappa, times = (value.strip() for value in table[distance][1].split("(")[0].split(","))
        numerator, _, denominator = t.partition("/")
        assert float(numerator) / float(denominator or 1) == pytest.approx(temperature)
        assert kappa == "–" or float(kappa) == concentration
        assert float(times) == factor
