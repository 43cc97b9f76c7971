"""The index on PostgreSQL with the extension pgvector."""

from proxemics.search.pgvector.index import PgVectorIndex

__all__ = ["PgVectorIndex"]
