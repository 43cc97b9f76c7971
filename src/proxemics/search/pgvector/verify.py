"""A look at an index from inside: do its rows find themselves, and is what it keeps whole?"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from proxemics.search.index import Verified
from proxemics.search.items import Hits
from proxemics.search.manifest import Manifest
from proxemics.search.pgvector.nearest import scan_nearest
from proxemics.search.pgvector.rows import as_items
from proxemics.search.pgvector.tables import has_graph
from proxemics.search.remote import agreement

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[Any]


def verify(
    connection: Connection, table: str, manifest: Manifest, search: Callable[..., list[Hits]], sample: int, seed: int
) -> Verified:
    """Measure the index; see :meth:`proxemics.search.Index.verify`."""
    from psycopg.sql import SQL, Identifier, Literal

    name = Identifier(table)
    totals = connection.execute(
        SQL("SELECT count(*), count(*) FILTER (WHERE abs(vector_norm(embedding) - 1) > 1e-3) FROM {}").format(name)
    ).fetchone()
    count, uneven = (int(totals[0]), int(totals[1])) if totals else (0, 0)
    drawn = connection.execute(
        SQL("SELECT id, embedding, metadata FROM {} ORDER BY hashtextextended(id, {}), id LIMIT {}").format(
            name, Literal(seed), Literal(sample)
        ),
        binary=True,
    ).fetchall()
    rows = as_items(drawn, manifest.key.dim)
    found: list[Hits] = search(rows.vectors, 10) if len(rows) else []
    with connection.transaction():
        connection.execute("SET LOCAL enable_indexscan = off")
        exact = scan_nearest(connection, table, rows.vectors, 10, ())
    itself, recall = agreement(rows, found, exact)
    problems = []
    if uneven:
        problems.append(f"{uneven:,} vectors are not of unit length; they were not written by Proxemics.")
    if itself < 1:
        problems.append(f"{1 - itself:.1%} of the rows looked at do not find themselves first; run compact().")
    if manifest.kind == "hnsw" and count and not has_graph(connection, table):
        problems.append("The graph is not there, so searches scan every row; run compact() to build it.")
    return Verified(count, len(rows), itself, recall, tuple(problems))
