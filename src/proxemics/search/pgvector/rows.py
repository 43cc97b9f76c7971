"""Rows in and out of the table of an index; every change is one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from proxemics.core.errors import SearchError
from proxemics.search.items import Items, Meta
from proxemics.search.pgvector.meta import as_json
from proxemics.search.remote import keepable

if TYPE_CHECKING:
    import psycopg
    from typing_extensions import LiteralString

    Connection = psycopg.Connection[Any]

_INCOMING = "proxemics_incoming"
_FEW = 50  # up to here one statement with arrays is quicker than a copy into a table in between


def insert(connection: Connection, table: str, items: Items) -> int:
    """Add rows whose ids are new; all or none.

    Raises:
        SearchError: an id is taken.
    """
    from psycopg import errors

    try:
        return len(_write(connection, table, items, " RETURNING TRUE"))
    except errors.UniqueViolation as error:
        raise SearchError(
            f"Id {_taken(connection, table, items.ids)!r} is in the index already, so nothing was added; "
            "use upsert (--replace) to replace rows."
        ) from error


def insert_or_replace(connection: Connection, table: str, items: Items) -> tuple[int, int]:
    """Add rows and replace those whose ids are taken; all or none.

    Returns:
        How many were added, and how many replaced.
    """
    # A row version that was never updated has xmax 0: it was added by this statement.
    replace = " ON CONFLICT (id) DO UPDATE SET embedding = excluded.embedding, metadata = excluded.metadata"
    fresh = _write(connection, table, items, replace + " RETURNING (xmax = 0)")
    return sum(fresh), len(fresh) - sum(fresh)


def delete(connection: Connection, table: str, ids: Sequence[str]) -> int:
    """Remove rows; two programs that remove the same ones take them in the same order."""
    from psycopg.sql import SQL, Identifier

    statement = SQL("DELETE FROM {0} WHERE id IN (SELECT id FROM {0} WHERE id = ANY(%s) ORDER BY id FOR UPDATE)")
    names = [one for one in dict.fromkeys(ids) if keepable(one)]
    return connection.execute(statement.format(Identifier(table)), [names]).rowcount if names else 0


def fetch(connection: Connection, table: str, ids: Sequence[str], dim: int) -> Items:
    """Return rows by id, in the order asked for."""
    from psycopg.sql import SQL, Identifier

    names = [one for one in dict.fromkeys(ids) if keepable(one)]
    statement = SQL("SELECT id, embedding, metadata FROM {} WHERE id = ANY(%s)").format(Identifier(table))
    found = {row[0]: row for row in connection.execute(statement, [names], binary=True)} if names else {}
    return as_items([found[name] for name in names if name in found], dim)


def as_items(rows: Sequence[Any], dim: int) -> Items:
    """Return rows ``(id, vector, metadata)`` as :class:`Items`."""
    vectors = np.empty((len(rows), dim), np.float32)
    for place, row in enumerate(rows):
        vectors[place] = row[1].to_numpy()
    meta: list[Meta] = [row[2] for row in rows]
    return Items([row[0] for row in rows], vectors, meta)


def _write(connection: Connection, table: str, items: Items, ending: LiteralString) -> list[bool]:
    """Write rows in one transaction, in the order of their ids: two writers never wait for each other in a circle."""
    from pgvector import Vector
    from psycopg.sql import SQL, Identifier

    start = "INSERT INTO {} SELECT id, embedding, metadata FROM {} ORDER BY id"
    if len(items) > _FEW:
        with connection.transaction():
            _stage(connection, items)
            statement = SQL(start + ending).format(Identifier(table), Identifier("pg_temp", _INCOMING))
            return [bool(row[0]) for row in connection.execute(statement)]
    given = SQL(
        "unnest(%(ids)b::text[], %(vectors)b::vector[], %(meta)b::text[]::jsonb[]) AS given(id, embedding, metadata)"
    )
    values = {
        "ids": items.ids,
        "vectors": [Vector(one) for one in items.vectors],
        "meta": [as_json(one) for one in items.meta],
    }
    return [bool(row[0]) for row in connection.execute(SQL(start + ending).format(Identifier(table), given), values)]


def _stage(connection: Connection, items: Items) -> None:
    """Copy rows into a table that only this connection sees, and that the end of the transaction empties."""
    from pgvector import Vector
    from psycopg.sql import SQL, Identifier
    from psycopg.types.json import Jsonb

    connection.execute(
        SQL(
            'CREATE TEMP TABLE IF NOT EXISTS {} (id text COLLATE "C", embedding vector, metadata jsonb) '
            "ON COMMIT DELETE ROWS"
        ).format(Identifier(_INCOMING))
    )
    copy_in = SQL("COPY {} FROM STDIN (FORMAT binary)").format(Identifier("pg_temp", _INCOMING))
    with connection.cursor() as cursor, cursor.copy(copy_in) as copy:
        copy.set_types(["text", "vector", "jsonb"])
        for name, vector, meta in zip(items.ids, items.vectors, items.meta, strict=True):
            copy.write_row((name, Vector(vector), Jsonb(meta, dumps=as_json)))


def _taken(connection: Connection, table: str, ids: Sequence[str]) -> str:
    from psycopg.sql import SQL, Identifier

    statement = SQL("SELECT id FROM {} WHERE id = ANY(%s) ORDER BY id LIMIT 1").format(Identifier(table))
    row = connection.execute(statement, [list(ids)]).fetchone()
    return str(row[0]) if row else "?"
