"""Conditions as expressions of Milvus, over keys that each row keeps for them.

No name and no value of a user stands in an expression: rows keep digests of their texts, and expressions compare
digests. So odd characters cannot end a text early, and text that writes a number can be compared with numbers, which
Milvus itself does not do. A row with ``{"price": 3, "label": "9"}`` keeps ``n<digest of price>: 3.0``,
``e<digest of label>: "s<digest of 9>"`` and ``t<digest of label>: 9.0``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from hashlib import blake2b

from proxemics.search.items import Scalar
from proxemics.search.remote import check_where, equal_to, number_in
from proxemics.search.where import Condition

NOTHING = 'id == ""'
"""An expression that no row meets."""

_LARGEST = 1.7976931348623157e308
_SIGNS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_BEYOND = {
    ("lt", True): ("<=", _LARGEST),
    ("le", True): ("<=", _LARGEST),
    ("gt", False): (">=", -_LARGEST),
    ("ge", False): (">=", -_LARGEST),
}


def keys_of(name: str, meta: Mapping[str, Scalar]) -> dict[str, str | float]:
    """Return what a row keeps for filters: exact values, numbers, and numbers written as text.

    Args:
        name: the id of the row; it is the field ``id``.
        meta: its metadata.
    """
    keys: dict[str, str | float] = {}
    for field, value in {**meta, "id": name}.items():
        place = digest(field)
        if isinstance(value, int | float) and not isinstance(value, bool):
            keys[f"n{place}"] = float(value) + 0.0
            continue
        keys[f"e{place}"] = _exact(value)
        written = number_in(value) if isinstance(value, str) else None
        if written is not None:
            keys[f"t{place}"] = written + 0.0
    return keys


def expression(where: Sequence[Condition]) -> str:
    """Return an expression that is true for the rows that meet all conditions; empty when there are none.

    Raises:
        SearchError: an operator is unknown, or its value is not of its kind.

    Example:
        >>> expression([]), expression([Condition("a", "lt", "x")])
        ('', 'id == ""')
        >>> expression([Condition("price", "lt", 3)]).endswith(" < 3.0")
        True
    """
    check_where(where)
    parts = [_compares(one) if one.operator in _SIGNS else _equals(one) for one in where]
    return " and ".join(f"({part})" for part in parts) if len(parts) > 1 else "".join(parts)


def ids_expression(ids: Sequence[str]) -> str:
    """Return an expression that is true for the rows with one of the ids."""
    return f"id in [{', '.join(literal(one) for one in ids)}]"


def literal(text: str) -> str:
    r"""Return a text as an expression writes it: only quotes, backslashes and line ends need another form.

    Example:
        >>> literal('say "é"\n')
        '"say \\"é\\"\\n"'
    """
    for plain, written in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t")):
        text = text.replace(plain, written)
    return f'"{text}"'


def digest(text: str) -> str:
    """Return 96 bits of a text as hex digits."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def bytes_of(meta: Mapping[str, object]) -> int:
    """Return the length of the JSON text of a row, in bytes."""
    return len(json.dumps(meta, ensure_ascii=False).encode())


def _exact(value: str | bool | None) -> str:
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    return f"s{digest(value)}"


def _equals(condition: Condition) -> str:
    values = condition.value if isinstance(condition.value, tuple) else (condition.value,)
    place = digest(condition.field)
    exact: dict[str, None] = {}
    numbers: dict[str, None] = {}
    written: dict[str, None] = {}
    for value in values:
        if value is None or isinstance(value, bool):
            exact[_exact(value)] = None
        elif isinstance(value, str):
            exact[_exact(value)] = None
            if value.lower() in ("none", "true", "false"):
                exact[value.lower()] = None
            _put(number_in(value), numbers)
        else:
            _put(equal_to(value), numbers, written)
    parts = [f"e{place} in [{', '.join(literal(one) for one in exact)}]"] if exact else []
    parts += [f"n{place} in [{', '.join(numbers)}]"] if numbers else []
    parts += [f"t{place} in [{', '.join(written)}]"] if written else []
    return " or ".join(parts) if parts else NOTHING


def _put(number: float | None, *places: dict[str, None]) -> None:
    for place in places:
        if number is not None:
            place[repr(number + 0.0)] = None


def _compares(condition: Condition) -> str:
    value, operator = condition.value, condition.operator
    if not isinstance(value, int | float) or math.isnan(value) or condition.field == "id":
        return NOTHING
    sign = _SIGNS[operator]
    if abs(value) > _LARGEST:
        beyond = _BEYOND.get((operator, value > 0))
        if beyond is None:
            return NOTHING
        sign, value = beyond
    return f"n{digest(condition.field)} {sign} {float(value)!r}"
