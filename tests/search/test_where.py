"""What conditions mean, and how they are written on a command line."""

from __future__ import annotations

import pytest

from proxemics.core.errors import SearchError
from proxemics.search import Condition, parse_where


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("label=cat", Condition("label", "eq", "cat")),
        ("label=cat|dog", Condition("label", "in", ("cat", "dog"))),
        ("label=a=b", Condition("label", "eq", "a=b")),
        ("label=", Condition("label", "eq", "")),
        (" price <10", Condition("price", "lt", 10)),
        ("price<=10.5", Condition("price", "le", 10.5)),
        ("price>-1e3", Condition("price", "gt", -1000)),
        ("price>=3", Condition("price", "ge", 3)),
    ],
)
def test_texts_become_conditions(text: str, wanted: Condition) -> None:
    assert parse_where([text]) == [wanted]


@pytest.mark.parametrize("text", ["label", "=cat", "<3", "", "label~cat"])
def test_what_is_not_understood_is_refused_with_examples(text: str) -> None:
    with pytest.raises(SearchError, match=r"is not understood; write label=cat, label=cat\|dog, price<10"):
        parse_where([text])


def test_comparing_with_a_word_is_refused() -> None:
    with pytest.raises(SearchError, match="'cheap' is no number; < compares numbers"):
        parse_where(["price<cheap"])


@pytest.mark.parametrize(
    ("have", "operator", "value", "holds"),
    [
        (3, "eq", "3", True),
        (3, "eq", "3.0", True),
        ("3", "eq", 3, True),
        ("3.0", "eq", "3", False),
        (True, "eq", "true", True),
        (True, "eq", 1, False),
        (1, "eq", True, False),
        (None, "eq", None, True),
        (None, "eq", "", False),
        ("cat", "in", ("dog", "cat"), True),
        (3, "in", ("3", "4"), True),
        ("5", "lt", 10, False),
        (True, "lt", 10, False),
        (None, "ge", 0, False),
        (9.99, "lt", 10, True),
        (10, "lt", 10, False),
        (10, "le", 10, True),
        (10, "gt", 9, True),
        (10, "ge", 10, True),
    ],
)
def test_a_condition_holds_or_not(have: object, operator: str, value: object, holds: bool) -> None:
    condition = Condition("x", operator, value)  # type: ignore[arg-type]  # values of every kind
    assert condition.holds({"x": have}) is holds  # type: ignore[dict-item]  # values of every kind
    assert not condition.holds({})
