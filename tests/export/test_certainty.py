"""`certainty.json`: counted by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from proxemics.core.config import make_config
from proxemics.core.errors import DataError
from proxemics.export.certainty import calibrate_certainty, certainty_facts
from proxemics.export.source import Source
from proxemics.models.embedder import Embedder
from proxemics.training.run_folder import RunFolder


def table(kappa: list[float], wrong: list[bool], **columns: list) -> pd.DataFrame:
    nearest = ["b" if one else "a" for one in wrong]
    return pd.DataFrame({"label": ["a"] * len(kappa), "nearest_label": nearest, "kappa": kappa, **columns})


def test_levels_are_counted() -> None:
    kappa = list(np.arange(100, 0, -1.0))
    wrong = [number % 4 == 3 or number > 80 for number in range(100)]
    found = calibrate_certainty(table(kappa, wrong))
    assert found is not None
    assert [row["queries"] for row in found["levels"]] == list(range(5, 101, 5))
    for row in found["levels"]:
        count = row["queries"]
        assert row["kappa"] == 101 - count
        assert row["errors"] == sum(wrong[:count])
        assert row["error_rate"] == round(sum(wrong[:count]) / count, 6)
        assert row["kept"] == count / 100
    assert (found["queries"], found["errors"]) == (100, sum(wrong))
    assert "may be chance" not in found["meaning"]
    assert f"in {100 * found['auroc']:.0f} % of pairs; chance is 50. A row" in found["meaning"]


def test_lengths_that_tell_nothing_are_not_called_a_certainty() -> None:
    kappa = list(np.arange(100, 0, -1.0))
    found = calibrate_certainty(table(kappa, [number % 2 == 0 for number in range(100)]))
    assert found is not None
    assert found["auroc"] < 0.5
    assert "On the test queries it tells nothing, so do not read it as certainty: a right answer" in found["meaning"]
    good = calibrate_certainty(table(kappa, [number > 60 for number in range(100)]))
    assert good is not None
    assert good["auroc"] == 1
    assert "tells nothing" not in good["meaning"]
    assert "in 100 % of pairs" in good["meaning"]


def test_equal_lengths_are_kept_together() -> None:
    found = calibrate_certainty(table([3.0, 1.0, 1.0, 1.0], [False, True, False, False]))
    assert found is not None
    assert [(row["kappa"], row["queries"], row["errors"]) for row in found["levels"]] == [(3.0, 1, 0), (1.0, 4, 1)]
    assert "Only 1 query is wrong" in found["meaning"]


def test_queries_that_count_in_no_metric_are_left_out() -> None:
    lone = [1.0, float("nan"), 0.5]
    found = calibrate_certainty(table([3.0, 2.0, float("nan")], [False, True, True], average_precision=lone))
    assert found is not None
    assert (found["queries"], found["errors"], found["auroc"]) == (1, 0, None)
    assert "All 1 test queries are right, so nothing can be said of mistakes." in found["meaning"]


def test_a_table_without_lengths_has_no_certainty() -> None:
    assert calibrate_certainty(pd.DataFrame({"label": ["a"], "nearest_label": ["a"]})) is None
    assert calibrate_certainty(table([float("nan")], [True])) is None


def test_a_damaged_table_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "per_query.parquet").write_bytes(b"PAR1")
    embedder = Embedder("test_resnet", dim=8, weights="none", size=32)
    config = make_config({"methods": {"probabilistic": {}}})
    with pytest.raises(DataError, match=r"per_query\.parquet cannot be read: "):
        certainty_facts(Source(tmp_path, embedder, None, run=RunFolder(tmp_path), config=config))
