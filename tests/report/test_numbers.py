"""The table of numbers: explanations, differences, verdicts. User-pains 57, 58, 59, 100."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from proxemics.evaluation.metrics import Wanted
from proxemics.report.explain import explain
from proxemics.report.numbers import Estimate, Number, collect_numbers, pick_rows, verdict
from proxemics.report.words import (
    dataset_title,
    lone_sentence,
    protocol_sentence,
    seen_sentence,
    selection_sentence,
    split_sizes,
)


def row(method: str, value: float, spread: float | None = None) -> dict[str, object]:
    interval = {} if spread is None else {"recall_at_1": [value - spread, value + spread]}
    return {"method": method, "metrics": {"recall_at_1": value}, "intervals": interval}


def number(trained: float, untrained: float, spread: float | None) -> Number:
    (only,) = collect_numbers({"rows": [row("none", trained, spread), row("frozen", untrained, spread)]})
    return only


COMPUTED = Wanted(recall_at=(1, 1000), precision_at=(10,), map_horizon=20).names


@pytest.mark.parametrize("name", [*COMPUTED, "nmi", "ami"])
def test_every_metric_has_a_sentence_and_a_direction(name: str) -> None:
    """User-pains 100: readers must not have to guess which score says what."""
    about = explain(name)
    assert about.text.endswith(".")
    assert "No explanation" not in about.text
    assert about.better == "up"


def test_an_unknown_metric_is_shown_without_a_direction() -> None:
    assert explain("my_own_score").better == ""
    assert number(0.5, 0.4, None).gain == 1
    assert Number("x", explain("x"), Estimate(0.5), Estimate(0.4)).gain == 0


@pytest.mark.parametrize(
    ("trained", "untrained", "spread", "expected"),
    [
        (0.6, 0.2, 0.05, "Training raised Recall@1 by 40.0 points over the untrained trunk; the 95 % intervals do not"),
        (0.6, 0.58, 0.05, "the 95 % intervals overlap, so with this many test classes it may be chance."),
        (0.2, 0.6, 0.05, "Training lowered Recall@1 by 40.0 points"),
        (0.6, 0.2, None, "Training raised Recall@1 by 40.0 points over the untrained trunk."),
        (0.2, 0.2, 0.05, "Training left Recall@1 as it was."),
    ],
)
def test_the_verdict_says_what_training_did(
    trained: float, untrained: float, spread: float | None, expected: str
) -> None:
    assert expected in verdict(number(trained, untrained, spread))


@pytest.mark.parametrize(
    ("interval", "expected"),
    [
        ([0.01, 0.05], "by 3.0 points over the untrained trunk (95 % interval over the same queries: +1.0 to +5.0)."),
        (
            [-0.02, 0.05],
            "(95 % interval over the same queries: -2.0 to +5.0), so with this many test classes it may be",
        ),
    ],
)
def test_the_verdict_goes_by_the_paired_difference(interval: list[float], expected: str) -> None:
    """The intervals of the two overlap, which says nothing: both were asked the same queries."""
    trained = {**row("none", 0.53, 0.05), "over_untrained": {"recall_at_1": {"difference": 0.03, "interval": interval}}}
    numbers = collect_numbers({"rows": [trained, row("frozen", 0.5, 0.05)]})
    (only,) = [one for one in numbers if one.name == "recall_at_1"]
    assert expected in verdict(only)


def test_without_an_untrained_row_nothing_is_claimed() -> None:
    (only,) = collect_numbers({"rows": [row("none", 0.5)]})
    assert only.difference is None
    assert "cannot say what training changed" in verdict(only)


def test_missing_and_undefined_values_are_kept_apart_from_zero() -> None:
    rows = [{"method": "none", "metrics": {"nmi": None, "ami": math.nan, "mrr": 0.0}, "intervals": {"mrr": None}}]
    found = {one.name: one.trained for one in collect_numbers({"rows": rows})}
    assert found["nmi"].value is None
    assert found["ami"].value is None
    assert found["mrr"] == Estimate(0.0)


def test_the_frozen_row_is_never_the_trained_one() -> None:
    trained, frozen = pick_rows({"rows": [row("frozen", 0.1), row("couce", 0.2)]})
    assert (trained["method"], frozen["method"]) == ("couce", "frozen")


def test_seen_classes_are_counted() -> None:
    frame = pd.DataFrame({"label": ["a", "b", "b", "c"], "split": ["train", "val", "test", "test"]})
    assert seen_sentence(frame) == "1 of the 2 test classes also occur in the training or validation split."
    assert seen_sentence(frame[frame["label"] != "b"]).startswith("None of the test classes was seen in training")
    assert seen_sentence(None) == ""


def test_the_selection_rule_is_printed() -> None:
    """User-pains 59."""
    told = selection_sentence({"selection": "epoch 6 of 8, chosen by map_at_r on the validation classes"})
    assert told.startswith("Epoch 6 of 8, chosen by map_at_r on the validation classes. The test split takes no part")
    assert selection_sentence({}) == "How the epoch was chosen is not recorded."


def test_the_protocol_is_a_sentence() -> None:
    crossed = {"rows": [{"method": "none", "protocol": "cross_domain sketch -> photo"}]}
    assert protocol_sentence(crossed).endswith("Domains: sketch -> photo.")
    assert protocol_sentence({"rows": [{"method": "none"}], "protocol": "zero_shot"}).startswith("Each test picture")


def test_small_words() -> None:
    assert lone_sentence({"num_lone": 1}).startswith("1 query has no other picture")
    assert lone_sentence({"num_lone": 1200}).startswith("1,200 queries have")
    assert lone_sentence({}) == ""
    assert dataset_title({"rows": [{"dataset": "birds"}], "data": {"source": "a/table.csv"}}) == "birds"
    sizes = split_sizes(
        {"data": {"splits": {"test": {"images": 1, "classes": 1}, "train": {"images": 3, "classes": 2}}}}
    )
    assert [(one.name, one.share) for one in sizes] == [("train", 0.75), ("test", 0.25)]
