"""Metadata as JSON text that comes back from PostgreSQL as it went in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal

from proxemics.search.items import Scalar


def as_json(meta: Mapping[str, Scalar]) -> str:
    """Return the JSON text of plain values.

    PostgreSQL keeps the digits of a number, not its spelling: 1e16 would come back as a whole number. Fractions are
    therefore written with a point, and whole ones with all their digits.

    Example:
        >>> as_json({"price": 1e16, "rank": 3, "even": True, "note": None, "name": "é"})
        '{"price": 10000000000000000.0, "rank": 3, "even": true, "note": null, "name": "é"}'
    """
    return "{" + ", ".join(f"{json.dumps(key, ensure_ascii=False)}: {_value(v)}" for key, v in meta.items()) + "}"


def _value(value: Scalar) -> str:
    if isinstance(value, float):
        return f"{int(value)}.0" if value.is_integer() else format(Decimal(repr(value)), "f")
    return json.dumps(value, ensure_ascii=False)
