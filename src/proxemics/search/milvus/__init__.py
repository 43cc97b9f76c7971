"""The index on Milvus: Milvus Lite in a file, a server, or a cluster."""

from proxemics.search.milvus.index import MilvusIndex

__all__ = ["MilvusIndex"]
