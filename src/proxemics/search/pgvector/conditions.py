"""Conditions as SQL over the metadata; the values travel as parameters and mean what ``Condition.holds`` says."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from decimal import Context, Decimal
from typing import TYPE_CHECKING, Any, TypeAlias

from proxemics.search.items import Scalar
from proxemics.search.pgvector.meta import as_json
from proxemics.search.remote import check_where, equal_to, keepable, number_in
from proxemics.search.where import Condition

if TYPE_CHECKING:
    from psycopg.sql import Composable

Parameters: TypeAlias = "dict[str, Any]"

_SIGNS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_EXACT = Context(prec=1500)
_SPACE = "\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009" + (
    "\u200a\u2028\u2029\u202f\u205f\u3000"
)
_DIGITS = "[0-9](_?[0-9])*"
_NUMBER = rf"^[+-]?({_DIGITS}\.?({_DIGITS})?|\.{_DIGITS})([eE][+-]?[0-9]{{1,4}})?$"


def where_sql(where: Sequence[Condition]) -> tuple[Composable, Parameters]:
    """Return an expression that is true for the rows that meet all conditions, and its parameters.

    Raises:
        SearchError: an operator is unknown, or its value is not of its kind.
    """
    from psycopg.sql import SQL

    check_where(where)
    names = _Names()
    parts = [_condition(one, names) for one in where]
    return (SQL(" AND ").join(parts) if parts else SQL("TRUE")), names.parameters


class _Names:
    """Hands out names of parameters."""

    def __init__(self) -> None:
        self.parameters: Parameters = {}

    def put(self, value: object, cast: str) -> Composable:
        from psycopg.sql import SQL, Identifier, Placeholder

        name = f"w{len(self.parameters)}"
        self.parameters[name] = value
        return SQL("{}::{}").format(Placeholder(name), Identifier(cast))


def _condition(condition: Condition, names: _Names) -> Composable:
    if condition.operator not in _SIGNS:
        values = condition.value if isinstance(condition.value, tuple) else (condition.value,)
        equal = _id_equals if condition.field == "id" else _equals
        return _any([one for value in values for one in equal(condition.field, value, names)])
    return _compares(condition, names)


def _any(parts: Sequence[Composable]) -> Composable:
    from psycopg.sql import SQL

    return SQL("({})").format(SQL(" OR ").join(parts)) if parts else SQL("FALSE")


def _equals(field: str, value: Scalar, names: _Names) -> list[Composable]:
    """Return expressions one of which is true when the field equals the value."""
    if not keepable(field):
        return []
    if value is None or isinstance(value, bool):
        return [_contains(field, value, names)]
    if not isinstance(value, str):
        number = equal_to(value)
        return [] if number is None else [_is_number(field, number, names), _text_writes(field, number, names)]
    parts = [_contains(field, value, names)] if keepable(value) else []
    number_written = number_in(value)
    if number_written is not None:
        parts.append(_is_number(field, number_written, names))
    word = value.lower()
    if word in ("true", "false", "none"):
        parts.append(_contains(field, {"true": True, "false": False, "none": None}[word], names))
    return parts


def _id_equals(field: str, value: Scalar, names: _Names) -> list[Composable]:
    from psycopg.sql import SQL, Identifier

    if isinstance(value, str):
        return [SQL("id = {}").format(names.put(value, "text"))] if keepable(value) else []
    if value is None or isinstance(value, bool):
        return []
    number = equal_to(value)
    return [] if number is None else [_writes(Identifier("id"), number, names)]


def _contains(field: str, value: Scalar, names: _Names) -> Composable:
    from psycopg.sql import SQL

    return SQL("metadata @> {}").format(names.put(as_json({field: value}), "jsonb"))


def _is_number(field: str, number: float, names: _Names) -> Composable:
    """Compare as 64-bit floats do: up to 2**53 every number has one spelling, and the index on metadata helps."""
    from psycopg.sql import SQL

    if abs(number) < 2**53:
        return _contains(field, int(number) if float(number).is_integer() else number, names)
    return SQL("(CASE WHEN jsonb_typeof(metadata->{0}) = 'number' THEN {1} ELSE FALSE END)").format(
        names.put(field, "text"), _rounds_to(_value(field, names), float(number), names)
    )


def _text_writes(field: str, number: float, names: _Names) -> Composable:
    from psycopg.sql import SQL

    key = names.put(field, "text")
    return SQL("(jsonb_typeof(metadata->{0}) = 'string' AND {1})").format(
        key, _writes(SQL("(metadata->>{})").format(key), number, names)
    )


def _writes(text: Composable, number: float, names: _Names) -> Composable:
    """Say whether a text spells a number, as ``float`` reads it; digits are those of ASCII."""
    from psycopg.sql import SQL

    trimmed = SQL("btrim({}, {})").format(text, names.put(_SPACE, "text"))
    spelled = SQL("replace({}, '_', '')::numeric").format(trimmed)
    return SQL("(CASE WHEN length({0}) < 500 AND {0} ~ {1} THEN {2} ELSE FALSE END)").format(
        trimmed, names.put(_NUMBER, "text"), _rounds_to(spelled, float(number), names)
    )


def _rounds_to(value: Composable, number: float, names: _Names) -> Composable:
    """Say whether a decimal number rounds to a 64-bit float."""
    from psycopg.sql import SQL

    low, high, inclusive = _neighbourhood(number)
    form = "{0} BETWEEN {1} AND {2}" if inclusive else "({0} > {1} AND {0} < {2})"
    return SQL(form).format(value, names.put(low, "numeric"), names.put(high, "numeric"))


def _neighbourhood(number: float) -> tuple[Decimal, Decimal, bool]:
    """Return the decimals half way to the floats below and above, and whether they round to this one."""
    exact, below = Decimal(number), Decimal(math.nextafter(number, -math.inf))
    above = Decimal(math.nextafter(number, math.inf))
    low, high = (_EXACT.divide(_EXACT.add(exact, other), Decimal(2)) for other in (below, above))
    even = struct.unpack("<Q", struct.pack("<d", number))[0] % 2 == 0
    return low, high, even


def _compares(condition: Condition, names: _Names) -> Composable:
    from psycopg.sql import SQL

    value, field = condition.value, condition.field
    if not isinstance(value, int | float) or math.isnan(value) or field == "id" or not keepable(field):
        return SQL("FALSE")
    return SQL("(CASE WHEN jsonb_typeof(metadata->{0}) = 'number' THEN {1} {2} {3} ELSE FALSE END)").format(
        names.put(field, "text"),
        _value(field, names),
        SQL(_SIGNS[condition.operator]),
        names.put(_spelled(value), "numeric"),
    )


def _spelled(value: float) -> Decimal:
    """Return a number as the metadata spell it; decimals compare in the same order as the numbers do."""
    if math.isinf(value):
        return Decimal(2**1024 if value > 0 else -(2**1024))
    if isinstance(value, float) and not value.is_integer():
        return Decimal(repr(value))
    return Decimal(int(value))


def _value(field: str, names: _Names) -> Composable:
    from psycopg.sql import SQL

    return SQL("(metadata->>{})::numeric").format(names.put(field, "text"))
