"""From conditions to a WHERE clause: fixed pieces of SQL, every value a parameter.

Numbers travel as JSON text on both sides, so that both are read by the same code. Texts that have to be read as
numbers, and fields whose names JSON writes with a backslash, are left to Python, as SQL functions.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Sequence

from proxemics.search.items import Scalar
from proxemics.search.remote import check_where, equal_to, keepable
from proxemics.search.where import Condition

_EQUAL = """CASE json_type(meta, ?)
WHEN 'text' THEN json_extract(meta, ?) IN (SELECT value FROM json_each(?))
    OR (? AND px_number(json_extract(meta, ?)) IN (SELECT value FROM json_each(?)))
WHEN 'integer' THEN CAST(json_extract(meta, ?) AS REAL) IN (SELECT CAST(value AS REAL) FROM json_each(?))
WHEN 'real' THEN json_extract(meta, ?) IN (SELECT CAST(value AS REAL) FROM json_each(?))
WHEN 'true' THEN ? WHEN 'false' THEN ? WHEN 'null' THEN ? ELSE 0 END"""
_ID = """(id IN (SELECT value FROM json_each(?)) OR (? AND px_number(id) IN (SELECT value FROM json_each(?))))"""
_COMPARE = {
    "lt": "(json_type(meta, ?) IN ('integer', 'real') AND json_extract(meta, ?) < json_extract(?, '$[0]'))",
    "le": "(json_type(meta, ?) IN ('integer', 'real') AND json_extract(meta, ?) <= json_extract(?, '$[0]'))",
    "gt": "(json_type(meta, ?) IN ('integer', 'real') AND json_extract(meta, ?) > json_extract(?, '$[0]'))",
    "ge": "(json_type(meta, ?) IN ('integer', 'real') AND json_extract(meta, ?) >= json_extract(?, '$[0]'))",
}
_PYTHON = "px_holds(meta, ?, ?, ?)"
_LARGEST = 1.7976931348623157e308

Parameter = str | int
Clause = tuple[str, list[Parameter]]


def install(connection: sqlite3.Connection) -> None:
    """Give a connection the functions that the clauses use."""
    connection.create_function("px_number", 1, _number, deterministic=True)
    connection.create_function("px_holds", 4, _holds, deterministic=True)


def where_clause(conditions: Sequence[Condition]) -> Clause:
    """Return a boolean SQL expression over the columns ``id`` and ``meta``, and its parameters.

    Args:
        conditions: all must hold; none gives an expression that is always true.

    Raises:
        SearchError: an operator is unknown, its value is not of its kind, or there are more than 100 conditions.

    Example:
        >>> where_clause([Condition("price", "lt", 3)])[1]
        ['$."price"', '$."price"', '[3]']
        >>> where_clause([])
        ('1', [])
    """
    check_where(conditions)
    parts = [_clause(condition) for condition in conditions]
    return " AND ".join(text for text, _ in parts) or "1", [value for _, values in parts for value in values]


def _clause(condition: Condition) -> Clause:
    field, operator, value = condition.field, condition.operator, condition.value
    if not keepable(field):
        return "0", []  # no row has such a field
    if isinstance(value, tuple):
        return _equal(field, value)
    if operator == "eq":
        return _equal(field, (value,))
    return _compare(field, operator, value)


def _compare(field: str, operator: str, value: Scalar) -> Clause:
    if field == "id" or not isinstance(value, int | float) or value != value:
        return "0", []
    limit = json.dumps([max(-_LARGEST, min(_LARGEST, value))])  # a whole number may be beyond any float, too
    if not _is_simple(field):
        return _PYTHON, [field, operator, limit[1:-1]]
    return _COMPARE[operator], [_path(field), _path(field), limit]


def _equal(field: str, values: Sequence[Scalar]) -> Clause:
    values = [v for v in values if _can_be_met(v)]
    plain = [float(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    texts = [v for v in values if isinstance(v, str)]
    strict, words = json.dumps(plain), json.dumps(texts)
    if field == "id":
        return _ID, [words, int(bool(plain)), strict]
    if not _is_simple(field):
        return _PYTHON, [field, "in", json.dumps(values)]
    path = _path(field)
    read = [number for number in map(_number, texts) if number is not None and math.isfinite(number)]
    numbers = json.dumps([*plain, *read])
    lower = {text.lower() for text in texts}
    flags = [int(True in _kind(values, bool) or "true" in lower), int(False in _kind(values, bool) or "false" in lower)]
    nothing = int(None in values or "none" in lower)
    head: list[Parameter] = [path, path, words, int(bool(plain)), path, strict, path, numbers, path, numbers]
    return _EQUAL, [*head, *flags, nothing]


def _can_be_met(value: Scalar) -> bool:
    """Whether a row can hold the value: text that can be kept, and numbers that 64-bit floats can be."""
    if isinstance(value, str):
        return keepable(value)
    return not isinstance(value, int | float) or equal_to(value) is not None


def _kind(values: Sequence[Scalar], kind: type) -> list[Scalar]:
    return [value for value in values if isinstance(value, kind)]


def _is_simple(field: str) -> bool:
    """Whether JSON writes the name as it is, and a path can hold it."""
    return bool(field) and json.dumps(field, ensure_ascii=False) == f'"{field}"'


def _path(field: str) -> str:
    return f'$."{field}"'


def _number(text: object) -> float | None:
    try:
        return float(str(text))
    except ValueError:
        return None


def _holds(meta: str, field: str, operator: str, value: str) -> int:
    wanted = json.loads(value)
    condition = Condition(field, operator, tuple(wanted) if isinstance(wanted, list) else wanted)
    return int(condition.holds(json.loads(meta)))
