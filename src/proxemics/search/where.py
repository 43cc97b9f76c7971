"""Filters: which rows of an index a search may return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from proxemics.core.errors import SearchError
from proxemics.search.items import Scalar

OPERATORS = ("eq", "in", "lt", "le", "gt", "ge")


@dataclass(frozen=True)
class Condition:
    """One condition on one field; a row without the field, or with another type in it, does not meet it.

    Attributes:
        field: a key of the metadata, or ``id``.
        operator: one of :data:`OPERATORS`.
        value: a plain value; a tuple of them for ``in``; a number for the comparisons.
    """

    field: str
    operator: str
    value: Scalar | tuple[Scalar, ...]

    def holds(self, row: Mapping[str, Scalar]) -> bool:
        """Say whether a row meets the condition.

        Example:
            >>> Condition("price", "lt", 10).holds({"price": 9.5}), Condition("price", "lt", 10).holds({})
            (True, False)
        """
        if self.field not in row:
            return False
        have = row[self.field]
        if self.operator == "eq":
            return _same(have, self.value)
        if isinstance(self.value, tuple):
            return any(_same(have, one) for one in self.value)
        if isinstance(have, bool) or not isinstance(have, int | float) or not isinstance(self.value, int | float):
            return False
        compare = {"lt": have < self.value, "le": have <= self.value, "gt": have > self.value, "ge": have >= self.value}
        return compare[self.operator]


Where: TypeAlias = "Sequence[Condition]"
"""All of the conditions must hold; an empty one lets everything through."""


def parse_where(texts: Sequence[str]) -> list[Condition]:
    """Read conditions as they are written on a command line.

    Args:
        texts: ``label=cat``, ``label=cat|dog``, ``price<10``, ``price>=3``. A value that reads as a number is compared
            with numbers, and with text that is written the same.

    Raises:
        SearchError: a text has no operator or no field, or compares with something that is no number.

    Example:
        >>> [(c.field, c.operator, c.value) for c in parse_where(["label=cat|dog", "price<=10"])]
        [('label', 'in', ('cat', 'dog')), ('price', 'le', 10)]
    """
    return [_parse(text) for text in texts]


def check_batch(batch: int) -> None:
    """Refuse a number of rows that would never end a scan.

    Raises:
        SearchError: it is less than 1.
    """
    if batch < 1:
        raise SearchError(f"batch={batch}; give the number of rows to read at a time, 1 or more.")


def _parse(text: str) -> Condition:
    for sign, operator in (("<=", "le"), (">=", "ge"), ("<", "lt"), (">", "gt"), ("=", "eq")):
        name, found, value = text.partition(sign)
        if not found or not name.strip() or any(mark in name for mark in "<>="):
            continue
        if operator == "eq":
            parts = tuple(value.split("|"))
            return Condition(name.strip(), "in", parts) if len(parts) > 1 else Condition(name.strip(), "eq", value)
        try:
            number = float(value)
        except ValueError as error:
            raise SearchError(f"Filter {text!r}: {value!r} is no number; {sign} compares numbers.") from error
        return Condition(name.strip(), operator, int(number) if number.is_integer() else number)
    raise SearchError(f"Filter {text!r} is not understood; write label=cat, label=cat|dog, price<10 or price>=3.")


def _same(have: Scalar, wanted: object) -> bool:
    """Compare plain values; text from a command line equals the number that it writes."""
    if isinstance(have, bool) or isinstance(wanted, bool) or have is None or wanted is None:
        return have is wanted if not isinstance(wanted, str) else str(have).lower() == wanted.lower()
    if isinstance(have, str) and isinstance(wanted, str):
        return have == wanted
    try:
        return float(have) == float(wanted)  # type: ignore[arg-type]  # text or a number, and text may fail below
    except (ValueError, OverflowError):  # an int may be larger than any float
        return have == wanted
