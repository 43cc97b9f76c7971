"""Tables in which a column holds numbers of one protocol only."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from proxemics.core.errors import DataError
from proxemics.report.published.rows import Protocol, Row

_ORDER = ("recall_at_1_gain", "recall_at_1", "r_precision", "map_at_r")


@dataclass(frozen=True)
class Panel:
    """One table: all rows of one protocol.

    Attributes:
        protocol: of every row.
        rows: published ones first.

    Raises:
        DataError: a row of another protocol.
    """

    protocol: Protocol
    rows: tuple[Row, ...]

    def __post_init__(self) -> None:
        for row in self.rows:
            if row.protocol != self.protocol:
                raise DataError(
                    f"{row.method} was measured under {row.protocol.title!r} and cannot stand in a column of "
                    f"{self.protocol.title!r}: numbers of different protocols do not compare."
                )

    @property
    def metrics(self) -> list[str]:
        """The columns: what any row holds, the most telling first."""
        published = {name for row in self.rows if not row.runs for name in row.values}
        # Where published rows say what counts, what own runs hold besides would only widen the table.
        names = published or {name for row in self.rows for name in row.values if name in _ORDER}
        return sorted(names, key=_place)


def lay_out(rows: Iterable[Row]) -> list[Panel]:
    """Sort rows into one panel a protocol, in the order in which the protocols are met.

    Example:
        >>> from proxemics.report.published.rows import published_rows
        >>> [panel.protocol.key for panel in lay_out(published_rows("inshop"))]
        ['see_table', 'see_table_hyp', 'untrained', 'authors']
    """
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.protocol.key, []).append(row)
    return [Panel(members[0].protocol, tuple(members)) for members in groups.values()]


def _place(name: str) -> tuple[int, int, str]:
    recall = re.fullmatch(r"recall_at_(\d+)", name)
    if recall:
        return (1, int(recall[1]), name)
    return (0 if name not in _ORDER or name == _ORDER[0] else 2, _ORDER.index(name) if name in _ORDER else 0, name)
