"""Curves: what is read from the log, and where it is drawn."""

from __future__ import annotations

import math

from proxemics.report.charts import HEIGHT, WIDTH, line_chart, nice_ticks
from proxemics.report.curves import Series, chosen_epoch, loss_series, thin, validation_series

LOG = [
    {"step": 1, "epoch": 0, "loss": 3.0, "terms": {"base": 2.0, "orth": 1.0}},
    {"step": 2, "epoch": 0, "loss": math.nan, "terms": {"base": math.nan, "orth": 1.0}},
    {"step": 2, "epoch": 0, "val": {"map_at_r": 0.2}, "best": True},
    {"step": 4, "epoch": 1, "val": {"map_at_r": 0.5}, "best": True},
    {"step": 6, "epoch": 2, "val": {"map_at_r": 0.4}, "best": False},
]


def test_terms_are_drawn_beside_their_sum_and_nan_is_left_out() -> None:
    series = {one.name: one for one in loss_series(LOG)}
    assert series["loss"].y == (3.0,)
    assert series["base"].y == (2.0,)
    assert series["orth"].y == (1.0, 1.0)


def test_one_term_is_not_drawn_twice() -> None:
    assert [one.name for one in loss_series([{"step": 1, "loss": 3.0, "terms": {"base": 3.0}}])] == ["loss"]


def test_epochs_are_counted_from_one() -> None:
    (series,) = validation_series(LOG)
    assert series.x == (1.0, 2.0, 3.0)
    assert chosen_epoch(LOG, "map_at_r") == 2


def test_the_kept_epoch_follows_the_rule() -> None:
    unmarked = [{key: value for key, value in record.items() if key != "best"} for record in LOG]
    assert chosen_epoch(unmarked, "map_at_r") == 2
    assert chosen_epoch(LOG, "last") == 3
    assert chosen_epoch([], "map_at_r") is None
    assert chosen_epoch(unmarked, "recall_at_1") is None


def test_thinning_keeps_the_mean() -> None:
    long = Series("a", tuple(range(1000)), tuple(float(value) for value in range(1000)))
    short = thin(long, 100)
    assert len(short.x) == 100
    assert sum(short.y) / 100 == sum(long.y) / 1000


def test_ticks_cover_the_values() -> None:
    for low, high in ((0, 1), (0.031, 0.0325), (-3, 17), (5, 5), (1, 160), (1e-9, 3e-9)):
        ticks = nice_ticks(low, high)
        assert ticks[0] <= low + 1e-12
        assert ticks[-1] >= high - 1e-12
        assert 2 <= len(ticks) <= 9
    assert nice_ticks(1, 3, whole=True) == [1.0, 2.0, 3.0]


def test_everything_is_drawn_inside_the_chart() -> None:
    chart = line_chart(
        "Validation", validation_series(LOG), x_title="epoch", percent=True, mark=2, mark_text="Kept: epoch 2"
    )
    assert chart is not None
    left, top, right, bottom = chart.plot
    for line in chart.lines:
        for x, y, _ in line.dots:
            assert left <= x <= right <= WIDTH
            assert top <= y <= bottom <= HEIGHT
    assert chart.mark == chart.lines[0].dots[1][0]
    assert "map_at_r goes from 20.0 % at epoch 1 to 40.0 % at epoch 3. Kept: epoch 2." in chart.summary


def test_nothing_gives_no_chart_and_one_point_gives_one() -> None:
    assert line_chart("Loss", [], x_title="step") is None
    assert line_chart("Loss", [Series("loss", (), ())], x_title="step") is None
    single = line_chart("Loss", [Series("loss", (3.0,), (2.0,))], x_title="step")
    assert single is not None
    assert len(single.lines[0].dots) == 1
