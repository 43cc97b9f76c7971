"""The tables of an index: one for its rows, and one row of ``proxemics_indexes`` for its manifest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from proxemics.core.errors import SearchError
from proxemics.search.manifest import Manifest
from proxemics.search.pgvector.address import PgAddress
from proxemics.search.remote import AbsentError, read_manifest

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[Any]

LONGEST_VECTOR_GRAPH = 2000
LONGEST_HALF_GRAPH = 4000
_LONGEST_INLINE = 960
_REGISTRY = "proxemics_indexes"


def check_offer(manifest: Manifest) -> None:
    """Refuse what pgvector does not offer.

    Raises:
        SearchError: a graph over vectors of more than 4,000 numbers.
    """
    if manifest.kind == "hnsw" and manifest.key.dim > LONGEST_HALF_GRAPH:
        raise SearchError(
            f"pgvector builds graphs over vectors of up to {LONGEST_HALF_GRAPH:,} numbers, and these have "
            f"{manifest.key.dim:,}; use kind exact, or a model with a shorter embedding."
        )


def create_tables(connection: Connection, address: PgAddress, manifest: Manifest) -> None:
    """Make the tables of a new index in one transaction.

    Raises:
        SearchError: the name is taken, or pgvector is absent and the user may not add it.
    """
    from psycopg.sql import SQL, Identifier, Literal

    if address.name == _REGISTRY:
        raise SearchError(f"The name {_REGISTRY} is kept for the list of indexes; choose another.")
    _need_extension(connection, address)
    table = Identifier(address.name)
    with connection.transaction():
        # Two programs that create at the same moment would trip over each other's IF NOT EXISTS.
        connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [_REGISTRY])
        connection.execute(
            SQL("CREATE TABLE IF NOT EXISTS {} (name text PRIMARY KEY, manifest jsonb NOT NULL)").format(
                Identifier(_REGISTRY)
            )
        )
        if _manifest_of(connection, address.name) is not None or _exists(connection, address.name):
            raise SearchError(
                f"There is a table or an index {address.name} at {address.shown} already; choose another name, "
                "or drop it first."
            )
        connection.execute(
            SQL(
                'CREATE TABLE {} (id text COLLATE "C" PRIMARY KEY, embedding vector({}) NOT NULL, '
                "metadata jsonb NOT NULL)"
            ).format(table, Literal(manifest.key.dim))
        )
        if manifest.key.dim <= _LONGEST_INLINE:  # beside the row, so that a scan reads pages one after another
            connection.execute(SQL("ALTER TABLE {} ALTER COLUMN embedding SET STORAGE PLAIN").format(table))
        connection.execute(SQL("CREATE INDEX ON {} USING gin (metadata jsonb_path_ops)").format(table))
        connection.execute(
            SQL("INSERT INTO {} VALUES (%s, %s::jsonb)").format(Identifier(_REGISTRY)),
            [address.name, manifest.model_dump_json()],
        )


def open_tables(connection: Connection, address: PgAddress) -> Manifest:
    """Return the manifest of an index that exists.

    Raises:
        SearchError: there is none, or a newer Proxemics made it.
    """
    found = _manifest_of(connection, address.name)
    if found is None or not _exists(connection, address.name):
        raise AbsentError(
            f"There is no index {address.name} at {address.shown}; make it with 'proxemics index', or look at the "
            "database and the name."
        )
    return read_manifest(found, address.shown)


def extension_version(connection: Connection) -> tuple[int, ...]:
    """Return the version of pgvector in this database; empty when it is not there."""
    row = connection.execute("SELECT extversion FROM pg_extension WHERE extname = 'vector'").fetchone()
    return tuple(int(part) for part in str(row[0]).split(".") if part.isdigit()) if row else ()


def graph_name(name: str) -> str:
    """Return the name of the graph over a table."""
    return f"{name}_hnsw"


def has_graph(connection: Connection, name: str) -> bool:
    """Say whether the graph is there, and whole."""
    row = connection.execute(
        "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(quote_ident(%s))", [graph_name(name)]
    ).fetchone()
    return bool(row and row[0])


def build_graph(connection: Connection, manifest: Manifest, name: str) -> None:
    """Build the graph unless it is there; searches go on meanwhile, changes wait."""
    from psycopg.sql import SQL, Identifier

    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [graph_name(name)])
        if has_graph(connection, name):
            return
        connection.execute(SQL("DROP INDEX IF EXISTS {}").format(Identifier(graph_name(name))))
        connection.execute(
            SQL("CREATE INDEX {} ON {} USING hnsw (({}) {}) WITH (m = 16, ef_construction = 64)").format(
                Identifier(graph_name(name)),
                Identifier(name),
                graph_column(manifest),
                Identifier("vector_ip_ops" if manifest.key.dim <= LONGEST_VECTOR_GRAPH else "halfvec_ip_ops"),
            )
        )


def graph_column(manifest: Manifest) -> psycopg.sql.Composed:
    """Return what the graph is over: the vectors, or from 2,001 numbers on their halves."""
    from psycopg.sql import SQL, Composed, Literal

    if manifest.key.dim <= LONGEST_VECTOR_GRAPH:
        return Composed([SQL("embedding")])
    return SQL("embedding::halfvec({})").format(Literal(manifest.key.dim))


def tidy(connection: Connection, manifest: Manifest, name: str) -> None:
    """Make the room of removed rows free for new ones, and rebuild or build the graph; searches go on meanwhile."""
    from psycopg.sql import SQL, Identifier

    if manifest.kind == "hnsw":
        if has_graph(connection, name):
            graph = graph_name(name)
            connection.execute(SQL("DROP INDEX IF EXISTS {}").format(Identifier(f"{graph}_ccnew")))
            connection.execute(SQL("REINDEX INDEX CONCURRENTLY {}").format(Identifier(graph)))
        else:
            build_graph(connection, manifest, name)
    connection.execute(SQL("VACUUM (ANALYZE) {}").format(Identifier(name)))


def _exists(connection: Connection, name: str) -> bool:
    row = connection.execute("SELECT to_regclass(quote_ident(%s)) IS NOT NULL", [name]).fetchone()
    return bool(row and row[0])


def _manifest_of(connection: Connection, name: str) -> dict[str, Any] | None:
    from psycopg.sql import SQL, Identifier

    if not _exists(connection, _REGISTRY):
        return None
    row = connection.execute(
        SQL("SELECT manifest FROM {} WHERE name = %s").format(Identifier(_REGISTRY)), [name]
    ).fetchone()
    return row[0] if row and isinstance(row[0], dict) else None


def _need_extension(connection: Connection, address: PgAddress) -> None:
    from psycopg import errors
    from psycopg.types import TypeInfo

    if TypeInfo.fetch(connection, "vector") is not None:
        return
    try:
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [_REGISTRY])
            connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
    except errors.InsufficientPrivilege as error:
        raise SearchError(
            f"The database at {address.shown} has no pgvector yet, and this user may not add it; ask its "
            "administrator to run CREATE EXTENSION vector; in that database once."
        ) from error
    except (errors.UndefinedFile, errors.FeatureNotSupported) as error:
        raise SearchError(
            f"The server at {address.shown} has no pgvector to add; install the package pgvector for its version of "
            "PostgreSQL, or use a server that offers it."
        ) from error
    if TypeInfo.fetch(connection, "vector") is None:
        raise SearchError(
            f"pgvector is in the database at {address.shown}, but in a schema that is not on the search path; add "
            "&options=-csearch_path%3Dpublic,SCHEMA to the address."
        )
