"""Searches: by the graph, and by a scan of every row."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from proxemics.search.items import Hits
from proxemics.search.manifest import Manifest
from proxemics.search.pgvector.conditions import where_sql
from proxemics.search.pgvector.tables import LONGEST_VECTOR_GRAPH, graph_column
from proxemics.search.where import Condition

if TYPE_CHECKING:
    import psycopg
    from psycopg.sql import Composed

    Connection = psycopg.Connection[Any]

LEAST_SEARCHED = 100
MOST_SEARCHED = 1000
_ITERATIVE_SINCE = (0, 8)


def scan_nearest(
    connection: Connection, table: str, queries: NDArray[np.float32], k: int, where: Sequence[Condition]
) -> list[Hits]:
    """Return the nearest rows of each query by looking at every row; equal scores stand in the order of their ids."""
    from psycopg.sql import SQL, Identifier, Literal

    condition, parameters = where_sql(where)
    statement = SQL(
        "SELECT id, metadata, embedding <#> %(query)b FROM {} WHERE {} ORDER BY embedding <#> %(query)b, id LIMIT {}"
    ).format(Identifier(table), condition, Literal(k))
    with _together(connection, len(queries)):
        return _run(connection, statement, parameters, queries, k)


def graph_nearest(
    connection: Connection,
    table: str,
    manifest: Manifest,
    queries: NDArray[np.float32],
    k: int,
    where: Sequence[Condition],
    version: tuple[int, ...],
) -> list[Hits]:
    """Return the nearest rows of each query by the graph.

    From pgvector 0.8 on the walk goes on until k rows meet the conditions, in strict order of the scores. Where it
    finds fewer all the same, the query is answered again by a scan, so that what is missing then is really not there.
    """
    condition, parameters = where_sql(where)
    statement = _graph_statement(table, manifest, k, condition)
    with _together(connection, 2), connection.transaction():
        _set(connection, "hnsw.ef_search", str(min(MOST_SEARCHED, max(LEAST_SEARCHED, 2 * k))))
        if version >= _ITERATIVE_SINCE:
            _set(connection, "hnsw.iterative_scan", "strict_order")
        found = _run(connection, statement, parameters, queries, k)
        short = [place for place, hits in enumerate(found) if hits.missing]
        if short:
            _set(connection, "enable_indexscan", "off")
            again = scan_nearest(connection, table, queries[short], k, where)
            for place, hits in zip(short, again, strict=True):
                found[place] = hits
    return found


def _graph_statement(table: str, manifest: Manifest, k: int, condition: Any) -> Composed:
    from psycopg.sql import SQL, Composed, Identifier, Literal

    dim, column = manifest.key.dim, graph_column(manifest)
    if dim <= LONGEST_VECTOR_GRAPH:
        asked, candidates = Composed([SQL("%(query)b")]), k
    else:  # the graph is over halves: take more of them, and order those by the whole vectors below
        asked, candidates = SQL("(%(query)b::vector)::halfvec({})").format(Literal(dim)), 2 * k + 20
    return SQL(
        "SELECT id, metadata, embedding <#> %(query)b AS distance FROM ("
        "SELECT id, metadata, embedding FROM {} WHERE {} ORDER BY {} <#> {} LIMIT {}"
        ") AS near ORDER BY distance, id LIMIT {}"
    ).format(Identifier(table), condition, column, asked, Literal(candidates), Literal(k))


def _together(connection: Connection, statements: int) -> AbstractContextManager[object]:
    """Send several statements without waiting for the answer of each, where libpq can."""
    import psycopg

    return connection.pipeline() if statements > 1 and psycopg.Pipeline.is_supported() else nullcontext()


def _run(
    connection: Connection, statement: Composed, parameters: dict[str, Any], queries: NDArray[np.float32], k: int
) -> list[Hits]:
    cursors = [connection.execute(statement, {**parameters, "query": query}) for query in queries]
    return [_hits(cursor.fetchall(), k) for cursor in cursors]


def _hits(rows: list[Any], k: int) -> Hits:
    scores = np.array([-row[2] for row in rows], np.float32).clip(-1, 1)
    return Hits([row[0] for row in rows], scores, [row[1] for row in rows], missing=k - len(rows))


def _set(connection: Connection, name: str, value: str) -> None:
    connection.execute("SELECT set_config(%s, %s, true)", [name, value])
